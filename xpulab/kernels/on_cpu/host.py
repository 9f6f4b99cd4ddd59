"""Calls machine code for the computations of the host between two launches.

With few rows, 50 calls of NumPy would take longer than a kernel. The code is in a library of the catalogue, which was
compiled from `xpulab.kernels.on_cpu.host_functions`. It gets the addresses of arrays, so the functions here check that
each array has the right dtype and is contiguous.
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from xpulab.exceptions import KernelBuildError
from xpulab.kernels.on_cpu import (  # they add their functions
    boosting_functions,  # noqa: F401
    few_functions,  # noqa: F401
    forest_functions,  # noqa: F401
    passing_functions,  # noqa: F401
    sparse_functions,  # noqa: F401
    tree_functions,  # noqa: F401
    tree_search_functions,  # noqa: F401
)
from xpulab.kernels.on_cpu.host_functions import FUNCTIONS
from xpulab.kernels.runtime.catalogue import COMMAND
from xpulab.libraries import oneapi

__all__ = [
    "LEVELS",
    "add_columns",
    "add_partial_sums",
    "at",
    "compare_with",
    "count_positive",
    "finish",
    "function_of",
    "functions",
    "inertia_of_sums",
    "library_file",
    "move_centers",
    "pack_centers",
    "widen_moved",
]

#: Levels of x86-64 for which there is a library, best first -> Linux's names of the instructions that it uses.
LEVELS: dict[str, frozenset[str]] = {
    "x86-64-v4": frozenset(
        ["avx2", "bmi1", "bmi2", "fma", "f16c", "movbe", "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"]
    ),
    "x86-64-v3": frozenset(["avx2", "bmi1", "bmi2", "fma", "f16c", "movbe"]),
    "x86-64": frozenset(),
}
_address, _from_buffer = ctypes.addressof, ctypes.c_char.from_buffer
_EPSILON = {"f": float(np.finfo(np.float32).eps), "d": float(np.finfo(np.float64).eps)}
_FLOAT64, _INT32, _INT64 = np.dtype(np.float64), np.dtype(np.int32), np.dtype(np.int64)
_ARGUMENTS = {"f8": ctypes.c_double, "i8": ctypes.c_int64}


def pack_centers(
    shift: npt.NDArray[Any],
    centers: npt.NDArray[Any],
    moved: npt.NDArray[np.float64],
    group: int,
    anew: bool,
    packed: npt.NDArray[Any],
) -> None:
    """Write the centres in the order in which the kernel of `find_nearest` reads them.

    Parameters
    ----------
    shift : numpy.ndarray of shape (n_features,)
    centers : numpy.ndarray of shape (n_clusters, n_features)
    moved : numpy.ndarray of float64 of shape (n_clusters,)
        By how much the slacks of each centre's rows have shrunk.
    group : int
        Number of centres whose distances are computed together.
    anew : bool
        Whether the sums begin with all rows.
    packed : numpy.ndarray of the dtype of the rows
        The result: the shift; the squared norms; -2 times the centres, `group` by `group`, feature by feature; `moved`;
        twice the largest squared norm; the rounding error of `moved`; and `anew`. The last group is filled up with
        centres at an infinite distance.
    """
    dtype = packed.dtype
    functions(dtype).pack_centers(
        at(shift, dtype), at(centers, dtype), at(moved, _FLOAT64), *centers.shape, group, anew,
        4 * _EPSILON[dtype.char], at(packed, dtype),
    )  # fmt: skip


def widen_moved(before: npt.NDArray[np.float64], centers: npt.NDArray[Any], moved: npt.NDArray[np.float64]) -> None:
    """Add to `moved`, for each centre, its own step and the longest step of the others; copy `centers` to `before`."""
    steps = np.empty(len(centers))
    functions(centers.dtype).widen_moved(
        at(before, _FLOAT64), at(centers, centers.dtype), *centers.shape, at(steps, _FLOAT64), at(moved, _FLOAT64)
    )


def add_partial_sums(partial: npt.NDArray[Any], workers: int, width: int, sums: npt.NDArray[np.float64]) -> float:
    """Add the partial sums of the workers of a kernel to the sums of all rows.

    Parameters
    ----------
    partial : numpy.ndarray of the dtype of the rows, of shape (workers * k * 2 * width + workers,)
        The sums of each worker with their rounding errors (k, 2, width), then each worker's number of changed labels.
    workers, width : int
    sums : numpy.ndarray of float64 of shape (k, n_features + 1)
        Changed in place.

    Returns
    -------
    float
        Number of changed labels.
    """
    return functions(partial.dtype).add_partial_sums(
        at(partial, partial.dtype), workers, width, *sums.shape, at(sums, _FLOAT64)
    )


def add_columns(
    columns: npt.NDArray[np.int32],
    values: npt.NDArray[Any],
    middle: npt.NDArray[np.float64],
    squared: bool,
    totals: npt.NDArray[np.float64],
) -> None:
    """Add each value to the total of its column; if `squared`, its contribution to the sum of ``(x - middle)**2``."""
    functions(values.dtype).add_columns(
        at(columns, _INT32), at(values, values.dtype), len(values), at(middle, _FLOAT64), squared,
        at(totals, _FLOAT64),
    )  # fmt: skip


def count_positive(labels: npt.NDArray[np.int32], weights: npt.NDArray[Any], n_clusters: int) -> npt.NDArray[np.int64]:
    """Return the number of rows of positive weight in each cluster: shape (n_clusters,)."""
    counts = np.zeros(n_clusters, np.int64)
    functions(weights.dtype).count_positive(
        at(labels, _INT32), at(weights, weights.dtype), len(labels), at(counts, _INT64)
    )
    return counts


def inertia_of_sums(squares: float, totals: npt.NDArray[np.float64], centers: npt.NDArray[Any]) -> float:
    """Compute the inertia from the sums of an iteration: ``|x - c|**2 = |x|**2 - 2 x.c + |c|**2``, summed by cluster.

    Parameters
    ----------
    squares : float
        Weighted sum of the rows' squared norms.
    totals : numpy.ndarray of float64 of shape (n_clusters, n_features + 1)
        For each cluster the sums of its rows, and its weight.
    centers : numpy.ndarray of shape (n_clusters, n_features)

    Returns
    -------
    float
    """
    return functions(centers.dtype).inertia_of_sums(
        squares, at(totals, _FLOAT64), at(centers, centers.dtype), *centers.shape
    )


def move_centers(totals: npt.NDArray[np.float64], centers: npt.NDArray[Any], moved: npt.NDArray[Any]) -> float:
    """Write the means of the clusters to `moved`, and return the sum of their squared distances to `centers`.

    `totals` are those of `inertia_of_sums`.

    As in scikit-learn, an empty cluster gets the present value of the heaviest cluster. If the heaviest cluster has a
    higher index, this value is still a sum, not a mean. This matters only for data with too few distinct rows.
    """
    dtype = centers.dtype
    return functions(dtype).move_centers(at(totals, _FLOAT64), at(centers, dtype), *centers.shape, at(moved, dtype))


def finish(
    squares: float, totals: npt.NDArray[np.float64], centers: npt.NDArray[Any], moved: npt.NDArray[Any]
) -> tuple[float, float]:
    """Return the end of an iteration: the results of `inertia_of_sums` and `move_centers`; -1 if a cluster is empty."""
    dtype = centers.dtype
    ended = (ctypes.c_double * 2)()
    functions(dtype).finish(
        squares, at(totals, _FLOAT64), at(centers, dtype), *centers.shape, at(moved, dtype), ctypes.addressof(ended)
    )
    return ended[0], ended[1]


def compare_with(
    rows: npt.NDArray[Any],
    queries: npt.NDArray[np.float64],
    indices: npt.NDArray[np.int64],
    kind: Literal["product", "squares", "absolute", "largest"],
) -> npt.NDArray[np.float64]:
    """Compare each query with chosen rows, in float64.

    Parameters
    ----------
    rows : numpy.ndarray of shape (n, n_features)
    queries : numpy.ndarray of float64 of shape (m, n_features)
    indices : numpy.ndarray of int64 of shape (m, room)
        Indices of the rows to compare; -1 for none.
    kind : {"product", "squares", "absolute", "largest"}
        ``x.y``, or the sum of the squared, the sum of the absolute, or the largest of the differences.

    Returns
    -------
    numpy.ndarray of float64 of shape (m, room)
        Infinity where there is no row.
    """
    found = np.empty(indices.shape)
    code = ("product", "squares", "absolute", "largest").index(kind)
    functions(rows.dtype).compare_with(
        at(rows, rows.dtype), at(queries, _FLOAT64), at(indices, _INT64), *indices.shape, rows.shape[1], code,
        at(found, _FLOAT64),
    )  # fmt: skip
    return found


def library_file(level: str) -> Path:
    """Return the library for a level of x86-64."""
    return Path(__file__).parents[1] / "catalogue" / f"host-{level}.so"


def at(array: npt.NDArray[Any], dtype: np.dtype[Any]) -> int:
    """Return the address of an array.

    Raises
    ------
    TypeError
        If the array has another dtype, or is not contiguous.
    """
    if array.dtype is not dtype and array.dtype != dtype:
        raise TypeError(f"an array of {array.dtype} was given, {dtype} expected")
    try:
        return _address(_from_buffer(array))  # type: ignore[arg-type]  # three times as fast as ctypes.data
    except (TypeError, ValueError):  # the array is read-only, not contiguous, or empty
        if not array.flags.c_contiguous:
            raise TypeError(f"an array of shape {array.shape} has gaps, or is not in C order") from None
        return array.ctypes.data


def function_of(name: str) -> Any:
    """Return a function of the library none of whose arguments is of the rows' dtype."""
    return getattr(functions(_FLOAT64), name)


_loaded: dict[str, Any] = {}  # dtype.char -> functions; the hash of a character takes a tenth of the time of a dtype's


def functions(dtype: np.dtype[Any]) -> Any:
    """Return the functions of the library for rows of one dtype."""
    found = _loaded.get(dtype.char)
    if found is None:
        found = SimpleNamespace()
        for name, declared in FUNCTIONS.items():
            function = getattr(_library(), f"{name}_{dtype.str[1:] if declared.has_rows else 'f8'}")
            function.argtypes = [_ARGUMENTS.get(word, ctypes.c_void_p) for word in declared.signature]
            function.restype = _ARGUMENTS.get(declared.returns)
            setattr(found, name, function)
        _loaded[dtype.char] = found  # when it is complete: another thread may look for it
    return found


@cache
def _library() -> ctypes.CDLL:
    has = set(" ".join(oneapi.processor()).split())
    path = library_file(next(level for level, needs in LEVELS.items() if needs <= has))
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise KernelBuildError(
            f"{path} cannot be loaded: {error}; install xpulab again, or in a clone of its repository type: {COMMAND}"
        ) from error
