"""Every launch shape gives the same labels. The tuner finds the fastest one, and stores it for the next process."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from spirv import FLOAT64, capabilities

from xpulab.exceptions import DeviceError, KernelBuildError
from xpulab.kernels.kmeans import lloyd, nearest, tune
from xpulab.kernels.kmeans.launch_shapes import LaunchShape, default_shape, shapes, size_class, space, variants
from xpulab.kernels.kmeans.nearest import Labels, find_nearest, launch_shape_for
from xpulab.kernels.kmeans.tune import Tuner
from xpulab.kernels.layout import BLOCK
from xpulab.kernels.rows import Rows
from xpulab.kernels.runtime import cache
from xpulab.kernels.runtime.catalogue import find
from xpulab.kernels.runtime.device import Device
from xpulab.sharing.descriptions import DeviceDescription

F32, F64 = np.dtype(np.float32), np.dtype(np.float64)
SIZES = [(F32, 14), (F64, 2), (F32, 70), (F64, 14), (F32, 2), (F64, 70)]
CPU, OTHER = shapes(F32, True, True), shapes(F32, False, True)
#: Every value in the space of launch shapes, each with only one type and size, because compiling takes seconds.
CASES = [(shape, *SIZES[(i + j) % 6]) for j, ours in enumerate((CPU, OTHER)) for i, shape in enumerate(ours)]
CASES += [(shape, F32, 14) for shape in variants(LaunchShape(), is_cpu=True)]
# All centres in one chunk, in several chunks, and in one chunk per group of centres.
LOCAL = [(OTHER[0], 1024, F32, 14), (OTHER[4], 4096, F32, 70), (OTHER[5], 1024, F64, 70)]
CASES += [(replace(shape, local=local), dtype, d) for shape, local, dtype, d in LOCAL]


def same_labels(device: Device, X: np.ndarray, centers: np.ndarray, shape: LaunchShape | None, bounded: bool) -> Any:
    """Return the labels after the centres have moved a little and back, and check the sums."""
    rows, labels = Rows.upload(device, X), nearest.new_labels(device, len(X))
    labels._pause = 0
    sums = np.zeros((len(centers), X.shape[1] + 1))
    for now in (centers, centers + X.dtype.type(1e-3), centers):
        partial = find_nearest(rows, X[0], now, labels, bounded, shape, "moved")
        assert partial is not None
        partial.add_to(sums)
    assert bool(labels.span) == bounded
    found = lloyd.labels_on_cpu(labels, len(X))
    one_hot = np.eye(len(centers))[found]
    np.testing.assert_allclose(sums[:, :-1], one_hot.T @ (X - X[0]).astype(np.float64), rtol=0, atol=1e-4)
    np.testing.assert_array_equal(sums[:, -1], one_hot.sum(axis=0))
    return found


@pytest.fixture
def always_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use slacks for any numbers of centres and features, and go on with them even if they save no time."""
    for name, value in {"_LEAST_CENTERS": 3, "_LEAST_WORK": 1, "_MOST_LISTED": 2}.items():
        monkeypatch.setattr(nearest, name, value)


@pytest.mark.fraction(3)
@pytest.mark.parametrize(("shape", "dtype", "d"), CASES, ids=str)
def test_every_launch_shape_gives_the_labels_of_the_default_and_sums_its_own(
    device: Device, always_bounded: None, shape: LaunchShape, dtype: np.dtype[Any], d: int
) -> None:
    X = np.random.default_rng(0).normal(size=(2 * BLOCK * 9 + 5, d)).astype(dtype)
    for k in (3, 60):
        centers = np.concatenate([X[1:k], X[1:2]])  # the last is as near as the first
        expected = same_labels(device, X, centers, None, bounded=False)
        # With bounds the kernel does all that it does without, and more.
        for bounded in (False, True) if shape in (CPU[0], OTHER[0]) or shape.local else (True,):
            np.testing.assert_array_equal(same_labels(device, X, centers, shape, bounded), expected)
    if dtype == F32:  # the other devices, for which most launch shapes are, often have no float64
        kernels = [kernel for kernel in device.programs if "f8" not in " ".join(kernel.signature)]
        assert [kernel.name for kernel in kernels if FLOAT64 in capabilities(find(kernel).spirv)] == []


def test_the_space_fits_the_kernel() -> None:
    for is_cpu in (True, False):
        for dtype in (F32, F64):
            for shape in space(dtype, is_cpu).values():
                assert BLOCK % (shape.rows * shape.items) == 0
                assert shape.span >= BLOCK
                assert shape.span & (shape.span - 1) == 0
            for wide in (True, False):
                assert str(default_shape(dtype, is_cpu, wide)) in space(dtype, is_cpu)
                tried = shapes(dtype, is_cpu, wide)
                assert tried[0] == default_shape(dtype, is_cpu, wide)
                assert set(tried) == set(shapes(dtype, is_cpu, not wide))


