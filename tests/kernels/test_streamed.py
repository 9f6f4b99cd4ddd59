"""Rows of which the device keeps some, and reads the others in each pass, give what all rows give."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from xpulab.kernels.row_passes import column_sums
from xpulab.kernels.rows import Fill
from xpulab.kernels.runtime.device import Device
from xpulab.kernels.streamed import StreamedRows, near_rows, parts_of

N, D = 1003, 3
PIECE = 192 * 4 * D  # bytes of 192 rows
ROWS = np.random.default_rng(0).normal(size=(N, D)).astype(np.float32)


def opening(rows: np.ndarray, opened: list[int]) -> Callable[[], contextlib.AbstractContextManager[Fill]]:
    """A function that opens the rows for a pass, and notes the rows that are read in it."""

    @contextlib.contextmanager
    def reading() -> Iterator[Fill]:
        opened.append(0)

        def fill(first: int, part: np.ndarray) -> None:
            n = int(np.prod(part.shape[:-1]))
            opened[-1] += n
            part[...] = rows[first : first + n].reshape(part.shape)

        yield fill

    return reading


def streams(device: Device, n_kept: int, by_columns: bool, **more: Any) -> tuple[StreamedRows, list[int]]:
    opened: list[int] = []
    rows = StreamedRows.read(
        device, (N, D), n_kept, np.float32, opening(ROWS, opened), by_columns=by_columns, piece_bytes=PIECE, **more
    )
    return rows, opened


@pytest.mark.parametrize("by_columns", [False, True])
@pytest.mark.parametrize("n_kept", [0, 64, 500, N, 2 * N])
def test_every_pass_has_all_rows_in_order(device: Device, n_kept: int, by_columns: bool) -> None:
    rows, opened = streams(device, n_kept, by_columns)
    kept = N if n_kept >= N else n_kept // 64 * 64
    assert (rows.kept.n_samples, rows.n_samples, rows.n_features) == (kept, N, D)
    for _ in range(2):
        firsts, sums = [], []
        for first, part in parts_of(rows):
            firsts += [first, first + part.n_samples]
            sums.append(column_sums(part))
        assert firsts[0] == 0
        assert firsts[1:-1:2] == firsts[2::2]
        assert firsts[-1] == N
        cut = np.array(firsts[::2])
        np.testing.assert_allclose(sums, np.add.reduceat(ROWS, cut), rtol=1e-4, atol=1e-4)
    # The rest is read once in each pass, and nothing if all rows are kept.
    assert opened == [kept] * (kept > 0) + [N - kept] * 2 * (kept < N)
    assert (rows.reading.passes, rows.reading.nbytes) == (2 * (kept < N), 2 * (N - kept) * 4 * D)


@pytest.mark.parametrize("n_kept", [0, 500])
def test_sums_places_and_divisions(device: Device, n_kept: int) -> None:
    rows, opened = streams(device, n_kept, True)
    assert rows.look()
    before = len(opened)
    np.testing.assert_allclose(rows.column_sums(), ROWS.sum(axis=0), rtol=1e-4, atol=1e-3)
    assert len(opened) == before  # the look has found them
    shift = np.array([0.5, -1, 2], np.float32)
    np.testing.assert_allclose(rows.column_sums(shift, squared=True), np.square(ROWS - shift).sum(axis=0), rtol=1e-5)
    places = np.array([1002, 0, 700, 63, 700])
    np.testing.assert_array_equal(rows.take(places), ROWS[places])
    half = rows.divided(2)
    np.testing.assert_array_equal(half.take(places, shift), ROWS[places] / 2 - shift)
    np.testing.assert_allclose(half.column_sums(), ROWS.sum(axis=0) / 2, rtol=1e-4, atol=1e-3)
    assert 0 < near_rows(rows) <= max(64, n_kept)


def test_weights_come_with_their_rows(device: Device) -> None:
    weights = np.arange(N, dtype=np.float64)
    rows, _ = streams(device, 300, False, sample_weight=weights)
    found = np.concatenate([part.weights_on_cpu() for _, part in rows.parts()])
    np.testing.assert_array_equal(found, weights)


def test_nan_is_found_in_any_part(device: Device) -> None:
    for row in (5, 700, N - 1):
        wrong = ROWS.copy()
        wrong[row, 1] = np.nan
        rows = StreamedRows.read(device, (N, D), 300, np.float32, opening(wrong, []), piece_bytes=PIECE)
        assert not rows.look()
        assert rows.find_nonfinite() == row


def test_an_error_of_a_reading_thread_ends_the_pass(device: Device) -> None:
    @contextlib.contextmanager
    def broken() -> Iterator[Fill]:
        def fill(first: int, part: np.ndarray) -> None:
            if first >= 600:
                raise ValueError("the file ends")
            part[...] = 0

        yield fill

    rows = StreamedRows.read(device, (N, D), 128, np.float32, broken, piece_bytes=PIECE)
    with pytest.raises(ValueError, match="the file ends"):
        rows.column_sums()
    assert rows.reading.passes == 0
