"""A rank names the first row with NaN or infinity, also of rows that it does not keep."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

import numpy as np
import pytest

from xpulab.engine.engine import Task
from xpulab.engine.finite import require_all_finite, require_no_infinity
from xpulab.kernels.rows import Fill, Rows, copying
from xpulab.kernels.streamed import StreamedRows

N = 300


def of(task: Task, X: np.ndarray, kept: int | None) -> Rows | StreamedRows:
    @contextlib.contextmanager
    def reading() -> Iterator[Fill]:
        yield copying(X)

    if kept is None:
        return Rows.upload(task.device, X)
    return StreamedRows.read(task.device, (N, 2), kept, X.dtype, reading, piece_bytes=1)


@pytest.mark.parametrize("kept", [None, 64, 0])
def test_the_first_row_is_named(task: Task, kept: int | None) -> None:
    X = np.ones((N, 2), np.float32)
    require_all_finite(task, of(task, X, kept), [0, N])
    require_no_infinity(task, of(task, X, kept))
    X[[200, 280], [1, 0]] = np.nan
    require_no_infinity(task, of(task, X, kept))
    for arguments, said in (
        ({}, "Input X contains NaN or infinity; the first such row is row 200."),
        ({"name": "y", "own": True}, "Input y contains NaN or infinity; the first such row is row 200 of rank 0."),
        ({"names": ["a", "b"]}, "contains null, NaN or infinity; the first such row is row 200, column 'b'."),
    ):
        with pytest.raises(ValueError, match=re.escape(said)):
            require_all_finite(task, of(task, X, kept), [0, N], **arguments)
    X[5, 0] = np.inf
    with pytest.raises(ValueError, match="contains infinity"):
        require_no_infinity(task, of(task, X, kept))