def test_a_cpu_whose_registers_are_half_as_large_begins_with_half_as_many_scores(own_device: Device) -> None:
    def scores(wide: bool) -> int:
        own_device.wide = wide
        shape = launch_shape_for(own_device, F32, 14, 60)
        return shape.rows * shape.centers

    assert scores(wide=True) == 2 * scores(wide=False)
    tuner = tuned(own_device, Clock(_4_2_16=1.5))
    assert tuner.describe(F32, 14, 60) == "4x2x16, span 4096 (tuned)"
    assert "2x4x16, span 4096" not in tuner.speeds["float32 d<=16 k<=128"]  # the default, which all are compared with


def test_the_search_goes_on_from_the_fastest_and_ends(own_device: Device) -> None:
    """On a device other than a CPU the order is: shapes, local memory and spans, spans with the best local memory."""

    def clock(rows: Rows, shift: Any, centers: Any, labels: Labels, shape: LaunchShape) -> float:
        speed = {(2, 8, 32): 2.0}.get((shape.rows, shape.centers, shape.items), 1.0)
        return rows.n_samples * 1e-6 / (speed + 0.5 * (shape.local == 1024) + 0.3 * (shape.span == 4096))

    own_device.is_cpu = False
    tuner = tuned(own_device, clock)
    assert tuner.describe(F32, 14, 60) == "2x8x32, span 4096, local 1024 (tuned)"
    assert len(tuner.speeds["float32 d<=16 k<=128"]) < len(space(F32, False)) / 4


# --- the search, with a clock that needs no kernels


@pytest.fixture(autouse=True)
def own_folder(request: pytest.FixtureRequest, tmp_path: Path, environment: Callable[..., None]) -> Path:
    if "every_launch_shape" not in request.node.name:
        programs = cache.folder("programs")  # of earlier runs, so that no kernel is compiled again
        programs.mkdir(parents=True, exist_ok=True, mode=0o700)
        (tmp_path / "programs").symlink_to(programs)
        environment(XPULAB_CACHE=str(tmp_path))
    return tmp_path / "launch_shapes"


@pytest.fixture
def own_device() -> Device:
    return wide_device()


class Described(Device):
    """A device that describes itself in other words."""

    def __init__(self, change: dict[str, Any]) -> None:
        super().__init__()
        self.wide, self.change = True, change

    def describe(self) -> DeviceDescription:
        return replace(super().describe(), **self.change)


def wide_device() -> Device:
    """A device with the default launch shape of AVX-512, for any CPU."""
    device = Device()
    device.wide = True
    return device


class Clock:
    """Simulates the seconds of a pass: a microsecond per row with the default, less by these factors with others."""

    def __init__(self, **speeds: float) -> None:
        self.speeds = {name.replace("_", "x").strip("x"): speed for name, speed in speeds.items()}
        self.asked: list[str] = []

    def __call__(self, rows: Rows, shift: Any, centers: Any, labels: Labels, shape: LaunchShape) -> float:
        self.asked.append(str(shape))
        speed = self.speeds.get(f"{shape.rows}x{shape.centers}x{shape.items}", 1.0)
        if speed == 0:
            raise KernelBuildError("no room")
        return rows.n_samples * 1e-6 / speed


def rows_of(device: Device, n: int = 5000, d: int = 14) -> tuple[Rows, np.ndarray]:
    X = np.random.default_rng(0).normal(size=(n, d)).astype(np.float32)
    return Rows.upload(device, X), X[:60]


def tuned(device: Device, clock: Any, mode: str = "all", n: int = 5000) -> Tuner:
    """Return a tuner that has measured until none is missing, or none is found."""
    tuner = Tuner(device, mode, clock)
    rows, centers = rows_of(device, n)
    while missing := tuner.missing(rows.dtype, 14, len(centers)):
        speeds = tuner.measure(rows, None, centers, missing)
        if not speeds:
            break
        tuner.learn(size_class(rows.dtype, 14, len(centers)), speeds)
    return tuner


