"""Sets the number of BLAS's threads in the notebook's process, whose cores the engines use."""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import cache

from threadpoolctl import ThreadpoolController

__all__ = ["few_threads"]

#: Columns up to which one thread does the algebra of a matrix of columns x columns. On cores that others use, such as
#: the engines, the threads of BLAS mostly wait for each other: for the eigenvectors of 300 columns, 2 threads took up
#: to 250 ms of processor time, and 1 thread 15.
_FEW_COLUMNS = 512


def few_threads(columns: int) -> AbstractContextManager[object]:
    """A context in which BLAS uses one thread if a matrix has few columns."""
    return _blas().limit(limits=1 if columns <= _FEW_COLUMNS else None, user_api="blas")


@cache
def _blas() -> ThreadpoolController:
    """Find the BLAS libraries that NumPy and SciPy have loaded, which takes 5 ms."""
    return ThreadpoolController()
