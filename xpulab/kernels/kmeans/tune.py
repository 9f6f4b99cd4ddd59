"""Measures which launch shape is fastest on a device, once for each class of sizes, and stores it.

Every launch shape gives the same labels, so the ranks may use different ones. The speed of a launch shape is given as a
multiple of the default's. Both are measured in turns over the same few rows, by the device's clock. So other work of
the machine slows down both, and ranks with equal devices can share the measurements. A launch shape is used only if it
is clearly faster.

Measurements may take a twentieth of the seconds that this process has computed with rows of the same class of sizes, in
all fits together. A single fit may spend more: it may have the time that earlier fits have left, and a measurement may
take longer than expected, which delays the next one.
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
from xpulab.kernels.kmeans.launch_shapes import LaunchShape, default_shape, shapes, size_class, space, variants
from xpulab.kernels.kmeans.nearest import Labels, find_nearest, new_labels
from xpulab.kernels.layout import BLOCK
from xpulab.kernels.rows import Rows
from xpulab.kernels.runtime.cache import folder, write
from xpulab.kernels.runtime.device import Device
from xpulab.report.rendering import counted

__all__ = ["MODE", "Tuner", "pass_seconds"]

MODE = "XPULAB_TUNE"  # environment variable: "0", "1" or "all"

_GAIN = 1.05  # a launch shape is used only if it is faster than the default by this factor; less may be chance
_SHARE = 0.05  # share of the seconds of computing that may be spent on measurements
_TRIAL = 0.5  # expected seconds for one launch shape, for compiling its kernel and measuring passes
_PASS = 0.01  # seconds of a pass over the sample
_LEAST_ROWS = 1024  # smallest number of rows of the sample, per compute unit
_ROUNDS = 7  # number of passes with each of two launch shapes
_REPEATS = 3  # number of such measurements for a launch shape that seems faster
_HOPELESS = 3.0  # one whose first pass is slower than the default by this factor is not measured further


def pass_seconds(
    rows: Rows, shift: npt.NDArray[Any] | None, centers: npt.NDArray[Any], labels: Labels, shape: LaunchShape
) -> float:
    """Return the seconds on the device for one pass over all rows."""
    device = rows.device
    device.wait()
    before = device.kernel_seconds
    find_nearest(rows, shift, centers, labels, again=False, launch_shape=shape)
    device.wait()
    return device.kernel_seconds - before


class Tuner:
    """The measurements of launch shapes on one device, by this process and by earlier ones.

    Parameters
    ----------
    device : Device
        The tuner sets its `launch_shapes`.
    mode : {"0", "1", "all"}, optional
        "0" uses the defaults, and neither reads nor writes the file. "1" measures launch shapes for about a twentieth
        of the time of computing, in all fits together. With "all" any fit first measures all that are left. The default
        is the variable ``XPULAB_TUNE``, or "1" if it is not set.
    clock : callable
        A function like `pass_seconds`.

    Attributes
    ----------
    key : str
        Name, driver and number of compute units; devices with the same key share measurements.
    path : pathlib.Path
        The file, in the user's cache folder.
    speeds : dict of str to dict of str to float
        Class of sizes -> launch shape -> speed as a multiple of the default's; 0 for one that the device rejected.

    Raises
    ------
    DeviceError
        If the mode is not one of the three.
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
        self._about = {"name": about.name, "driver": about.driver, "compute_units": about.compute_units}
        self.key = json.dumps(self._about)
        name = re.sub(r"\W+", "-", device.name).strip("-").lower()[:60]
        self.path: Path = folder("launch_shapes") / f"{name}-{hashlib.sha256(self.key.encode()).hexdigest()[:12]}.json"
        self.speeds: dict[str, dict[str, float]] = {}
        self._credit: dict[str, float] = defaultdict(float)  # class of sizes -> seconds that may be spent
        self._take_over()

    @property
    def summary(self) -> str:
        """Text for the status: ``"measured for 3 ranges of sizes"``, ``"tuning is off"``, or "" for none."""
        n = len(self.speeds)
        return "tuning is off" if self.mode == "0" else f"measured for {counted(n, 'range')} of sizes" if n else ""

    def missing(self, dtype: np.dtype[Any], n_features: int, n_clusters: int) -> list[LaunchShape]:
        """Return the launch shapes still to measure for these sizes: first all, then variants of the fastest."""
        if self.mode == "0":
            return []
        name = size_class(dtype, n_features, n_clusters)
        is_cpu, wide = self.device.is_cpu, self.device.wide
        known = {str(default_shape(dtype, is_cpu, wide)), *self.speeds.get(name, {})}
        for offered in (shapes(dtype, is_cpu, wide), variants(self._fastest(name), is_cpu)):
            if left := [shape for shape in offered if str(shape) not in known]:
                return left
        return []

    def computed(self, name: str, seconds: float) -> bool:
        """Count seconds of computing for a class of sizes; return whether there is time for a measurement now."""
        self._credit[name] += seconds * _SHARE
        return self.mode == "1" and self._credit[name] >= _TRIAL

    def measured(self, name: str, seconds: float) -> None:
        """Count seconds that were spent on measuring, or on waiting for ranks that measured."""
        self._credit[name] -= seconds

    def measure(
        self,
        rows: Rows,
        shift: npt.NDArray[Any] | None,
        centers: npt.NDArray[Any],
        tried: Iterable[LaunchShape],
        stop: Callable[[], bool] = lambda: False,
    ) -> dict[str, float]:
        """Measure launch shapes: all with mode "all"; otherwise the first one, and more as long as there is time.

        Parameters
        ----------
        rows : Rows
            The rows, at least one.
        shift : numpy.ndarray of shape (n_features,) or None
            Subtracted from each row.
        centers : numpy.ndarray of shape (n_clusters, n_features)
            The centres, less the shift.
        tried : iterable of LaunchShape
            The launch shapes to measure.
        stop : callable
            Called before each of them; if it returns True, no more are measured.

        Returns
        -------
        dict of str to float
            Launch shape -> speed, as a multiple of the default's.
        """
        name = size_class(rows.dtype, rows.n_features, len(centers))
        default = default_shape(rows.dtype, self.device.is_cpu, self.device.wide)
        started = time.perf_counter()
        sample = self._sample(rows, shift, centers, default)
        speeds: dict[str, float] = {}
        passed = sample, shift, centers, new_labels(self.device, sample.n_samples)
        for shape in tried:
            late = time.perf_counter() - started + _TRIAL > self._credit[name]
            if stop() or (speeds and late and self.mode != "all"):
                break
            speeds[str(shape)] = self._speed(shape, default, passed)
        return speeds

    def learn(self, name: str, speeds: dict[str, float]) -> None:
        """Use the measurements for a class of sizes, and store them for other processes."""
        self.speeds.setdefault(name, {}).update(speeds)
        self._take_over()
        content = {**self._about, "code": _code(), "speeds": self.speeds}
        write(self.path, json.dumps(content, indent=1).encode())

    def describe(self, dtype: np.dtype[Any], n_features: int, n_clusters: int) -> str:
        """Return the launch shape for these sizes and its origin, such as ``"4x4x16, span 4096 (tuned)"``."""
        name = size_class(dtype, n_features, n_clusters)
        if self.mode == "0":
            origin = "default, tuning is off"
        elif name not in self.speeds:
            origin = "default"
        else:
            left = self.missing(dtype, n_features, n_clusters)
            origin = f"tuned, {len(self.speeds[name])} tried so far" if left else "tuned"
        return f"{self._fastest(name)} ({origin})"

    def _sample(
        self, rows: Rows, shift: npt.NDArray[Any] | None, centers: npt.NDArray[Any], default: LaunchShape
    ) -> Rows:
        """Return the first rows: as many as the default launch shape processes in a hundredth of a second."""
        n = min(rows.n_samples, _LEAST_ROWS * self.device.compute_units)
        sample, labels = replace(rows, n_samples=n), new_labels(self.device, n)
        self.clock(sample, shift, centers, labels, default)  # the first call compiles the kernel
        seconds = max(self.clock(sample, shift, centers, labels, default), 1e-9)
        most = int(n * _PASS / seconds) // BLOCK * BLOCK
        return replace(rows, n_samples=min(rows.n_samples, max(n, most)))

    def _speed(self, shape: LaunchShape, default: LaunchShape, passed: tuple[Any, ...]) -> float:
        """Return the lower of two estimates of the speed, from the fastest passes, and from the median of pairs.

        A gain must appear in several measurements, because single measurements on a machine that others use can be
        wrong by half.
        """
        try:
            first = self.clock(*passed, shape)
        except (KernelBuildError, KernelLaunchError):
            return 0.0
        before = self.clock(*passed, default)
        if first > _HOPELESS * before:
            return before / first
        speed = math.inf
        for _ in range(_REPEATS):
            usual, other = np.empty((2, _ROUNDS))
            for i in range(_ROUNDS):
                for one, seconds in ((default, usual), (shape, other))[:: 1 if i % 2 else -1]:
                    seconds[i] = self.clock(*passed, one)
            speed = min(speed, usual.min() / other.min(), float(np.median(usual / other)))
            if speed < _GAIN:
                break
        return float(speed)

    def _fastest(self, name: str) -> LaunchShape:
        dtype, is_cpu = np.dtype(name.split()[0]), self.device.is_cpu
        default = default_shape(dtype, is_cpu, self.device.wide)
        known = space(dtype, is_cpu)
        speeds = {shape: speed for shape, speed in self.speeds.get(name, {}).items() if shape in known}
        best = max(speeds, key=lambda shape: speeds[shape], default=None)
        return default if best is None or speeds[best] < _GAIN else known[best]

    def _take_over(self) -> None:
        """Add the measurements in the file, which any process may have written. A file of another form is ignored."""
        if self.mode == "0":
            return
        try:
            content = json.loads(self.path.read_bytes())
            if content["code"] == _code() and {key: content[key] for key in self._about} == self._about:
                for name, speeds in content["speeds"].items():
                    np.dtype(name.split()[0])
                    known = {str(shape): float(speed) for shape, speed in speeds.items()}
                    self.speeds[name] = {**known, **self.speeds.get(name, {})}
        except (OSError, ValueError, TypeError, KeyError, AttributeError, IndexError):
            pass
        self.device.launch_shapes = {name: self._fastest(name) for name in self.speeds}


@cache
def _code() -> str:
    """Return a digest of the sources on which the speeds depend. Other kernels must be measured again."""
    sources = [(Path(__file__).parent / name).read_bytes() for name in ("compare.py", "moves.py", "nearest.py")]
    return hashlib.sha256(b"".join(sources)).hexdigest()
