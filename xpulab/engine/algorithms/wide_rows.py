"""Fewer rows than columns: each rank gets some columns of all rows, and what is factorised is rows x rows.

For the centred rows A, of which each has the square root of its weight as a factor, the products ``A @ A.T`` are the
sum over the ranks of the products of their columns [1]_. Their eigenvectors U and eigenvalues S**2 give the whole
decomposition: singular values S, and right vectors ``A.T @ U / S``. Where the squares would lose too many digits, U and
S are those of the triangle of a QR decomposition of ``A.T``, of which each rank decomposes its columns and rank 0 the
triangles of all [2]_. Everything is computed on the hosts in float64; the ranks exchange each number once.

References
----------
.. [1] C. Saunders, A. Gammerman, V. Vovk, "Ridge Regression Learning Algorithm in Dual Variables", ICML 1998, 515-521.
.. [2] J. Demmel, L. Grigori, M. Hoemmen, J. Langou, "Communication-optimal parallel and sequential QR and LU
   factorizations", SIAM Journal on Scientific Computing 34 (2012), A206-A239.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from xpulab.engine.algorithms.qr import merged
from xpulab.engine.comm import FEW, Communicator, Interrupted
from xpulab.engine.dataset import Data, on_host
from xpulab.engine.engine import Task

__all__ = ["Spectrum", "WideRows", "few", "few_rows"]

_MOST = 4096  # rows; the time of a factorisation grows as their number cubed
_CHUNK = 1024  # columns that are decomposed at once; with up to 100 rows they fit into a core's L2 cache
_ENOUGH = 1e-11  # relative error of the least eigenvalue of the products, above which the triangle is used
_RANGE = 1e100  # numbers above it, or below its inverse, are left to methods that compute no squares
_WEAK = 1e-5  # singular values up to this share of the largest, whose right vectors need to be made orthogonal

_Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Spectrum:
    """The singular values of rows, and vectors; on rank 0 only, and empty on the others.

    Attributes
    ----------
    vectors : numpy.ndarray of shape (n_samples, k)
        Left singular vectors, as columns. If the rows are centred, k is one less than their number: the vectors are all
        that are orthogonal to the roots of the weights.
    values : numpy.ndarray of shape (k,)
        In descending order.
    exact : bool
        Whether they are from a triangle, and not from products; the same on all ranks.
    """

    vectors: _Floats
    values: _Floats
    exact: bool


def few(n_samples: int, n_features: int) -> bool:
    """Return whether there are fewer rows than columns, and so few that matrices of rows x rows are small."""
    return n_samples < n_features and n_samples <= _MOST


def few_rows(data: Data) -> bool:
    """Return whether `WideRows` may be made: of `few` rows, which are in memory."""
    return few(data.n_samples, data.n_features) and not data.in_passes


class WideRows:
    """Some columns of all rows, minus their weighted means, times the square roots of the rows' weights.

    Parameters
    ----------
    task : Task
    rows : numpy.ndarray of float64 of shape (n_samples, n_own)
        All rows, with this rank's share of the columns. They are changed.
    weights : numpy.ndarray of float64 of shape (n_samples,) or None
    targets : numpy.ndarray of float64 of shape (n_samples, n_targets)
        Weights and targets are those of all rows.
    centre : bool
        Whether to subtract means of columns and targets.
    n_features : int
        Number of columns of all ranks.

    Attributes
    ----------
    rows : numpy.ndarray of shape (n_samples, n_own)
        This rank's columns.
    own : slice
        Which columns these are.
    targets : numpy.ndarray of shape (n_samples, n_targets)
        The targets, treated as the columns are; the same on all ranks.
    roots : numpy.ndarray of shape (n_samples,)
        Square roots of the weights.
    weight : float
        Sum of the weights.
    centred : bool
        Whether means were subtracted.
    target_mean : numpy.ndarray of shape (n_targets,)
        Weighted means; zeros without `centre`.
    own_mean : numpy.ndarray of shape (n_own,)
        Weighted means of this rank's columns; zeros without `centre`.
    total : float
        Sum of all weighted numbers; not finite if one is not.

    Raises
    ------
    Interrupted
        On all ranks, if one has seen the request to stop.
    """

    def __init__(
        self,
        task: Task,
        rows: _Floats,
        weights: _Floats | None,
        targets: _Floats,
        centre: bool,
        n_features: int,
    ) -> None:
        self._task, self.comm, self._n_features = task, task.comm, n_features
        self._bounds = _bounds(task.comm, n_features)
        self.own = slice(*self._bounds[self.comm.rank : self.comm.rank + 2].tolist())
        self.rows, self.targets = rows, targets
        w = np.ones(len(rows)) if weights is None else weights
        self.roots, self.weight = np.sqrt(w), float(w.sum())
        self.target_mean = np.zeros(self.targets.shape[1])
        self.centred = centre and self.weight > 0
        with np.errstate(over="ignore", invalid="ignore"):  # of numbers that are not finite, or very large
            sums = w @ self.rows
            stopped, self.total = self.comm.allreduce(np.array([task.cancelled(), sums.sum()])).tolist()
            if stopped:
                raise Interrupted
            self.own_mean = sums / self.weight if self.centred else np.zeros(len(sums))
            if self.centred:
                self.rows -= self.own_mean
                self._empty_constant_columns()
                self.target_mean = w @ self.targets / self.weight
                self.targets = self.targets - self.target_mean
            if weights is not None:
                self.rows *= self.roots[:, np.newaxis]
                self.targets = self.targets * self.roots[:, np.newaxis]

    @classmethod
    def of(cls, task: Task, data: Data, centre: bool) -> WideRows:
        """Return those of a data set, for which `few_rows` is true, with its weights and targets.

        Ranks that can read all rows where they are read their own columns, and exchange none.
        """
        weights, targets = data.sample_weight, data.targets
        weights = None if weights is None else weights.astype(data.dtype)
        given = np.empty((data.n_own, 0), data.dtype) if targets is None else on_host(targets, data.dtype)
        rows = data.read_columns(*_bounds(task.comm, data.n_features)[task.comm.rank : task.comm.rank + 2].tolist())
        if rows is None:
            found = cls.exchanged(task, _own_rows(task, data), weights, given, centre, data.n_samples)
        else:
            beside = _side_by_side(weights, given).astype(np.float64, copy=False)
            every = task.comm.allgather_rows(beside, np.diff(data.bounds))
            found = cls(task, rows.astype(np.float64, copy=False), *_apart(weights, every), centre, data.n_features)
        data.require_finite(found.total)
        return found

    @classmethod
    def exchanged(
        cls,
        task: Task,
        own: npt.NDArray[Any],
        weights: npt.NDArray[Any] | None,
        targets: npt.NDArray[Any],
        centre: bool,
        n_samples: int,
    ) -> WideRows:
        """Exchange rows of the ranks for columns of all of them.

        Parameters
        ----------
        task : Task
        own : numpy.ndarray of shape (n, n_features), float32 or float64
            This rank's rows.
        weights : numpy.ndarray of shape (n,) or None
            Their weights, on all ranks or none, in the dtype of the rows.
        targets : numpy.ndarray of shape (n, n_targets)
            In the dtype of the rows.
        centre : bool
            Whether to subtract means of columns and targets.
        n_samples : int
            Number of rows of all ranks.
        """
        bounds = _bounds(task.comm, own.shape[1])
        rows, every = _by_column(task.comm, own, _side_by_side(weights, targets), bounds, n_samples)
        return cls(task, rows, *_apart(weights, every), centre, own.shape[1])

    def _empty_constant_columns(self) -> None:
        """Set columns to zero of which the subtraction has left nothing but the rounding of their mean."""
        rounding, weighty = np.finfo(np.float64).eps * np.abs(self.own_mean), np.flatnonzero(self.roots)
        ends = np.abs(self.rows[weighty[[0, -1]]]).max(axis=0)
        some = np.flatnonzero(ends <= len(self.rows) * rounding)
        if len(some):
            rest = self.rows[:, some]
            rest -= np.square(self.roots) @ rest / self.weight
            constant = np.abs(rest[weighty]).max(axis=0) <= rounding[some]
            self.rows[:, some[constant]] = 0

    def spectrum(self, least: float = 0.0, exact: bool = False) -> Spectrum | None:
        """Return the decomposition on rank 0, and an empty one on the others; None on all if squares are out of range.

        Parameters
        ----------
        least : float
            Least of the numbers that are added to the squares of the singular values.
        exact : bool
            Whether to use the triangle in any case.
        """
        vectors, values = np.empty((0, 0)), np.empty(0)
        precise = False
        if not exact and (gram := self.gram()) is not None and np.isfinite(gram).all():
            squares, vectors = np.linalg.eigh(gram)
            vectors, values = vectors[:, ::-1], np.sqrt(np.maximum(squares[::-1], 0.0))
            precise = _precise(squares, least)
        precise = self.comm.bcast(precise)
        if not precise:
            triangle, top = self.triangle(), 0.0
            if triangle is not None and np.isfinite(triangle).all():
                _, values, right = np.linalg.svd(triangle, full_matrices=False)
                vectors, top = right.T, float(values.max(initial=0.0))
            if not 1 / _RANGE < self.comm.bcast(top) < _RANGE:
                return None
        return Spectrum(self.expanded(vectors) if self.comm.rank == 0 else vectors, values, not precise)

    def gram(self) -> _Floats | None:
        """Return the products of the rows with each other, on rank 0; see `along`."""
        with np.errstate(over="ignore", invalid="ignore"):
            found = self._sum(self.rows @ self.rows.T)
            return None if found is None else self.along(self.along(found).T)

    def triangle(self) -> _Floats | None:
        """Return R of a QR decomposition of the transposed rows, on rank 0; ``R.T @ R`` is what `gram` returns."""
        n, own = self.rows.shape
        r = np.zeros((n, n), order="F")
        for first in range(0, own, _CHUNK):
            self._task.leave_if_cancelled()
            r = merged(r, np.array(self.rows[:, first : first + _CHUNK].T, order="F"))
        self._task.check()
        every = self.comm.gather_blocks(np.triu(r).ravel())
        if every is None:
            return None
        for one in every.reshape(-1, n, n)[1:]:  # the first is that of rank 0
            r = merged(r, np.asfortranarray(one))
        return self.along(np.triu(r).T).T

    def along(self, values: _Floats) -> _Floats:
        """Return numbers of all rows in a basis of what centred rows can have, which is one dimension smaller.

        The roots of the weights are orthogonal to it. A Householder reflection turns them to the first unit vector, of
        which the result has nothing.
        """
        return self._reflected(values)[1:] if self.centred else values

    def expanded(self, vectors: _Floats) -> _Floats:
        """Return the numbers of all rows, of numbers in the basis of `along`."""
        if not self.centred:
            return np.ascontiguousarray(vectors)
        return self._reflected(np.concatenate([np.zeros((1, vectors.shape[1])), vectors]))

    def _reflected(self, values: _Floats) -> _Floats:
        axis = self.roots / np.sqrt(self.weight)
        axis[0] += 1.0
        return values - np.outer(axis, axis @ values) / axis[0]

    def times_transposed(self, z: _Floats) -> _Floats:
        """Return ``A.T @ z`` for this rank's columns; rank 0 knows z, of shape (n_samples, k)."""
        return self.rows.T @ self.comm.bcast_array(z)

    def times(self, own: _Floats) -> _Floats | None:
        """Return ``A @ coef`` on rank 0, of which each rank knows the part for its columns."""
        return self._sum(self.rows @ own)

    def of_all_columns(self, own: _Floats) -> _Floats | None:
        """Return the entries of all columns on rank 0, of which each rank has those of its own: (n_features, ...)."""
        widths, shape = np.diff(self._bounds), (self._n_features, *own.shape[1:])
        if self.comm.size * int(widths.max()) * math.prod(shape[1:]) * own.itemsize > FEW:
            joined = self.comm.gather_blocks(np.ascontiguousarray(own).ravel())
            return None if joined is None else joined.reshape(shape)
        every = self.comm.allgather_rows(own, widths)
        return None if self.comm.rank else every

    def _sum(self, own: _Floats) -> _Floats | None:
        """Return the sum over the ranks on rank 0; few numbers take one exchange among all of them."""
        if self.comm.size * own.nbytes > FEW:
            return self.comm.reduce(own)
        total = self.comm.allreduce(own)
        return None if self.comm.rank else total

    @property
    def mean(self) -> _Floats:
        """The weighted means of all columns, on rank 0; zeros if they were not subtracted."""
        found = self.of_all_columns(self.own_mean)
        return np.empty(0) if found is None else found

    def right_vectors(self, spectrum: Spectrum, turn: _Floats | None = None) -> _Floats | None:
        """Return orthonormal right singular vectors (k, n_features) on rank 0, for some of the values of `spectrum`.

        Parameters
        ----------
        spectrum : Spectrum
        turn : numpy.ndarray of shape (k, n_values) or None
            Products of the right vectors to return, if these are not the right vectors themselves.
        """
        vectors, values = spectrum.vectors, spectrum.values
        strong = int((values > _WEAK * values.max(initial=0.0)).sum())
        n, k, turned = self.comm.bcast((strong, len(values), None if turn is None else len(turn)))
        z = np.empty((len(self.rows), k if turned is None or n < k else turned))
        if self.comm.rank == 0:
            z = vectors / np.where(np.arange(k) < n, values, 1.0)
            z = z if turn is None or n < k else z @ turn.T
        found = self.times_transposed(z).T
        if n < k:
            found[n:] = self._orthogonal(found[:n], found[n:])
            turn = self.comm.bcast(turn)
            found = found if turn is None else turn @ found
        made = self.of_all_columns(found.T)
        return None if made is None else np.ascontiguousarray(made.T)

    def _orthogonal(self, strong: _Floats, weak: _Floats) -> _Floats:
        """Return orthonormal rows that span those of `weak`, as far as these are not rounding, beside `strong`.

        What is next to nothing in float64 is replaced by any vectors; scikit-learn's are rounding, too.
        """
        any_vectors = np.random.default_rng(0).normal(size=(len(weak), self._n_features))[:, self.own]
        lengths = np.sqrt(self._sums(np.square(weak)))
        scale = np.divide(1.0, lengths, out=np.zeros_like(lengths), where=lengths > 0)
        weak = weak * scale[:, np.newaxis]
        for _ in range(2):
            weak = weak - self.comm.allreduce(weak @ strong.T) @ strong
            lost = np.sqrt(self._sums(np.square(weak))) < 0.5  # by rounding in the direction of strong ones
            weak[lost] = any_vectors[lost] / np.sqrt(self._n_features)
        weak = weak - self.comm.allreduce(weak @ strong.T) @ strong
        every = self.of_all_columns(weak.T)
        basis = np.linalg.qr(every)[0] if every is not None else np.empty((self._n_features, len(weak)))
        return self.comm.bcast_array(np.ascontiguousarray(basis))[self.own].T

    def _sums(self, own: _Floats) -> _Floats:
        return self.comm.allreduce(own.sum(axis=1))

    def squares(self) -> _Floats:
        """Return the sums of squares of all columns, on rank 0."""
        found = self.of_all_columns(np.einsum("ij,ij->j", self.rows, self.rows))
        return np.empty(0) if found is None else found


