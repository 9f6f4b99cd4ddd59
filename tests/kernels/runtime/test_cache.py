"""Programs of a device's compiler are stored for other processes, which use them."""

from __future__ import annotations

import contextlib
import fcntl
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from samples import times

from xpulab.kernels.kmeans import lloyd
from xpulab.kernels.runtime import cache, catalogue, program
from xpulab.kernels.runtime.device import Device
from xpulab.kernels.runtime.launch import launch
from xpulab.kernels.runtime.opencl import Compiler, CompilerError
from xpulab.libraries import oneapi
from xpulab.sharing.descriptions import DeviceDescription


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, environment: Callable[..., None]) -> Path:
    environment(XPULAB_CACHE=str(tmp_path))
    return tmp_path / "programs"


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The SPIR-V that the device's compiler gets."""
    seen: list[bytes] = []
    compile_ = Compiler.from_spirv

    def noted(self: Compiler, spirv: bytes) -> int:
        seen.append(spirv)
        return compile_(self, spirv)

    monkeypatch.setattr(Compiler, "from_spirv", noted)
    return seen


def run(factor: int, device: Device | None = None) -> float:
    """Build and run a kernel, as a process without built kernels does."""
    device = device or Device()
    array = device.array(np.ones(4, np.float32))
    launch(device, times(factor), 1, 4, array)
    return float(device.fetch(array)[3])


@pytest.mark.parametrize("by_opencl", [True, False])
def test_other_threads_run_while_a_program_is_compiled(
    own_folder: Path, by_opencl: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As the one that shows that the engine is alive.
    monkeypatch.setattr(Compiler, "serves", lambda queue: by_opencl)
    device = Device()
    kernels = [catalogue.find(each) for each in lloyd.every_kernel() if "moves" in each.key]
    beats: list[float] = []
    done = threading.Event()

    def beat() -> None:
        while not done.wait(1e-3):
            beats.append(time.monotonic())

    def has_let_run(compiled: Any) -> bool:
        """Whether no pause of the other thread was as long as half of the compilation, in which it ran often."""
        shutil.rmtree(own_folder, ignore_errors=True)
        started = time.monotonic()
        program.build(device, "moves", compiled, 21)
        ended = time.monotonic()
        during = [moment for moment in beats if started < moment < ended]
        return len(during) > 5 and max(np.diff([started, *during, ended])) < (ended - started) / 2

    thread = threading.Thread(target=beat)
    thread.start()
    try:  # on a busy machine the thread may get no core meanwhile, but not each time
        assert any(map(has_let_run, kernels * 5))
    finally:
        done.set()
        thread.join()


def test_a_program_is_compiled_once(own_folder: Path, compilations: list[bytes]) -> None:
    assert run(3) == 3
    assert len(list(own_folder.iterdir())) == len(compilations) == 1
    assert own_folder.stat().st_mode & 0o077 == 0
    assert run(3) == 3
    assert len(compilations) == 1
    assert run(4) == 4
    assert len(list(own_folder.iterdir())) == len(compilations) == 2


@pytest.mark.parametrize("change", [{"driver": "another"}, {"name": "another"}])
def test_another_device_or_driver_has_programs_of_its_own(compilations: list[bytes], change: dict[str, Any]) -> None:
    class Another(Device):
        def describe(self) -> DeviceDescription:
            return replace(super().describe(), **change)

    run(3)
    assert run(3, Another()) == 3
    assert len(compilations) == 2


def test_another_processor_has_programs_of_its_own(compilations: list[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    run(3)
    monkeypatch.setattr(oneapi, "processor", lambda: ["a processor of the same name, with other instructions"])
    assert run(3) == 3
    assert len(compilations) == 2


def test_a_process_waits_for_another_one_that_compiles_the_same_kernel(own_folder: Path) -> None:
    asked: list[float] = []
    with held(own_folder.parent / "locks" / "key") as other:

        def waiting() -> None:
            asked.append(run(8))  # another kernel is not held up
            cache.store("key", b"by now")
            other.close()

        with cache.claimed("key", waiting):
            assert cache.load("key") == b"by now"
    assert asked == [8]
    assert list((own_folder.parent / "locks").iterdir()) == []


def test_the_wait_for_another_process_can_be_left(own_folder: Path) -> None:
    def leave() -> None:
        raise KeyboardInterrupt

    with held(own_folder.parent / "locks" / "key"), pytest.raises(KeyboardInterrupt), cache.claimed("key", leave):
        raise AssertionError("entered")


def test_the_wait_for_a_process_that_stands_still_ends(own_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "_PATIENCE", 0.1)
    with held(own_folder.parent / "locks" / "key"):
        started = time.monotonic()
        with cache.claimed("key", lambda: None):
            assert time.monotonic() - started >= 0.1


@contextlib.contextmanager
def held(path: Path) -> Iterator[Any]:
    """Hold a lock as another process would, with a separate descriptor of the file."""
    path.parent.mkdir(exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield file


@pytest.mark.parametrize("damage", [b"", b"nonsense", b"a\nb\nc", None])
def test_a_damaged_file_is_compiled_anew(own_folder: Path, damage: bytes | None, compilations: list[bytes]) -> None:
    run(5)
    (file,) = own_folder.iterdir()
    whole = file.read_bytes()
    file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]) if damage is None else damage)
    assert run(5) == 5
    assert len(compilations) == 2
    assert cache.load(file.name) is not None


def test_a_binary_that_the_driver_does_not_take_is_compiled_anew(own_folder: Path, compilations: list[bytes]) -> None:
    run(5)
    (file,) = own_folder.iterdir()
    cache.store(file.name, b"whole, and no program")
    assert run(5) == 5
    assert len(compilations) == 2
    assert cache.load(file.name) != b"whole, and no program"


def test_a_folder_that_cannot_be_written_keeps_nothing(tmp_path: Path, environment: Callable[..., None]) -> None:
    (tmp_path / "file").write_text("in the way")
    environment(XPULAB_CACHE=str(tmp_path / "file"))
    assert run(6) == 6


def test_a_full_disk_leaves_nothing_half_written(own_folder: Path) -> None:
    """The test runs in a separate process, because the limit holds for all files that a process writes."""
    code = (
        "import resource\n"
        "from xpulab.kernels.runtime import cache\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))\n"  # bytes; Python ignores the signal
        "cache.store('key', bytes(1000))\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert not list(own_folder.iterdir())
    assert cache.load("key") is None
    cache.store("key", bytes(1000))
    assert cache.load("key") == bytes(1000)


def test_without_the_functions_that_hand_programs_to_sycl_nothing_is_kept(
    own_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This is the case on Level Zero, or if the names in SYCL's library differ."""
    monkeypatch.setattr(Compiler, "serves", lambda queue: False)
    assert run(7) == 7
    assert not own_folder.exists()


def test_an_error_about_invalid_spirv_has_the_compilers_message(device: Device) -> None:
    compiler = program._compiler(device)
    with pytest.raises(CompilerError, match="OpenCL error"):
        compiler.from_spirv(b"no SPIR-V")
    with pytest.raises(CompilerError, match="OpenCL error"):
        compiler.from_binary(b"no program")
