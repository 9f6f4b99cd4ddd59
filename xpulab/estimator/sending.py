"""Sends the rows, targets and weights of a call to the engines, and places its results with one entry per row."""

from __future__ import annotations

import functools
import itertools
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse
from sklearn.base import BaseEstimator

from xpulab.checks import check_array, place_named
from xpulab.csr import nbytes_of, sent_csr
from xpulab.data import Outgoing, ShardedArray
from xpulab.deploy.ranks import Ranks
from xpulab.deploy.tasks.limits import LEAST, Demand
from xpulab.estimator.columns import ScannedColumn, bounds_in
from xpulab.estimator.rows import FLOATS
from xpulab.estimator.sent_once import SentOnce
from xpulab.estimator.spooling import spooled
from xpulab.exceptions import NotEnoughMemoryError
from xpulab.scanning import Scan, scanned
from xpulab.sharing import host_memory
from xpulab.sharing.memory import SharedBlock, reachable
from xpulab.sharing.sources import BlockRows, ResultRows, SharedArray, Source

__all__ = ["IN_PASSES", "Packing", "Result", "demand_of"]

#: Tasks that take rows in passes: of files that do not fit, the ranks keep a part, and read the rest in each pass.
IN_PASSES = frozenset({
    "BisectingKMeans.fit", "GaussianMixture.fit", "GaussianMixture.predict", "GaussianNB.fit",
    "GeneralizedLinear.fit", "GeneralizedLinear.score", "HistGradientBoosting.fit", "HuberRegressor.fit",
    "KMeans.fit", "KMeans.predict", "LinearSVC.fit", "LinearSVR.fit", "LogisticRegression.fit",
    "LogisticRegression.paths", "LogisticRegression.score", "MiniBatchKMeans.fit", "QuantileRegressor.fit",
    "batch_triangles", "bins.edges", "class_sums", "columns.statistics", "discriminant.each", "discriminant.scatter",
    "encoding.categories", "encoding.quantiles", "encoding.target_sums", "forest.grow", "frequencies",
    "isolation.rows", "labels.classes", "least_squares", "leave_one_out", "linear_products", "linear_score",
    "metrics.agreeing", "metrics.areas", "metrics.clusters", "metrics.contingency", "metrics.distinct",
    "metrics.errors", "metrics.losses", "metrics.probabilities", "metrics.regression", "metrics.scores", "moments",
    "moments_of_weighted", "neighbors.index", "products", "quantiles", "randomized_svd", "shifted_triangle",
    "triangular",
})  # fmt: skip


class Result:
    """A result with one entry per row: an array in this process, or rows that stay on the engines.

    Parameters
    ----------
    n_columns : int or None
        Number of columns of the result; None for a result of shape (n_samples,).
    dtype : numpy.dtype
    rows : bool
        Whether the result is rows. If X is a `ShardedArray`, these stay on the engines.
    as_sparse : bool
        Whether rows that stay on the engines are sparse.
    nan : bool, optional
        Whether the rows may have NaN; by default, whether X may.
    described : sequence of Column, optional
        What is known of the columns of rows that stay on the engines, if they are a table.

    Attributes
    ----------
    value : numpy.ndarray or ShardedArray
        The result, after the task has ended.
    """

    def __init__(
        self,
        n_columns: int | None,
        dtype: npt.DTypeLike,
        *,
        rows: bool = False,
        as_sparse: bool = False,
        nan: bool | None = None,
        described: Any = None,
    ) -> None:
        self.n_columns = n_columns
        self.described = described
        self.nan = nan
        self.dtype = np.dtype(dtype)
        self.rows = rows
        self.as_sparse = as_sparse
        self.value: Any = None

    def _shape(self, X: Any) -> tuple[int, ...]:
        return (X.shape[0],) if self.n_columns is None else (X.shape[0], self.n_columns)

    def stays_with(self, X: Any) -> bool:
        """Return whether the result is rows that stay on the engines, as those of X."""
        return self.rows and isinstance(X, ShardedArray) and X.stays

    def nbytes(self, X: Any) -> int:
        """Return the bytes of the result of X."""
        return math.prod(self._shape(X)) * self.dtype.itemsize

    def of_parts(self, X: Any, parts: Iterable[slice]) -> Iterator[tuple[Any, Result]]:
        """Yield parts of X and a result for each, which is copied into this result when it is there."""
        self.value = np.empty(self._shape(X), self.dtype)
        for part in parts:
            result = Result(self.n_columns, self.dtype, rows=self.rows, nan=self.nan)
            yield X[part], result
            self.value[part] = result.value

    def place(self, cluster: Ranks, outgoing: Outgoing, X: Any, on_disk: bool = False) -> dict[str, Any]:
        """Allocate the result, or make a handle for it; return the argument that tells the task where to put it."""
        shape = self._shape(X)
        if self.stays_with(X):
            nan = X.nan if self.nan is None else self.nan
            stored = [0] * len(X.counts) if self.as_sparse else None  # until the engines have told how many there are
            self.value = cluster.made_handle(shape, self.dtype, X.bounds, self.described, nan=nan, stored=stored)
            outgoing.after_error(self.value.discard)
            return {"kept": self.value.handle}
        target, self.value = cluster.receive(outgoing, getattr(X, "bounds", None), shape, self.dtype, on_disk)
        return {"target": target}


