"""The machine code of gradient boosting finds the best splits, of numbers and of sets of categories."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from xpulab.kernels.on_cpu.boosting import (
    HESSIAN_BITS,
    TREE_WITH_SETS,
    Split,
    Splitting,
    Thresholds,
    add_by_bins,
    add_histogram,
    as_integers,
    part_node,
)

MISSING = 20  # the bin of missing values
_Sums = npt.NDArray[np.int64]


def histogram_of(seed: int, n_bins: list[int], missing: list[int]) -> _Sums:
    """Return a histogram of one node: each column has the same rows in its bins."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(30, 400))
    gradients, hessians = rng.integers(-50, 51, n), rng.integers(1, 20, n)
    sums = np.zeros((len(n_bins), 256, 3), np.int64)
    for f, (count, there) in enumerate(zip(n_bins, missing, strict=True)):
        bins = rng.integers(0, count + there, n)
        bins[bins == count] = MISSING
        for part, numbers in enumerate((gradients, hessians, np.ones(n, np.int64))):
            np.add.at(sums[f, :, part], bins, numbers)
    return sums


def sides(column: _Sums, categorical: bool, n_bins: int, there: int) -> Iterator[list[int]]:
    """Yield the bins on the left of each split of a column that may be looked at."""
    if not categorical:
        yield from (list(range(last + 1)) for last in range(n_bins - 1 + there))
        yield from ([*range(last + 1), MISSING] for last in range(n_bins - 1) if there)
        return
    bins = [*range(n_bins), *([MISSING] if there else [])]
    total = column.sum(axis=0)
    many = [b for b in bins if column[b, 1] * total[2] / total[1] >= 10]
    order = sorted(many, key=lambda b: column[b, 0] / (column[b, 1] + 10))
    half = (len(order) + 1) // 2
    yield from (order[: i + 1] for i in range(half) if len(order) > 1)
    yield from (order[-i - 1 :] for i in range(half - 1) if len(order) > 1)


def best_gain(sums: _Sums, n_categorical: int, n_bins: list[int], missing: list[int], least: int) -> float:
    """Return the gain of the best split, found by looking at all."""
    best = -1.0
    for f, (count, there) in enumerate(zip(n_bins, missing, strict=True)):
        total = sums[f].sum(axis=0)
        for left in sides(sums[f], f < n_categorical, count, there):
            near = sums[f, left].sum(axis=0)
            far = total - near
            if min(near[2], far[2]) >= least:
                best = max(best, sum(each[0] ** 2 / (each[1] + 1.0) for each in (near, far)))
    return best


@settings(max_examples=60)
@given(seed=st.integers(0, 2**32 - 1), n_categorical=st.integers(0, 3), least=st.integers(1, 30), data=st.data())
def test_the_best_of_all_splits_is_found(seed: int, n_categorical: int, least: int, data: st.DataObject) -> None:
    n_bins = data.draw(st.lists(st.integers(1, 15), min_size=3, max_size=3))
    missing = data.draw(st.lists(st.integers(0, 1), min_size=3, max_size=3))
    sums = histogram_of(seed, n_bins, missing)
    thresholds = Thresholds([np.arange(count - 1.0) for count in n_bins], MISSING, n_categorical)
    splitting = Splitting(thresholds, np.array(missing, np.uint8), np.zeros(3, np.int64), 1.0, least, 1.0, 1.0)
    whole = sums[0].sum(axis=0).tolist()
    found = splitting.find(sums, (whole[0], whole[1], whole[2]), 0.0, -np.inf, np.inf, np.ones(3, np.uint8))
    expected = best_gain(sums, n_categorical, n_bins, missing, least)
    assert max(found.gain, -1) == pytest.approx(expected, rel=1e-9, abs=1e-9) or max(found.gain, expected) <= 0
    if found.gain <= 0:
        return
    assert (found.left_bins is not None) == (found.feature < n_categorical)
    column = sums[found.feature]
    left = [b for b in [*range(n_bins[found.feature]), MISSING] if goes_left(found, b)]
    assert found.left == tuple(column[left, :3].sum(axis=0))


def goes_left(split: Split, b: int) -> bool:
    """Return whether a bin is on the left."""
    if split.left_bins is not None:
        return bool(split.left_bins[b // 8] >> b % 8 & 1)
    return bool(split.missing_left) if b == MISSING else b <= split.last_bin


def test_rows_go_to_the_side_of_their_category() -> None:
    """The rows of a node are divided, and those of a prediction get the value of the side, as the set says."""
    column = np.array([0, 1, 2, 3, MISSING, 9, 1], np.uint8)
    chosen = np.zeros(32, np.uint8)
    for b in (1, 9, MISSING):
        chosen[b // 8] |= 1 << b % 8
    rows, aside = np.arange(7, dtype=np.int32), np.empty(7, np.int32)
    split = Split(1.0, 0, 0, 1, (0, 0, 0), chosen)
    assert part_node(column, split, MISSING, rows, 0, 7, aside) == 4
    assert_array_equal(rows, [1, 4, 5, 6, 0, 2, 3])
    tree = np.zeros(3, TREE_WITH_SETS)
    tree["left"], tree["right"], tree["is_leaf"], tree["value"] = [1, 0, 0], [2, 0, 0], [0, 1, 1], [0, 5, 7]
    tree["left_bins"][0] = chosen
    raw = np.zeros(7)
    add_by_bins(column[:, None].copy(), MISSING, tree, raw)
    assert_array_equal(raw, [7, 5, 7, 7, 7, 5, 5])  # missing values go where the node says


@pytest.mark.parametrize("least", [1.0, -1.0], ids=["positive", "of both signs"])
@pytest.mark.parametrize("share", [1, 2, 20])
def test_histograms_are_sums_of_integers(share: int, least: float) -> None:
    """Of more rows than are added at a time, and of largest numbers, whose packed sums have no bit to spare."""
    rng, n = np.random.default_rng(share), 300_000
    bins = rng.integers(0, 256, (n, 5), dtype=np.uint8)
    bins[:, 1] = 7
    gradients = rng.normal(size=n).astype(np.float32)
    hessians = np.where(rng.random(n) < 0.9, 1, least).astype(np.float32)
    numbers, sums = np.empty((n, 2), np.int64), np.zeros((5, 256, 3), np.int64)
    as_integers(gradients, hessians, 2.0**30, 2.0**HESSIAN_BITS, numbers)
    rows = np.sort(rng.choice(n, n // share, replace=False)).astype(np.int32)
    add_histogram(bins, np.ascontiguousarray(bins.T), rows, 3, len(rows), numbers, sums)
    some = rows[3:]
    scaled = gradients.astype(float) * 2**30
    whole = np.copysign(np.floor(np.abs(scaled) + 0.5), scaled), hessians.astype(float) * 2**HESSIAN_BITS, np.ones(n)
    for part, values in enumerate(whole):
        for f in range(5):
            assert_array_equal(sums[f, :, part], np.bincount(bins[some, f], values[some], 256).astype(np.int64))
