"""The ways to cut the search for the nearest centre for a device: the default tile, and the tiles worth trying."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

__all__ = ["ROOMS", "Tile", "default_tile", "shapes", "size_class", "space", "variants"]

#: Features that a kernel has private memory for: one kernel for many numbers of them, and so few to compile. More
#: would not leave room in a core's cache.
ROOMS = (4, 16, 64, 256, 512)
_CENTERS = (8, 32, 128, 512)  # limits of the classes of k

#: (rows, centers, items) that came within a fifth of the fastest on a CPU with AVX-512 or AVX2, in some class of sizes.
#: With fewer than 16 items its compiler uses no vectors at all: a tenth of the speed.
_CPU_SHAPES = ((4, 4, 16), (2, 8, 16), (4, 2, 16), (2, 4, 16), (4, 3, 16), (1, 8, 16))
#: For devices of which none has been measured, from one row to four a work-item, and 16 to 64 of these a group. A
#: sub-group may have any size.
_OTHER_SHAPES = ((1, 8, 64), (1, 4, 64), (1, 16, 64), (2, 8, 32), (2, 4, 32), (4, 4, 16))
_SPANS = (256, 1024, 4096, 16384)
_LOCALS = (0, 1024, 4096)  # numbers: at most half of the 32 KiB that any device has, in float32


@dataclass(frozen=True)
class Tile:
    """How the work is cut for a device.

    Attributes
    ----------
    rows : int
        Of a work-item: a centre's number, once loaded, serves them all.
    centers : int
        Whose distances are computed together: ``rows * centers`` scores stay in registers.
    items : int
        Of a work-group; ``rows * items`` divides BLOCK.
    span : int
        Rows of a work-group, a power of two and at least BLOCK.
    spread : bool
        Whether the items of a group share the copying of rows (a GPU), or each does all of it: where a group is one
        thread with vector registers (a CPU), those are plain scalar moves, which cost less than vector gathers.
    local : int
        Numbers of the centres that a group keeps in local memory, at least ``d * centers``; 0 to read all from global
        memory, which is best where a cache is as near (a CPU).
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
    def shelf(self) -> str:
        """Where the catalogue keeps the kernels of tiles of this shape."""
        return f"{self.rows}x{self.centers}x{self.items}" + ".spread" * self.spread


@cache
def default_tile(dtype: np.dtype[Any], is_cpu: bool, wide: bool) -> Tile:
    """The tile for sizes for which no tiles were measured on the device.

    On CPUs it is the tile that was fastest in most classes of sizes: with AVX-512 (`wide`) 16 scores of float32 or 8 of
    float64 for each work-item, with AVX2 8 of either. The scores have to stay in registers: with AVX2, 16 scores of
    float32 take 1.4 to 1.7 times as long. No other device has been measured; their work-items share the copying of
    rows.

    Parameters
    ----------
    dtype : numpy.dtype
        Of the rows.
    is_cpu, wide : bool
        See `xpulab.kernels.device.Device`.
    """
    if not is_cpu:
        return Tile(rows=1, centers=8, items=64, span=1024, spread=True)
    return Tile() if wide and dtype == np.float32 else Tile(rows=2, centers=4)


def shapes(dtype: np.dtype[Any], is_cpu: bool, wide: bool) -> list[Tile]:
    """Tiles to try, the default first; each is a kernel of its own, which the device's compiler has to finish."""
    default = default_tile(dtype, is_cpu, wide)
    every = [replace(default, rows=r, centers=c, items=i) for r, c, i in (_CPU_SHAPES if is_cpu else _OTHER_SHAPES)]
    return [default, *(tile for tile in every if tile != default)]


def variants(tile: Tile, is_cpu: bool) -> list[Tile]:
    """The same shape with other spans, or for other devices than CPUs with other amounts of local memory."""
    others = [replace(tile, local=local) for local in _locals(is_cpu)]
    return [other for other in others + [replace(tile, span=span) for span in _SPANS] if other != tile]


@cache
def space(dtype: np.dtype[Any], is_cpu: bool) -> dict[str, Tile]:
    """Every tile that the search can come to, by its text."""
    every = itertools.product(shapes(dtype, is_cpu, wide=True), _locals(is_cpu), _SPANS)
    return {str(tile): tile for tile in (replace(shape, local=local, span=span) for shape, local, span in every)}


def _locals(is_cpu: bool) -> tuple[int, ...]:
    return (0,) if is_cpu else _LOCALS


@cache
def size_class(dtype: np.dtype[Any], n_features: int, n_clusters: int) -> str:
    """The sizes that are tuned together: ``"float32 d<=16 k<=128"``."""
    return f"{dtype} {_bounded('d', n_features, ROOMS)} {_bounded('k', n_clusters, _CENTERS)}"


def _bounded(name: str, value: int, limits: tuple[int, ...]) -> str:
    limit = next((limit for limit in limits if value <= limit), None)
    return f"{name}>{limits[-1]}" if limit is None else f"{name}<={limit}"