class Packing:
    """Sends rows, weights and targets to the ranks, as often as needed.

    Parameters
    ----------
    estimator : sklearn.base.BaseEstimator
    ranks : Ranks
    X : array, CSR matrix or ShardedArray
        As `checked_rows` returned it.
    weights : numpy.ndarray of shape (n_samples,) or ShardedArray, optional
    targets : numpy.ndarray of shape (n_samples,) or (n_samples, n_targets), or ShardedArray, optional
    rules : mapping, optional
        The rules by which X was checked.
    held : SentOnce, optional
        If it has checked X, the rows stay on the engines for the next call.
    send_more : callable, optional
        Sends other arrays each time when the rows are sent, and returns the arguments that tell where they are.
    task : str
        Name of the task that gets the rows.
    fits : bool
        Whether the call is a fit, of which a result is only a part.
    tell : callable, optional
        Called as `spooled` does while rows that do not fit into memory are written to a file.

    Attributes
    ----------
    again : bool
        Whether the rows can be sent again, because this process has them.
    spool : Scan or None
        The rows in a file without a name, which the engines read in passes, if they are those of this process, and do
        not fit into memory.
    on_disk : bool
        Whether the result belongs on the disk, because the rows are taken in passes, and it would take more than a
        quarter of the memory that was free when `require_room` was called.
    """

    def __init__(
        self,
        estimator: BaseEstimator,
        ranks: Ranks,
        X: Any,
        weights: Any = None,
        targets: Any = None,
        rules: Mapping[str, Any] | None = None,
        held: SentOnce | None = None,
        send_more: Callable[[Outgoing], dict[str, Any]] | None = None,
        task: str = "",
        fits: bool = False,
        tell: Callable[[int, int, int], None] = lambda done, parts, nbytes: None,
    ) -> None:
        self._estimator = estimator
        self._ranks = ranks
        self._X = X
        self._result = _result_of_engines(X)
        self._scan = scanned(X)  # once, so that new engines read the same rows after a loss
        self._from_files = isinstance(X, ScannedColumn) or (self._scan is not None and bool(self._scan.files))
        self._held = held if held is not None and X is held.checked else None
        self._passes = self._from_files and task in IN_PASSES
        self._spools = False
        self._task = task
        self._fits = fits
        self._tell = tell
        self.spool: Scan | None = None
        self._result_bytes = 0.0
        self.on_disk = False
        self._send_more = send_more
        self._weights = weights
        self._targets = targets
        self._rules = dict(rules or {})
        self.again = all(each.again for each in (X, targets) if isinstance(each, ShardedArray))

    def __call__(self, outgoing: Outgoing) -> dict[str, Any]:
        """Send the rows, and return the arguments ``source``, ``weights`` and, if there are any, ``targets``."""
        weights: SharedArray | Source | None = None
        if isinstance(self._weights, ScannedColumn):
            weights = self._weights.at(self._bounds)
        elif isinstance(self._weights, ShardedArray):
            weights = self._weights.source(self._ranks)
        elif self._weights is not None:
            weights = outgoing.send(self._weights)
        sent: dict[str, Any] = {"source": self._source(outgoing), "weights": weights}
        if self._targets is not None:
            sent["targets"] = self._sent_targets(outgoing)
        return sent if self._send_more is None else sent | self._send_more(outgoing)

    def _source(self, outgoing: Outgoing) -> Source:
        source = self._source_to_check(outgoing)
        if self._rules.get("ensure_all_finite") is False:  # the estimator takes NaN and infinity
            return replace(source, nan=True, finite=True)
        return source

    def _source_to_check(self, outgoing: Outgoing) -> Source:
        X, ranks = self._X, self._ranks
        nan = self._rules.get("ensure_all_finite") == "allow-nan"
        if isinstance(X, ShardedArray):
            source = X.source(ranks)
            if isinstance(source, BlockRows) and self._passes:
                source = replace(source, kept=ranks.that_fit(self._demand(self._result_bytes)))
            return replace(source, nan=True) if nan else source
        bounds = self._bounds
        if self._spools:
            self._scan = self.spool = self._spooled(outgoing)
        if self._scan is not None and self._from_files:
            source = self._scan.block_rows(bounds, nan=nan)
            return replace(source, kept=ranks.that_fit(self._demand(self._result_bytes))) if self._passes else source
        if sparse.issparse(X):
            return sent_csr(outgoing, X, bounds)
        on_engines = self._held.source(ranks) if self._held is not None else None
        if on_engines is not None:
            return on_engines
        if self._result is not None:
            source = ResultRows(X.shape, X.dtype, bounds, self._result, nan=nan)
        else:
            source = outgoing.send_rows(X, bounds, self._look)
            source = replace(source, nan=True) if nan else source
        if self._held is None:
            return source
        blocks: list[SharedBlock] = []  # rows that are sent again are put into new blocks
        keep = self._held.hold(ranks, X, bounds, blocks)
        outgoing.after_error(self._held.discard)
        outgoing.give_to(blocks)
        return replace(source, keep=keep)

    def _look(self) -> None:
        """Look for NaN and infinity as scikit-learn does. The shape and the column names were checked before."""
        if self._rules.get("ensure_all_finite") is False:
            return
        if isinstance(self._X, Scan):
            self._X.require_finite(self._rules.get("ensure_all_finite") == "allow-nan")
            return
        with place_named(self._X):
            check_array(
                self._X,
                dtype=FLOATS,
                ensure_all_finite=self._rules.get("ensure_all_finite", True),
                estimator=self._estimator,
                input_name="X",
            )

    def _sent_targets(self, outgoing: Outgoing) -> Source:
        y = self._targets
        if isinstance(y, ShardedArray):
            return y.source(self._ranks)
        numbers = y if y.dtype in FLOATS else y.astype(self._X.dtype)
        return outgoing.send_rows(numbers.reshape(len(y), -1), self._bounds)

    @functools.cached_property
    def _bounds(self) -> list[int]:
        handles = (each for each in (self._X, self._targets) if isinstance(each, ShardedArray))
        return bounds_in(next(handles, self._X), self._ranks.size)

    def require_room(self, result: float = 0.0) -> None:
        """Raise `NotEnoughMemoryError` if there is no room for the rows, and for a result of so many bytes here.

        If a call can take rows of this process in passes, it will take these from a file without a name.
        """
        if result:
            self.on_disk = self._passes and result > LEAST and result > host_memory.available() / 4
            self._result_bytes = 0.0 if self.on_disk else result
        try:
            self._ranks.require_room(self._demand(self._result_bytes if result else 0.0))
        except NotEnoughMemoryError:
            if not self._can_spool():
                raise
            self._spools = self._from_files = self._passes = True
            self.require_room(result)

    def _can_spool(self) -> bool:
        """Return whether all engines can read these rows of this process in passes, from a file of this host."""
        X = self._X
        dense = X.dtype in FLOATS if isinstance(X, np.ndarray) else isinstance(X, Scan)
        takes = dense and X.ndim == 2 and not self._from_files and self._task in IN_PASSES
        return takes and all(fact.here for fact in self._ranks.facts)

    def _spooled(self, outgoing: Outgoing) -> Scan:
        """Return a scan of the rows in a file without a name, which this writes, unless an earlier call has."""
        if self.spool is not None:  # new engines read the same file
            return self.spool
        found = None if self._held is None else self._held.spool
        if found is None:
            found = spooled(self._X, self._tell)
            outgoing.doubts.append(self._look)
        spool, close = found
        outgoing.after_error(close)
        if self._held is not None:
            self._held.spool = found
            outgoing.after_error(self._held.discard)
        return spool

    def _demand(self, result: float) -> Demand:
        X = self._X
        held = self._held is not None and self._held.source(self._ranks) is not None
        beside = self._weights, self._targets
        aligned = sum(a.nbytes for a in beside if isinstance(a, np.ndarray | ScannedColumn))
        there = held or (isinstance(X, ShardedArray) and not self._from_files)
        demand = demand_of(self._estimator, X, self._bounds, aligned, there, not self._from_files, result)
        return replace(demand, fits=self._fits, passes=self._passes)


