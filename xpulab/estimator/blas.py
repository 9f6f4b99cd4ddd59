"""Sets the number of BLAS's threads in the notebook's process, whose cores the engines use."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager
from functools import cache

from threadpoolctl import ThreadpoolController

__all__ = ["few_threads", "one_thread"]

#: Columns up to which one thread does the algebra of a matrix of columns x columns. On cores that others use, such as
#: the engines, the threads of BLAS mostly wait for each other: for the eigenvectors of 300 columns, 2 threads took up
#: to 250 ms of processor time, and 1 thread 15.
_FEW_COLUMNS = 512

#: BLAS has one number for a whole process. Threads take turns, so that each puts back the number of the process.
_TURN = threading.Lock()


def few_threads(columns: int) -> AbstractContextManager[None]:
    """Open a context in which BLAS uses one thread if a matrix has few columns."""
    return one_thread() if columns <= _FEW_COLUMNS else contextlib.nullcontext()


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Open a context in which BLAS uses one thread, and which one thread of this process enters at a time."""
    with _TURN, _blas().limit(limits=1, user_api="blas"):
        yield


@cache
def _blas() -> ThreadpoolController:
    """Find the BLAS libraries that NumPy and SciPy have loaded, which takes 5 ms."""
    return ThreadpoolController()