def test_the_fastest_is_taken(own_device: Device) -> None:
    tuner = tuned(own_device, Clock(_2_8_16=1.5, _4_2_16=1.4, _2_4_16=0.1, _1_8_16=0))
    rows, _ = rows_of(own_device)
    assert str(launch_shape_for(own_device, rows.dtype, rows.n_features, 60)) == "2x8x16, span 4096"
    assert str(launch_shape_for(own_device, rows.dtype, rows.n_features, 33)) == "2x8x16, span 4096"
    assert str(launch_shape_for(own_device, rows.dtype, rows.n_features, 8)) == "4x4x16, span 4096"  # another class
    speeds = tuner.speeds["float32 d<=16 k<=128"]
    assert speeds["2x8x16, span 4096"] == pytest.approx(1.5)
    assert speeds["1x8x16, span 4096"] == 0  # the device refused it
    assert {"2x8x16, span 256", "2x8x16, span 1024", "2x8x16, span 16384"} < set(speeds)
    assert tuner.describe(F32, 14, 60) == "2x8x16, span 4096 (tuned)"
    assert tuner.describe(F32, 14, 8) == "4x4x16, span 4096 (default)"
    assert tuner.summary == "measured for 1 range of sizes"


def test_a_gain_that_may_be_chance_is_not_taken(own_device: Device) -> None:
    tuner = tuned(own_device, Clock(_2_8_16=1.04))
    assert tuner.describe(F32, 14, 60) == "4x4x16, span 4096 (tuned)"


def test_a_moment_in_which_the_machine_is_busy_does_not_mislead(own_device: Device) -> None:
    class Busy(Clock):
        def __call__(self, *passed: Any) -> float:
            return super().__call__(*passed) * (3 if len(self.asked) % 5 == 0 else 1)

    tuner = tuned(own_device, Busy(_2_8_16=1.3))
    assert tuner.describe(F32, 14, 60) == "2x8x16, span 4096 (tuned)"


def test_a_gain_that_shows_only_once_is_not_taken(own_device: Device) -> None:
    class Lucky(Clock):
        def __call__(self, rows: Rows, shift: Any, centers: Any, labels: Labels, shape: LaunchShape) -> float:
            seconds = super().__call__(rows, shift, centers, labels, shape)
            others = [asked for asked in self.asked if asked == str(shape)]
            return seconds / 2 if shape == shapes(F32, True, True)[1] and len(others) <= 10 else seconds

    tuner = tuned(own_device, Lucky())
    assert tuner.describe(F32, 14, 60) == "4x4x16, span 4096 (tuned)"


def test_a_hopeless_launch_shape_is_not_measured_for_long(own_device: Device) -> None:
    clock = Clock(_2_8_16=0.1)
    tuned(own_device, clock)
    assert clock.asked.count("2x8x16, span 4096") == 1
    assert clock.asked.count("4x2x16, span 4096") > 5


def test_launch_shapes_are_not_measured_without_time(own_device: Device) -> None:
    tuner = Tuner(own_device, "1", Clock(_4_2_16=2.0))
    rows, centers = rows_of(own_device)
    for tried in range(1, 4):
        missing = tuner.missing(F32, 14, 60)
        speeds = tuner.measure(rows, None, centers, missing)
        assert list(speeds) == [str(missing[0])]
        tuner.learn(size_class(F32, 14, 60), speeds)
        assert tuner.describe(F32, 14, 60).endswith(f"(tuned, {tried} tried so far)")


def test_tuning_may_take_a_twentieth_of_the_computing_time(own_device: Device) -> None:
    name, other = size_class(F32, 14, 60), size_class(F32, 14, 600)
    tuner = Tuner(own_device, "1", Clock())
    assert not tuner.computed(name, 9.0)
    assert not tuner.computed(other, 9.0)
    assert tuner.computed(name, 1.5)
    tuner.measured(name, 0.4)
    assert not tuner.computed(name, 7.0)
    assert tuner.computed(name, 1.0)
    tuner.computed(name, 1000.0)
    rows, centers = rows_of(own_device)
    missing = shapes(F32, True, True)[1:]
    assert len(tuner.measure(rows, None, centers, missing)) == len(missing)
    for mode in ("0", "all"):  # never, and at the beginning of each fit
        assert not Tuner(own_device, mode, Clock()).computed(name, 1000.0)


def test_a_request_to_stop_ends_the_search(own_device: Device) -> None:
    rows, centers = rows_of(own_device)
    tuner = Tuner(own_device, "all", Clock())
    answers = iter([False, False, True])
    assert len(tuner.measure(rows, None, centers, shapes(F32, True, True)[1:], stop=lambda: next(answers))) == 2


def test_real_passes_have_a_time(device: Device) -> None:
    rows, centers = rows_of(device)
    labels = nearest.new_labels(device, rows.n_samples)
    assert 0 < tune.pass_seconds(rows, None, centers, labels, LaunchShape()) < 60


# --- the file


def test_the_next_process_reads_what_this_one_found(own_folder: Path, own_device: Device) -> None:
    first = tuned(own_device, Clock(_2_8_16=1.5))
    assert own_folder.stat().st_mode & 0o077 == 0
    device = wide_device()
    second = Tuner(device, "1", clock=None)  # type: ignore[arg-type]
    assert second.path == first.path
    assert second.speeds == first.speeds
    assert second.missing(F32, 14, 60) == []
    assert device.launch_shapes == own_device.launch_shapes != {}