def _result_of_engines(X: object) -> SharedArray | None:
    """Return where in shared memory rows are that the engines have returned, so that they can read them there.

    None if X is not such a result, or a part of one, of float32 or float64 in C order.
    """
    if not isinstance(X, np.ndarray) or X.ndim != 2 or X.dtype not in (np.float32, np.float64):
        return None
    found = reachable(X) if X.size and X.flags.c_contiguous else None
    if found is None:
        return None
    path, offset = found
    return SharedArray(path, X.shape, X.dtype, offset)


def demand_of(
    estimator: BaseEstimator, X: Any, bounds: list[int], aligned: int, there: bool, sent: bool, result: float
) -> Demand:
    """Return the memory that a call needs for X, for arrays aligned with it, and for a result in this process."""
    stored = hasattr(X, "nnz")  # as sparse rows have, here and on the engines
    nbytes = nbytes_of(X) if stored else X.dtype.itemsize * math.prod(X.shape)
    per_row, share = getattr(estimator, "_work_memory", (0.0, 0.0))
    share += getattr(estimator, "_stored_work", 0.0) if stored else 0.0
    return Demand(
        what=f"X of {' × '.join(f'{n:,}' for n in X.shape)} {X.dtype}",
        counts=[last - first for first, last in itertools.pairwise(bounds)],
        row_bytes=float((nbytes + aligned) / X.shape[0]),
        there=there,
        sent=sent and not there,
        adopted=not stored,
        work_per_row=per_row,
        work_share=share,
        least=getattr(estimator, "_least_row", 0.0),
        every_row=aligned / X.shape[0] + getattr(estimator, "_every_row", 0.0),
        result=result,
        double=X.dtype == np.float64,
        take_parts=_with_partial_fit(type(estimator)),  # type: ignore[arg-type]  # a class is hashable
    )


@functools.cache
def _with_partial_fit(kind: type) -> list[str]:
    """Return the estimators that have `partial_fit`, of xpulab's package in which a class is."""
    homes = (each.__module__.split(".")[:2] for each in kind.__mro__ if each.__module__.startswith("xpulab."))
    return _partial_fits_of(next((name for _, name in homes if name not in ("spmd", "torch")), ""))


@functools.cache
def _partial_fits_of(package: str) -> list[str]:
    home = sys.modules.get(f"xpulab.{package}")
    return [name for name in getattr(home, "__all__", ()) if hasattr(getattr(home, name), "partial_fit")]
