"""Nearest neighbours among sparse rows, by blocks of products of queries with rows, which the host's CPU computes.

Distances as products are rounded. All rows that may be as near as the neighbours, as far as rounding can tell, are
compared with the query again, by their differences, so that the results are the same for any number of ranks.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from xpulab.engine.algorithms.passes import whole_rows
from xpulab.engine.algorithms.sparse_rows.scaling import as_stored
from xpulab.engine.engine import Task
from xpulab.kernels.kmeans.sparse_rows import SparseRows
from xpulab.kernels.sparse_products import HostMatrix
from xpulab.sharing.sources import CSRRows, Source

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

__all__ = ["SparseIndex", "sparse_pieces"]

_QUERIES, _ROWS = 512, 8192  # of a block of products, which takes 32 MiB
_PAIRS = 1 << 15  # queries and rows that are compared by their differences at a time


@dataclass(frozen=True)
class SparseIndex:
    """Sparse rows of a rank that can be searched.

    Attributes
    ----------
    rows : SparseRows
    matrix : scipy.sparse.csr_matrix of shape (n_samples, n_features)
        The rows in their dtype; for cosine distances in float64, and divided by their norms.
    cosine : bool
        Whether cosine distances are compared, or else squared Euclidean distances.
    """

    rows: SparseRows
    matrix: csr_matrix
    cosine: bool
    unit: float = 1.0

    @classmethod
    def of(cls, rows: SparseRows, metric: str) -> SparseIndex:
        """Return the index of rows for the metric "euclidean" or "cosine"."""
        matrix = HostMatrix(rows).as_given
        return cls(rows, _directions(matrix) if metric == "cosine" else matrix, metric == "cosine")

    @property
    def n_samples(self) -> int:
        """Number of rows."""
        return self.rows.n_samples

    @property
    def nbytes(self) -> int:
        """Bytes that outlive a task."""
        return self.rows.nbytes + (self.matrix.data.nbytes if self.cosine else 0)

    def nearest(self, queries: csr_matrix, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the k nearest rows to each query, (m, k): what is compared, and the rows' numbers.

        Of rows that are equally near, the one with the lowest number comes first. Infinity and -1 where there are no
        more rows.
        """
        m = queries.shape[0]
        compared, places = np.full((m, k), np.inf), np.full((m, k), -1)
        for first, about, rounding, pairs in self._blocks(queries):
            kept = min(k, about.shape[1])
            limits = np.minimum(np.partition(about, kept - 1, axis=1)[:, kept - 1] + rounding, compared[:, -1])
            of, there = np.nonzero(about <= (limits + rounding)[:, None])
            exact = pairs(of, there)
            every = np.concatenate([np.repeat(np.arange(m), k), of])
            distances = np.concatenate([compared.ravel(), exact])
            numbers = np.concatenate([places.ravel(), first + there])
            order = np.lexsort((np.where(numbers < 0, self.n_samples, numbers), distances, every))
            begins = np.searchsorted(every[order], np.arange(m))
            best = order[begins[:, None] + np.arange(k)]
            compared, places = distances[best], numbers[best]
        return compared, places

    def within(self, queries: csr_matrix, limit: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the number of rows that are no farther than a limit from each query, and what is compared, and which.

        They are in the order of the queries, and then of the rows.
        """
        found = [(np.empty(0, np.int64), np.empty(0), np.empty(0, np.int64))]
        for first, about, rounding, pairs in self._blocks(queries):
            of, there = np.nonzero(about <= (limit + rounding)[:, None])
            exact = pairs(of, there)
            near = exact <= limit
            found.append((of[near], exact[near], first + there[near]))
        every, compared, places = (np.concatenate(each) for each in zip(*found, strict=True))
        order = np.lexsort((places, every))
        return np.bincount(every, minlength=queries.shape[0]), compared[order], places[order]

    def _blocks(self, queries: csr_matrix) -> Iterator[tuple[int, np.ndarray, np.ndarray, Any]]:
        """Yield blocks of rows: the number of the first, what is compared, roughly, how far rounding can have moved it.

        The last is a function that compares some queries with some rows of the block, given by their numbers.
        """
        queries = _directions(queries) if self.cosine else queries
        norms = _norms(queries)
        for first in range(0, self.n_samples, _ROWS):
            rows = self.matrix[first : first + _ROWS].astype(np.float64)
            own = _norms(rows)
            about = (queries @ rows.T).toarray()
            about *= -2
            about += norms[:, None]
            about += own
            longest = int(max(np.diff(queries.indptr).max(initial=0), np.diff(rows.indptr).max(initial=0)))
            rounding = 8 * (longest + 16) * np.finfo(np.float64).eps * (norms + own.max(initial=0))
            if self.cosine:
                about = about / 2 + ((norms == 0)[:, None] / 2 + (own == 0) / 2)
                rounding = np.full_like(norms, rounding.max(initial=0) + 1e-15)

            def pairs(of: np.ndarray, there: np.ndarray, rows: Any = rows, own: np.ndarray = own) -> np.ndarray:
                parts = [np.empty(0)]
                for at in range(0, len(of), _PAIRS):
                    some, others = of[at : at + _PAIRS], there[at : at + _PAIRS]
                    squares = _norms(queries[some] - rows[others])
                    if self.cosine:  # a row of zeros has no direction: its distance from all others is 1
                        squares = np.clip(squares / 2 + (norms[some] == 0) / 2 + (own[others] == 0) / 2, 0, 2)
                    parts.append(squares)
                return np.concatenate(parts)

            yield first, about, rounding, pairs


def _norms(rows: csr_matrix) -> np.ndarray:
    """Return the squared norms of rows in float64."""
    lengths = np.diff(rows.indptr)
    found, there = np.zeros(rows.shape[0]), np.flatnonzero(lengths)
    if len(there):
        found[there] = np.add.reduceat(np.square(rows.data, dtype=np.float64), rows.indptr[there])
    return found


def _directions(rows: csr_matrix) -> csr_matrix:
    """Return rows in float64 divided by their norms; rows of zeros stay as they are."""
    made = rows.astype(np.float64)
    norms = np.sqrt(_norms(made))
    made.data /= np.repeat(np.where(norms == 0, 1, norms), np.diff(made.indptr))
    return made


def sparse_pieces(task: Task, queries: Source) -> Iterator[tuple[int, Any]]:
    """Yield some queries at a time, CSR matrices of float64, with the number of the first; the same ones on all ranks.

    Those of a handle are sent by the rank that has them.
    """
    from scipy.sparse import csr_matrix  # a start does not wait for it

    def told(first: int) -> None:
        if task.comm.rank == 0:
            task.show(doing="query", done=first, steps=queries.shape[0])
        task.check()

    if isinstance(queries, CSRRows):
        parts = tuple(part.open() for part in (queries.data, queries.indices, queries.indptr))
        whole = csr_matrix(parts, queries.shape, copy=False)
        for first in range(0, queries.shape[0], _QUERIES):
            told(first)
            yield first, whole[first : first + _QUERIES].astype(np.float64)
        return
    mine = HostMatrix(as_stored(whole_rows(task, queries))).as_given
    for owner, (begin, end) in enumerate(itertools.pairwise(queries.bounds)):
        for first in range(begin, end, _QUERIES):
            told(first)
            some = mine[first - begin : min(first + _QUERIES, end) - begin].astype(np.float64)
            yield first, task.comm.bcast(some if task.comm.rank == owner else None, owner)