def _precise(squares: _Floats, least: float) -> bool:
    """Return whether the eigenvalues of products are precise enough, and in the range in which squares are."""
    if not len(squares):
        return True
    top = np.sqrt(max(squares[-1], 0.0))
    error = np.finfo(np.float64).eps * (squares[-1] + least)
    return bool(1 / _RANGE < top < _RANGE and error <= _ENOUGH * (squares[0] + least))


def _own_rows(task: Task, data: Data) -> npt.NDArray[Any]:
    """Return this rank's rows on the host in C order, which the caller may change; the device need not have them."""
    with data.stream() as fill:
        if fill is not None:
            own = np.empty((data.n_own, data.n_features), data.dtype)
            if len(own):
                fill(0, own)
            return own
    return on_host(data.rows, data.dtype)


def _bounds(comm: Communicator, n_features: int) -> npt.NDArray[np.int64]:
    """Return the bounds of each rank's columns."""
    return np.arange(comm.size + 1) * n_features // comm.size


def _side_by_side(weights: npt.NDArray[Any] | None, targets: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the weights of rows, if there are any, and their targets: (n, 1 + n_targets)."""
    return targets if weights is None else np.column_stack([weights, targets])


def _apart(weights: npt.NDArray[Any] | None, every: _Floats) -> tuple[_Floats | None, _Floats]:
    """Return weights and targets again, of all rows, if there are `weights`."""
    return (None, every) if weights is None else (every[:, 0], every[:, 1:])


def _by_column(
    comm: Communicator,
    own: npt.NDArray[Any],
    beside: npt.NDArray[Any],
    bounds: npt.NDArray[np.int64],
    n_samples: int,
) -> tuple[_Floats, _Floats]:
    """Exchange rows for columns bounds[rank] to bounds[rank + 1] of all rows, in float64.

    The array `beside`, with numbers of each row in the same dtype, goes to all ranks.
    """
    m, extra = beside.shape
    if comm.size == 1:
        return own.astype(np.float64, copy=False), beside.astype(np.float64, copy=False)
    packed, at = np.empty((own.size + comm.size * m * extra, 1), own.dtype), 0
    for first, last in itertools.pairwise(bounds.tolist()):
        size = m * (last - first + extra)
        part = packed[at : at + size].reshape(m, last - first + extra)
        part[:, : last - first], part[:, last - first :] = own[:, first:last], beside
        at += size
    width = int(np.diff(bounds)[comm.rank])
    found = comm.exchange_rows(packed, m * (np.diff(bounds) + extra)).reshape(n_samples, width + extra)
    found = found.astype(np.float64, copy=False)
    return found[:, :width], np.ascontiguousarray(found[:, width:])
