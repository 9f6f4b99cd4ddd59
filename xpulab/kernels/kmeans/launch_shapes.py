"""Launch shapes of the search for the nearest centre: a device's default, and the shapes to measure."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

__all__ = ["PRIVATE_FEATURES", "LaunchShape", "default_shape", "shapes", "size_class", "space", "variants"]

#: Numbers of features for which kernels have private memory. Each kernel is used for all smaller numbers, so that few
#: kernels have to be compiled. Private memory for more features would not fit into a core's cache.
PRIVATE_FEATURES = (4, 16, 64, 256, 512)
_CENTERS = (8, 32, 128, 512)  # limits of the classes of the number of centres

#: (rows, centers, items) that were at most a fifth slower than the fastest on a CPU with AVX-512 or AVX2, in some
#: class of sizes. With fewer than 16 items the CPU's compiler uses no vectors: a tenth of the speed.
_CPU_SHAPES = ((4, 4, 16), (2, 8, 16), (4, 2, 16), (2, 4, 16), (4, 3, 16), (1, 8, 16))
#: For other devices, of which none has been measured: one to four rows per work-item, and 16 to 64 work-items per
#: work-group. A sub-group may have any size.
_OTHER_SHAPES = ((1, 8, 64), (1, 4, 64), (1, 16, 64), (2, 8, 32), (2, 4, 32), (4, 4, 16))
_SPANS = (256, 1024, 4096, 16384)
_LOCALS = (0, 1024, 4096)  # elements of local memory: in float32 at most half of the 32 KiB that any device has


@dataclass(frozen=True)
class LaunchShape:
    """How the work of the search for the nearest centre is cut into work-groups and work-items.

    Attributes
    ----------
    rows : int
        Number of rows of a work-item. It loads a value of a centre once for all these rows.
    centers : int
        Number of centres whose distances are computed together. ``rows * centers`` scores stay in registers.
    items : int
        Number of work-items of a work-group; ``rows * items`` divides BLOCK.
    span : int
        Number of rows of a work-group, a power of two and at least BLOCK.
    spread : bool
        Whether the work-items of a work-group share the copying of rows, as on a GPU. On a CPU a work-group is one
        thread with vector registers. There each work-item copies all rows, which the compiler turns into scalar moves;
        these are faster than vector gathers.
    local : int
        Number of elements of the centres in local memory, at least ``d * centers``. With 0, all centres are read from
        global memory, which is best on a CPU, because its cache is as fast.
    """

    rows: int = 4
    centers: int = 4
    items: int = 16
    span: int = 4096
    spread: bool = False
    local: int = 0

    def __str__(self) -> str:
        local = f", local {self.local}" if self.local else ""
        return f"{self.rows}x{self.centers}x{self.items}, span {self.span}{local}"

    @property
    def strides(self) -> tuple[int, int]:
        """The step between two rows that a work-item copies, and from its first row to that of the next item."""
        return (self.items, 1) if self.spread else (1, 0)

    @property
    def shelf(self) -> str:
        """The shelf of the catalogue for the kernels of this shape."""
        return f"{self.rows}x{self.centers}x{self.items}" + ".spread" * self.spread


@cache
def default_shape(dtype: np.dtype[Any], is_cpu: bool, wide: bool) -> LaunchShape:
    """Return the launch shape for sizes for which none was measured on the device.

    On CPUs it is the one that was fastest in most classes of sizes: with AVX-512 (`wide`) 16 scores of float32 or 8 of
    float64 for each work-item, with AVX2 8 of either. The scores have to stay in registers: with AVX2, 16 scores of
    float32 take 1.4 to 1.7 times as long. No other device has been measured; their work-items share the copying of
    rows.

    Parameters
    ----------
    dtype : numpy.dtype
        The dtype of the rows.
    is_cpu, wide : bool
        See `xpulab.kernels.runtime.device.Device`.
    """
    if not is_cpu:
        return LaunchShape(rows=1, centers=8, items=64, span=1024, spread=True)
    return LaunchShape() if wide and dtype == np.float32 else LaunchShape(rows=2, centers=4)


def shapes(dtype: np.dtype[Any], is_cpu: bool, wide: bool) -> list[LaunchShape]:
    """Return launch shapes to measure, first the default. The driver compiles the kernel of each for seconds."""
    default = default_shape(dtype, is_cpu, wide)
    every = [replace(default, rows=r, centers=c, items=i) for r, c, i in (_CPU_SHAPES if is_cpu else _OTHER_SHAPES)]
    return [default, *(shape for shape in every if shape != default)]


def variants(shape: LaunchShape, is_cpu: bool) -> list[LaunchShape]:
    """Return launch shapes with other spans, and, except on CPUs, with other sizes of local memory."""
    others = [replace(shape, local=local) for local in _locals(is_cpu)]
    return [other for other in others + [replace(shape, span=span) for span in _SPANS] if other != shape]


@cache
def space(dtype: np.dtype[Any], is_cpu: bool) -> dict[str, LaunchShape]:
    """Return every launch shape that the tuner may choose: text -> launch shape."""
    every = itertools.product(shapes(dtype, is_cpu, wide=True), _locals(is_cpu), _SPANS)
    return {str(shape): shape for shape in (replace(one, local=local, span=span) for one, local, span in every)}


def _locals(is_cpu: bool) -> tuple[int, ...]:
    return (0,) if is_cpu else _LOCALS


@cache
def size_class(dtype: np.dtype[Any], n_features: int, n_clusters: int) -> str:
    """Return the class of sizes that share a launch shape, such as ``"float32 d<=16 k<=128"``."""
    return f"{dtype} {_bounded('d', n_features, PRIVATE_FEATURES)} {_bounded('k', n_clusters, _CENTERS)}"


def _bounded(name: str, value: int, limits: tuple[int, ...]) -> str:
    limit = next((limit for limit in limits if value <= limit), None)
    return f"{name}>{limits[-1]}" if limit is None else f"{name}<={limit}"
