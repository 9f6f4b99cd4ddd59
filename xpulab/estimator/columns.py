"""Columns of scans as targets, labels and weights, which the engines read beside their rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from scipy import sparse

from xpulab.data import Holder, ShardedArray
from xpulab.deploy.ranks import Ranks
from xpulab.scanning import Scan
from xpulab.sharing.answers import WeightFacts
from xpulab.sharing.sources import BlockRows, bounds_by_stored, bounds_of
from xpulab.tables import refuse_rounded

__all__ = ["ScannedColumn", "beside", "bounds_in", "in_parts"]


class ScannedColumn(ShardedArray):
    """A column of a scan, of which each engine reads the numbers of its rows whenever a task needs them.

    Parameters
    ----------
    cluster : Ranks
    scan : Scan of shape (n_samples,)
    bounds : list of int
        Rank r reads the rows from bounds[r] up to, not including, bounds[r + 1].
    dtype : dtype
    argument : str
        Name of the argument, for messages.
    """

    again = True

    def __init__(self, cluster: Holder, scan: Scan, bounds: list[int], dtype: npt.DTypeLike, argument: str) -> None:
        super().__init__(cluster, scan.shape, dtype, bounds)
        self.scan = scan
        self._argument = argument

    def source(self, cluster: Holder) -> BlockRows:
        """Return what tells the engines to read these numbers."""
        return self.at(self.bounds)

    def at(self, bounds: list[int]) -> BlockRows:
        """Return what tells the engines to read these numbers with other bounds."""
        return replace(self.scan.block_rows(bounds, self.dtype), argument=self._argument)

    def part(self, rows: slice | None, X: Any) -> ScannedColumn:
        """Return some consecutive numbers, for the rows X."""
        scan = self.scan[rows or slice(None)]
        return ScannedColumn(self.cluster, scan, bounds_in(X, len(self.counts)), self.dtype, self._argument)

    def cast(self, dtype: npt.DTypeLike) -> ScannedColumn:
        """Return these numbers in another dtype."""
        return ScannedColumn(self.cluster, self.scan, self.bounds, dtype, self._argument)

    def gather(self) -> npt.NDArray[Any]:
        """Read the numbers into this process, in the dtype of their column."""
        return self.scan.read()

    def labels(self, found: npt.NDArray[Any]) -> npt.NDArray[Any] | None:
        """Return the distinct numbers that engines have found in the dtype of the column; None if they were rounded."""
        return None if self.rounds(found) else found.astype(self.scan.numeric_dtypes[0])

    def rounds(self, labels: npt.NDArray[Any]) -> bool:
        """Return whether the engines may have rounded labels of this size."""
        return len(labels) > 0 and bool(np.abs(labels).max() >= 2.0 ** (np.finfo(self.dtype).nmant + 1))

    def require_exact(self, found: npt.NDArray[Any], column: int = 0) -> None:
        """Raise ValueError if these are labels that float64 may have rounded: whole numbers beyond 2**53."""
        refuse_rounded(self.scan.described[column], found)

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> Any:
        """Read the numbers into this process."""
        found = self.gather()
        own = self.dtype if found.dtype.kind == "f" else found.dtype  # float64 would round whole numbers
        return found.astype(dtype or own, copy=False)

    def look(self) -> None:
        """Have the engines look for NaN and infinity now, and not when a task needs the numbers.

        Raises
        ------
        ValueError
            If there is any; the message has its row.
        """
        self._facts()

    def _facts(self) -> WeightFacts:
        source = in_parts(self.source(self.cluster), cast("Ranks", self.cluster))
        facts: WeightFacts = self.cluster.call("weights.facts", {"source": source}).results[0]
        return facts

    def check_weights(self, dtype: npt.DTypeLike, only_non_negative: bool) -> None:
        """Have the engines check these sample weights.

        Raises
        ------
        ValueError
            If a weight is NaN or infinite, if all weights are zero, or, with `only_non_negative`, if a weight is
            negative.
        """
        facts = self._facts()
        if only_non_negative and facts["negative"] is not None:
            weight, place = facts["negative"]
            raise ValueError(f"Negative values in data passed to sample_weight: {weight} for row {place}.")
        if not facts["some"]:
            raise ValueError("sample_weight is zero for all rows; expected at least one positive weight.")


def in_parts(source: BlockRows, cluster: Ranks) -> BlockRows:
    """Have the engines read rows in parts, of which they keep nothing; not on several hosts.

    An engine whose host does not have the files gets its rows by messages, and cannot read them again.
    """
    return replace(source, kept=[0] * cluster.size) if all(fact.here for fact in cluster.facts) else source


def beside(y: Any, X: Any, cluster: Ranks, dtype: npt.DTypeLike, argument: str = "y") -> Any:
    """Return a column of numbers in files as what the engines read beside the rows of X; anything else as it is.

    Other columns of scans are read into this process: those of a table are here, and the engines have no strings.
    """
    if not isinstance(y, Scan) or y.ndim != 1:
        return y
    double = np.dtype(dtype) == np.float64 and not all(fact.device.float64 for fact in cluster.facts)
    if not y.files or double or np.dtype(object) in y.numeric_dtypes or y.shape[0] != X.shape[0]:
        return y.read()
    return ScannedColumn(cluster, y, bounds_in(X, cluster.size), dtype, argument)


def bounds_in(X: Any, size: int) -> list[int]:
    """Return the bounds of the block of each rank in the rows of X."""
    if isinstance(X, ShardedArray):
        return X.bounds
    if isinstance(X, Scan):
        return X.bounds_for(size)
    return bounds_by_stored(X.indptr, size) if sparse.issparse(X) else bounds_of(X.shape[0], size)
