"""The fastest tile for a device, found by measuring, once for each class of sizes, and kept in a file.

Every tile gives the same labels, so that the ranks need not agree on one. A speed is a multiple of the default tile's,
from passes over the same few rows in turn, by the device's clock: what else the machine does then slows down both, and
ranks with equal devices may each measure some of the tiles. Only a clear gain is taken.

Measuring may take a twentieth of the seconds that this process has computed with rows of the same class of sizes. So a
short fit is never slowed down by more than that, and a long one tries tiles between its iterations.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from xpulab.exceptions import DeviceError, KernelBuildError, KernelLaunchError
from xpulab.kernels.cache import folder, write
from xpulab.kernels.device import Device
from xpulab.kernels.nearest import Labels, find_nearest, new_labels
from xpulab.kernels.rows import BLOCK, Rows
from xpulab.kernels.tiles import Tile, default_tile, shapes, size_class, space, variants
from xpulab.rendering import counted

__all__ = ["MODE", "Tuner", "pass_seconds"]

MODE = "XPULAB_TUNE"  # environment variable: "0", "1" or "all"

_GAIN = 1.05  # a tile is used only if it is faster than the default by this factor; a smaller gain may be chance
_SHARE = 0.05  # share of the seconds of computing that may be spent on measuring
_TRIAL = 0.5  # seconds that a tile may take: its kernel is compiled, then passes are measured
_PASS = 0.01  # seconds of a pass over the sample
_LEAST_ROWS = 1024  # of a sample, for each compute unit
_ROUNDS = 7  # passes with each of two tiles
_REPEATS = 3  # of these, for a tile that seems faster
_HOPELESS = 3.0  # times as slow as the default in the first pass: not worth the rounds


def pass_seconds(
    rows: Rows, shift: npt.NDArray[Any] | None, centers: npt.NDArray[Any], labels: Labels, tile: Tile
) -> float:
    """Seconds on the device for one pass over all rows."""
    device = rows.device
    device.wait()
    before = device.kernel_seconds
    find_nearest(rows, shift, centers, labels, again=False, tile=tile)
    device.wait()
    return device.kernel_seconds - before


class Tuner:
    """What was measured on one device, by this process and by those before it.

    Parameters
    ----------
    device : Device
        Its `tiles` are set here.
    mode : {"0", "1", "all"}, optional
        "0": the defaults are used, and the file is neither read nor written. "1": tiles are measured as long as that
        takes a twentieth of what was computed. "all": any fit first measures all that is left. By default what
        ``XPULAB_TUNE`` says, and without it "1".
    clock : callable
        As `pass_seconds`.

    Attributes
    ----------
    key : str
        The same for devices of which one can measure for the other: name, driver, number of compute units.
    path : pathlib.Path
        The file, in the user's cache folder.
    speeds : dict of str to dict of str to float
        Class of sizes -> tile -> its speed as a multiple of the default's; 0 for one that the device refused.

    Raises
    ------
    DeviceError
        If the mode is another.
    """

    def __init__(self, device: Device, mode: str | None = None, clock: Callable[..., float] = pass_seconds) -> None:
        self.mode = os.environ.get(MODE, "1") if mode is None else mode
        if self.mode not in ("0", "1", "all"):
            raise DeviceError(
                f'{MODE} is "{self.mode}"; expected "0" (do not tune), "1" (in long fits) or "all" (in any fit)'
            )
        self.device = device
        self.clock = clock
        about = device.describe()
        self._about = {name: about[name] for name in ("name", "driver", "compute_units")}
        self.key = json.dumps(self._about)
        name = re.sub(r"\W+", "-", device.name).strip("-").lower()[:60]
        self.path: Path = folder("tiles") / f"{name}-{hashlib.sha256(self.key.encode()).hexdigest()[:12]}.json"
        self.speeds: dict[str, dict[str, float]] = {}
        self._credit: dict[str, float] = defaultdict(float)  # seconds that may be spent, by class of sizes
        self._take_over()

    @property
    def summary(self) -> str:
        """``"3 classes tuned"``, or that tuning is off."""
        n = len(self.speeds)
        return "tuning is off" if self.mode == "0" else f"{counted(n, 'class', 'classes')} tuned"

    def missing(self, dtype: np.dtype[Any], n_features: int, n_clusters: int) -> list[Tile]:
        """Tiles that are to be measured for these sizes: first other shapes, then variants of the fastest shape."""
        if self.mode == "0":
            return []
        name = size_class(dtype, n_features, n_clusters)
        is_cpu, wide = self.device.is_cpu, self.device.wide
        known = {str(default_tile(dtype, is_cpu, wide)), *self.speeds.get(name, {})}
        for tiles in (shapes(dtype, is_cpu, wide), variants(self._fastest(name), is_cpu)):
            if left := [tile for tile in tiles if str(tile) not in known]:
                return left
        return []

    def computed(self, name: str, seconds: float) -> bool:
        """Count seconds of computing for a class of sizes; whether they now allow to measure a tile."""
        self._credit[name] += seconds * _SHARE
        return self.mode == "1" and self._credit[name] >= _TRIAL

    def measured(self, name: str, seconds: float) -> None:
        """Count seconds that were spent on measuring tiles, or on waiting for ranks that did."""
        self._credit[name] -= seconds

    def measure(
        self,
        rows: Rows,
        shift: npt.NDArray[Any] | None,
        centers: npt.NDArray[Any],
        tiles: Iterable[Tile],
        stop: Callable[[], bool] = lambda: False,
    ) -> dict[str, float]:
        """Speeds of tiles: of all with mode "all", else of the first one, and of more as long as there is time.

        Parameters
        ----------
        rows : Rows
            At least one.
        shift : numpy.ndarray of shape (n_features,) or None
        centers : numpy.ndarray of shape (n_clusters, n_features)
        tiles : iterable of Tile
        stop : callable
            Asked before each tile.
        """
        name = size_class(rows.dtype, rows.n_features, len(centers))
        default = default_tile(rows.dtype, self.device.is_cpu, self.device.wide)
        started = time.perf_counter()
        sample = self._sample(rows, shift, centers, default)
        speeds: dict[str, float] = {}
        passed = sample, shift, centers, new_labels(self.device, sample.n_samples)
        for tile in tiles:
            late = time.perf_counter() - started + _TRIAL > self._credit[name]
            if stop() or (speeds and late and self.mode != "all"):
                break
            speeds[str(tile)] = self._speed(tile, default, passed)
        return speeds

    def learn(self, name: str, speeds: dict[str, float]) -> None:
        """Use the measurements for a class of sizes, and keep them for other processes."""
        self.speeds.setdefault(name, {}).update(speeds)
        self._take_over()
        content = {**self._about, "code": _code(), "speeds": self.speeds}
        write(self.path, json.dumps(content, indent=1).encode())

    def describe(self, dtype: np.dtype[Any], n_features: int, n_clusters: int) -> str:
        """The tile for these sizes, and where it comes from: ``"4x4x16, span 4096 (tuned)"``."""
        name = size_class(dtype, n_features, n_clusters)
        if self.mode == "0":
            origin = "default, tuning is off"
        elif name not in self.speeds:
            origin = "default"
        else:
            left = self.missing(dtype, n_features, n_clusters)
            origin = f"tuned, {len(self.speeds[name])} tried so far" if left else "tuned"
        return f"{self._fastest(name)} ({origin})"

    def _sample(self, rows: Rows, shift: npt.NDArray[Any] | None, centers: npt.NDArray[Any], default: Tile) -> Rows:
        """The first rows, as many as take the default tile a hundredth of a second."""
        n = min(rows.n_samples, _LEAST_ROWS * self.device.compute_units)
        sample, labels = replace(rows, n_samples=n), new_labels(self.device, n)
        self.clock(sample, shift, centers, labels, default)  # compiles it
        seconds = max(self.clock(sample, shift, centers, labels, default), 1e-9)
        most = int(n * _PASS / seconds) // BLOCK * BLOCK
        return replace(rows, n_samples=min(rows.n_samples, max(n, most)))

    def _speed(self, tile: Tile, default: Tile, passed: tuple[Any, ...]) -> float:
        """The lower of two estimates: from the fastest passes, and from the middle one of all pairs of passes.

        A gain has to show again and again: on a machine that others use too, single measurements were off by half.
        """
        try:
            first = self.clock(*passed, tile)
        except (KernelBuildError, KernelLaunchError):
            return 0.0
        before = self.clock(*passed, default)
        if first > _HOPELESS * before:
            return before / first
        speed = math.inf
        for _ in range(_REPEATS):
            usual, other = np.empty((2, _ROUNDS))
            for i in range(_ROUNDS):
                for tile_, seconds in ((default, usual), (tile, other))[:: 1 if i % 2 else -1]:
                    seconds[i] = self.clock(*passed, tile_)
            speed = min(speed, usual.min() / other.min(), float(np.median(usual / other)))
            if speed < _GAIN:
                break
        return float(speed)

    def _fastest(self, name: str) -> Tile:
        dtype, is_cpu = np.dtype(name.split()[0]), self.device.is_cpu
        default = default_tile(dtype, is_cpu, self.device.wide)
        known = space(dtype, is_cpu)
        speeds = {tile: speed for tile, speed in self.speeds.get(name, {}).items() if tile in known}
        best = max(speeds, key=lambda tile: speeds[tile], default=None)
        return default if best is None or speeds[best] < _GAIN else known[best]

    def _take_over(self) -> None:
        """What the file has more, whoever wrote it; a file that is not what `learn` writes counts as none."""
        if self.mode == "0":
            return
        try:
            content = json.loads(self.path.read_bytes())
            if content["code"] == _code() and {key: content[key] for key in self._about} == self._about:
                for name, speeds in content["speeds"].items():
                    np.dtype(name.split()[0])
                    known = {str(tile): float(speed) for tile, speed in speeds.items()}
                    self.speeds[name] = {**known, **self.speeds.get(name, {})}
        except (OSError, ValueError, TypeError, KeyError, AttributeError, IndexError):
            pass
        self.device.tiles = {name: self._fastest(name) for name in self.speeds}


@cache
def _code() -> str:
    """A digest of the sources that the speeds depend on: measured speeds do not outlive a change of the kernel."""
    sources = [(Path(__file__).parent / name).read_bytes() for name in ("compare.py", "moves.py", "nearest.py")]
    return hashlib.sha256(b"".join(sources)).hexdigest()