def test_two_processes_add_to_each_other(own_device: Device) -> None:
    first, second = (Tuner(own_device, "1") for _ in range(2))
    first.learn("float32 d<=16 k<=8", {"4x2x16, span 4096": 1.5})
    second.learn("float64 d<=16 k<=8", {"2x8x16, span 4096": 1.5})
    third = Tuner(own_device, "1")
    assert third.summary == "measured for 2 ranges of sizes"
    assert {str(shape) for shape in own_device.launch_shapes.values()} == {"4x2x16, span 4096", "2x8x16, span 4096"}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe",
        b"[1, 2]",
        b"{}",
        b'{"speeds": {"float32 d<=16 k<=128": {"2x8x16, span 4096": 9}}}',
        pytest.param({"speeds": 5}, id="no speeds"),
        pytest.param({"speeds": {"float99 d": {"2x8x16, span 4096": 9}}}, id="no such type"),
        pytest.param({"speeds": {"": {}}}, id="no class"),
        pytest.param({"speeds": {"float32 d<=16 k<=128": {"2x8x16, span 4096": "fast"}}}, id="no number"),
        pytest.param({"speeds": {"float32 d<=16 k<=128": {"9x9x9, span 5": 9}}}, id="no such launch shape"),
        pytest.param({"code": "of another version"}, id="another version"),
        pytest.param({"driver": "another"}, id="another driver"),
    ],
)
def test_a_file_of_another_form_counts_as_missing(own_folder: Path, content: Any, own_device: Device) -> None:
    tuner = tuned(own_device, Clock(_2_8_16=1.5))
    if isinstance(content, dict):
        content = json.dumps({**json.loads(tuner.path.read_text()), **content}).encode()
    tuner.path.write_bytes(content)
    device = wide_device()
    after = Tuner(device, "all", Clock(_4_2_16=1.5))
    assert set(device.launch_shapes.values()) <= {default_shape(F32, True, True)}
    assert [str(shape) for shape in after.missing(F32, 14, 60)] == [str(shape) for shape in shapes(F32, True, True)[1:]]
    tuned(device, Clock(_4_2_16=1.5))
    assert "4x2x16, span 4096" in map(str, device.launch_shapes.values())
    assert json.loads(tuner.path.read_text())["speeds"]["float32 d<=16 k<=128"]["4x2x16, span 4096"] > 1.4


def test_another_driver_or_another_number_of_cores_has_a_file_of_its_own(own_device: Device) -> None:
    paths = {tuned(own_device, Clock(_2_8_16=1.5)).path}
    for change in ({"driver": "9.9"}, {"compute_units": 77}, {"name": "Arc"}):
        other = Tuner(Described(change), "1")
        assert other.speeds == {}
        paths.add(other.path)
    assert len(paths) == 4


def test_a_folder_that_cannot_be_written_is_ignored(
    own_device: Device, tmp_path: Path, environment: Callable[..., None]
) -> None:
    (tmp_path / "file").write_text("in the way")
    environment(XPULAB_CACHE=str(tmp_path / "file"))
    tuned(own_device, Clock(_2_8_16=1.5))
    assert "2x8x16, span 4096" in map(str, own_device.launch_shapes.values())


# --- turned off


def test_tuning_can_be_turned_off(own_folder: Path, own_device: Device, environment: Callable[..., None]) -> None:
    tuned(own_device, Clock(_2_8_16=1.5))
    environment(XPULAB_TUNE="0")
    device = wide_device()
    tuner = Tuner(device)
    assert device.launch_shapes == {}
    assert tuner.missing(F32, 14, 60) == []
    assert tuner.describe(F32, 14, 60) == "4x4x16, span 4096 (default, tuning is off)"
    assert tuner.summary == "tuning is off"


def test_an_unknown_mode_is_an_error(own_device: Device, environment: Callable[..., None]) -> None:
    environment(XPULAB_TUNE="yes")
    with pytest.raises(DeviceError, match=r'XPULAB_TUNE is "yes"; expected "0" .*, "1" .* or "all"'):
        Tuner(own_device)


def test_a_launch_shape_for_few_rows_has_a_shorter_span(device: Device) -> None:
    """Fewer rows than a span are therefore no special case, and spans never influence results."""
    X = np.random.default_rng(0).normal(size=(100, 14)).astype(np.float32)
    expected = same_labels(device, X, X[:60], None, bounded=False)
    np.testing.assert_array_equal(same_labels(device, X, X[:60], replace(LaunchShape(), span=16384), True), expected)
