"""Turns the rows that a rank's own code passes into the form that the proxies and the engine take."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import DTypeLike

import xpulab.libraries.loaded  # noqa: F401 -- before all modules that import dpctl
from xpulab.checks import check_array
from xpulab.data import Holder, ShardedArray
from xpulab.engine.dataset import PassedRows
from xpulab.exceptions import HandleError
from xpulab.kernels.rows import Rows, weighted
from xpulab.kernels.runtime.device import Device

if TYPE_CHECKING:
    import dpnp
    from dpctl.tensor import usm_ndarray

__all__ = ["LocalRows", "checked", "kind_of", "like", "on_host"]

T = TypeVar("T")

#: Module of arrays on devices -> the class of these arrays. A release of dpctl has one of the last two modules.
_DEVICE_ARRAYS = {"dpnp": "ndarray", "dpnp.tensor": "usm_ndarray", "dpctl.tensor": "usm_ndarray"}
_FLOATS = [np.float64, np.float32]


def kind_of(X: object) -> ModuleType | None:
    """Return the module of an array on a device: dpnp, dpctl.tensor or dpnp.tensor; None for everything else."""
    for name, array in _DEVICE_ARRAYS.items():
        module = sys.modules.get(name)  # X cannot be such an array if nobody has imported the module
        if module is not None and isinstance(X, getattr(module, array)):
            return module
    return None


def on_host(X: object) -> Any:
    """Return an array on a device as a NumPy array, and everything else unchanged."""
    module = kind_of(X)
    return X if module is None else module.asnumpy(X)


def like(X: Any, result: object) -> Any:
    """Return results with one entry per row as arrays of the same kind as X, on the queue of X."""
    module = kind_of(X)
    if module is None:
        return result
    if isinstance(result, tuple):
        return tuple(like(X, each) for each in result)
    if not isinstance(result, np.ndarray) or result.dtype.kind not in "biuf":
        return result
    if result.dtype == np.float64 and not X.sycl_device.has_aspect_fp64:
        result = result.astype(np.float32)
    return module.asarray(result, usm_type=X.usm_type, sycl_queue=X.sycl_queue)


def checked(X: Any, name: str, one_d: bool = False) -> Any:
    """Return rows of shape (n_samples, n_features) as float32 or float64, without moving them to or from a device.

    With `one_d`, rows of one number each may also have the shape (n_samples,).

    Raises
    ------
    ValueError, TypeError
        If X does not have this form; the messages are those of scikit-learn.
    """
    module = kind_of(X)
    if module is None:
        return check_array(
            X, dtype=_FLOATS, ensure_all_finite=False, ensure_min_samples=0, ensure_2d=not one_d, input_name=name
        )
    if X.ndim != 2 and not (one_d and X.ndim == 1):
        raise ValueError(
            f"Expected 2D array, got {X.ndim}D array instead: {name} has the shape {X.shape}. Reshape your data using "
            "array.reshape(-1, 1) if it has a single feature"
        )
    dtype = X.dtype if X.dtype in _FLOATS else np.float64
    return module.asarray(X, dtype=dtype, order="C")


class LocalRows(ShardedArray):
    """A handle for rows, targets or weights, of which each rank has passed a part.

    The rows are copied only when a task needs them on the device, directly from the array that was passed.

    Parameters
    ----------
    ranks : Ranks
    array : numpy.ndarray, dpnp.ndarray or usm_ndarray of shape (n, n_features) or (n,)
        This rank's rows.
    bounds : list of int
        Rank r has the rows from bounds[r] up to, not including, bounds[r + 1].
    argument : str
        Name of the argument, for messages.
    columns : sequence, optional
        Names of the columns.
    """

    stays = False

    def __init__(
        self,
        ranks: Holder,
        array: np.ndarray[Any, Any] | dpnp.ndarray | usm_ndarray,
        bounds: list[int],
        argument: str,
        columns: Sequence[object] | None = None,
    ) -> None:
        super().__init__(ranks, (bounds[-1], *array.shape[1:]), array.dtype, bounds, columns)
        self.array: Any = array
        self.argument = argument
        self._rows: Rows | None = None

    @property
    def values(self) -> np.ndarray[Any, Any]:
        """This rank's rows on the host."""
        return np.asarray(on_host(self.array))

    def source(self, cluster: Holder) -> PassedRows:
        """Return what tells this rank's engine to use these rows.

        Raises
        ------
        HandleError
            If the call is not a call of an estimator of `xpulab.spmd`.
        """
        if cluster is not self.cluster:
            raise HandleError(
                "these rows were passed on the ranks, and this call is on a cluster; pass an array, or type: "
                "from xpulab.spmd import ..."
            )
        return PassedRows(self.shape, self.dtype, self.bounds, self)

    def on_device(self, device: Device, sample_weight: np.ndarray[Any, Any] | None) -> Rows:
        """Return the rows on the device; they are copied at the first call."""
        if self._rows is None:
            self._rows = self._copied(device)
        if sample_weight is None:
            return self._rows
        return weighted(self._rows, sample_weight)

    def _copied(self, device: Device) -> Rows:
        array = self.array
        if kind_of(array) is None or array.sycl_queue.sycl_context != device.queue.sycl_context:
            host = self.values
            return Rows.upload(device, host.reshape(len(host), self._width))
        array.sycl_queue.wait()  # the kernels that compute the rows may still run
        about = array.__sycl_usm_array_interface__
        address = about["data"][0] + about.get("offset", 0) * array.dtype.itemsize
        n = array.shape[0]
        return Rows.copied(device, address, (n, self._width), self.dtype)

    @property
    def _width(self) -> int:
        return 1 if self.ndim == 1 else self.shape[1]

    def forget(self) -> None:
        """Free the copy of the rows on the device."""
        self._rows = None

    def reshape(self, *shape: int) -> LocalRows:
        """Return the same numbers as rows of another width."""
        return LocalRows(self.cluster, self.array.reshape(shape), self.bounds, self.argument, self.columns)

    def cast(self, dtype: DTypeLike) -> LocalRows:
        """Return these targets in the dtype of the rows."""
        if self.dtype == dtype:
            return self
        return LocalRows(self.cluster, self.values.astype(dtype), self.bounds, self.argument)

    def check_weights(self, dtype: DTypeLike, only_non_negative: bool) -> None:
        """Check these sample weights, and convert them to the dtype of the rows; all ranks raise the same error.

        Raises
        ------
        ValueError
            If a weight is NaN or infinite, if all weights are zero, or, with `only_non_negative`, if a weight is
            negative.
        """
        self.array = self.values.astype(dtype)
        self.dtype = self.array.dtype
        finite, least = bool(np.isfinite(self.array).all()), float(self.array.min(initial=0.0))
        every = self._exchange((finite, least, bool(self.array.any())))
        for rank, (finite, least, _) in enumerate(every):
            if not finite:
                raise ValueError(f"Input sample_weight contains NaN or infinity on rank {rank}.")
            if only_non_negative and least < 0:
                raise ValueError(f"Negative values in data passed to sample_weight: {least} on rank {rank}.")
        if not any(some for *_, some in every):
            raise ValueError("sample_weight is zero for all rows; expected at least one positive weight.")

    def gather(self) -> np.ndarray[Any, Any]:
        """Return the rows of all ranks, on each rank."""
        return np.concatenate(self._exchange(self.values))

    def _exchange(self, thing: T) -> list[T]:
        ranks: Any = self.cluster
        found: list[T] = ranks.exchange(thing)
        return found
