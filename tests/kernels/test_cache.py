from __future__ import annotations

import contextlib
import fcntl
import resource
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from xpulab.kernels import cache, launch
from xpulab.kernels.device import Device


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XPULAB_CACHE", str(tmp_path))
    return tmp_path / "kernels"


def times(factor: int) -> Any:
    def scale(item, a):
        i = item.get_global_id(0)
        a[i] = a[i] * np.float32(factor)

    return scale


def run(factor: int) -> float:
    """Compile and run a kernel in a process that has none yet, as far as launch.py knows."""
    device = Device()
    array = device.array(np.ones(4, np.float32))
    launch.launch(device, times(factor), 1, 4, array)
    return float(device.fetch(array)[3])


def test_a_kernel_is_compiled_once(own_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(3) == 3
    assert len(list(own_folder.iterdir())) == 1
    assert own_folder.stat().st_mode & 0o077 == 0
    monkeypatch.setattr(launch, "_compile", None)
    assert run(3) == 3
    with pytest.raises(TypeError):
        run(4)  # another closure is other code


def test_what_another_process_compiles_is_waited_for(own_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = cache.key_of(times(7), ("array of float32",))
    asked: list[float] = []
    with held(own_folder.parent / "locks" / key) as other:

        def waiting() -> None:
            asked.append(run(8))  # another kernel is not held up
            cache.store(key, "there", b"by now")
            other.close()

        with cache.claimed(key, waiting):
            assert cache.load(key) == ("there", b"by now")
    assert asked == [8]
    assert list((own_folder.parent / "locks").iterdir()) == []


def test_the_wait_for_another_process_can_be_left(own_folder: Path) -> None:
    def leave() -> None:
        raise KeyboardInterrupt

    with held(own_folder.parent / "locks" / "key"), pytest.raises(KeyboardInterrupt), cache.claimed("key", leave):
        raise AssertionError("entered")


def test_a_process_that_stands_still_is_not_waited_for_long(own_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "_PATIENCE", 0.1)
    with held(own_folder.parent / "locks" / "key"):
        started = time.monotonic()
        with cache.claimed("key", lambda: None):
            assert 0.1 <= time.monotonic() - started < 5


@contextlib.contextmanager
def held(path: Path) -> Iterator[Any]:
    """A lock as another process would have it: of another opening of the file."""
    path.parent.mkdir(exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield file


def test_other_types_and_sources_are_other_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    key = cache.key_of(times(3), (np.float32,))
    assert key == cache.key_of(times(3), (np.float32,))
    assert key != cache.key_of(times(3), (np.float64,))
    assert key != cache.key_of(times(4), (np.float32,))
    monkeypatch.setattr(cache, "_sources", lambda: "edited")
    assert key != cache.key_of(times(3), (np.float32,))


@pytest.mark.parametrize("damage", [b"", b"nonsense", b"a\nb\nc", None])
def test_a_damaged_file_is_compiled_anew(own_folder: Path, damage: bytes | None) -> None:
    run(5)
    (file,) = own_folder.iterdir()
    whole = file.read_bytes()
    file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]) if damage is None else damage)
    assert run(5) == 5
    assert cache.load(file.name) is not None


def test_a_folder_that_cannot_be_written_is_let_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("XPULAB_CACHE", str(tmp_path / "file"))
    assert run(6) == 6


def test_a_full_disk_leaves_nothing_half_written(own_folder: Path) -> None:
    most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, most[1]))  # bytes of a file; Python ignores the signal
    try:
        cache.store("key", "name", bytes(1000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, most)
    assert not list(own_folder.iterdir())
    assert cache.load("key") is None
    cache.store("key", "name", bytes(1000))
    assert cache.load("key") == ("name", bytes(1000))
