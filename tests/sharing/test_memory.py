from __future__ import annotations

import errno
import mmap
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from xpulab.sharing.memory import BlockPool, SharedBlock, restore


def test_another_process_reads_what_was_written() -> None:
    with SharedBlock.create(80) as block:
        block.array((10,), np.float64)[:] = np.arange(10)
        code = (
            "import sys, numpy as np; from xpulab.sharing.memory import SharedBlock\n"
            "with SharedBlock.open(sys.argv[1]) as b: print(b.array((10,), np.float64).sum())"
        )
        done = subprocess.run([sys.executable, "-c", code, block.path], capture_output=True, text=True, check=True)
    assert float(done.stdout) == 45.0


def test_only_a_writable_block_can_be_written() -> None:
    with SharedBlock.create(8) as block:
        other = SharedBlock.open(block.path, writable=True)
        other.array((1,), np.int64)[0] = 7
        assert block.array((1,), np.int64)[0] == 7
        other.close()
        with SharedBlock.open(block.path) as read_only:
            assert not read_only.array((1,), np.int64).flags.writeable


def test_arrays_outlive_the_block() -> None:
    block = SharedBlock.create(16)
    array = block.array((2,), np.float64)
    block.close()
    array[:] = 3
    assert array.sum() == 6


def test_nothing_is_left_in_shared_memory_or_descriptors() -> None:
    before, maps = len(os.listdir("/proc/self/fd")), Path("/proc/self/maps")
    named = maps.read_text().count("/dev/shm/")
    with SharedBlock.create(1 << 20) as block:
        block.array((1 << 20,), np.uint8)[:] = 1
        assert maps.read_text().count("/dev/shm/") == named
    del block
    assert len(os.listdir("/proc/self/fd")) == before


def test_an_array_holds_no_descriptor() -> None:
    before = len(os.listdir("/proc/self/fd"))
    arrays = []
    for _ in range(20):
        with SharedBlock.create(8) as block:
            arrays.append(block.array((1,), np.int64))
    del block
    assert len(os.listdir("/proc/self/fd")) == before
    assert sum(int(array[0]) for array in arrays) == 0


def test_memory_is_freed_with_the_last_array() -> None:
    def mapped() -> int:
        return Path("/proc/self/maps").read_text().count("memfd:xpulab-given-back")

    block = SharedBlock.create(1 << 16, "xpulab-given-back")
    array = block.array((4,), np.float64)[1:]
    block.close()
    del block
    assert mapped() == 1
    del array
    assert mapped() == 0


def test_the_error_for_a_block_too_large_says_how_much_is_free() -> None:
    with pytest.raises(MemoryError, match="bytes are free"):
        SharedBlock.create(1 << 62)


def test_a_block_on_disk_is_a_file_without_a_name(tmp_path: Path) -> None:
    with SharedBlock.create_on_disk(3 * mmap.PAGESIZE, str(tmp_path)) as block:
        assert os.fstat(int(block.path.partition("?")[0].rpartition("/")[2])).st_dev == tmp_path.stat().st_dev
        assert [*tmp_path.iterdir()] == []
        array = block.array((3 * mmap.PAGESIZE,), np.uint8)
        assert not array.any()
        program = "import sys; from xpulab.sharing.memory import SharedBlock as B; B.open(sys.argv[1], writable=True)"
        write = ".array((4,), 'u1', 8)[:] = [1, 2, 3, 4]"
        subprocess.run([sys.executable, "-c", program + write, block.path], check=True)
    assert array[7:13].tolist() == [0, 1, 2, 3, 4, 0]
    with pytest.raises(MemoryError, match="TMPDIR to a folder on a larger disk"):
        SharedBlock.create_on_disk(1 << 60)


def test_a_block_may_be_empty() -> None:
    with SharedBlock.create(0) as block:
        assert block.array((0, 3), np.float32).shape == (0, 3)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_another_user_is_refused(tmp_path: Path) -> None:
    def become_nobody() -> None:
        os.setgid(65534)
        os.setuid(65534)

    with SharedBlock.create(8) as block:
        done = subprocess.run(["/bin/cat", block.path], preexec_fn=become_nobody, capture_output=True, text=True)
    assert done.returncode != 0
    assert "Permission denied" in done.stderr


def test_a_mapping_reads_what_was_written_without_it() -> None:
    rows = np.arange(30, dtype=np.float32).reshape(10, 3)
    with SharedBlock.create(rows.nbytes) as block:
        block.write(rows[4:], 4 * 3 * 4)
        block.write(rows[:4], 0)
        block.write(rows[:0], 0)
        np.testing.assert_array_equal(block.array((10, 3), np.float32), rows)


MIB = 1 << 20


def inode(block: SharedBlock) -> int:
    return os.stat(block.path.partition("?")[0]).st_ino


def test_a_pool_reuses_returned_blocks() -> None:
    pool = BlockPool()
    first = pool.take(4 * MIB)
    known = inode(first)
    pool.give(first)
    again = pool.take(4 * MIB - 100)
    assert inode(again) == known
    assert pool.nbytes == 0
    other = pool.take(4 * MIB)
    assert inode(other) != known
    for block in (again, other):
        pool.give(block)
    assert pool.nbytes == 8 * MIB
    pool.clear()
    assert pool.nbytes == 0


def test_a_pool_frees_blocks_that_would_not_fit_beside_those_in_use() -> None:
    pool = BlockPool()
    pool.give(pool.take(4 * MIB))
    for nbytes in (8 * MIB, 2 * MIB):
        block = pool.take(nbytes)
        assert pool.nbytes == 0
        assert block.nbytes == nbytes
        pool.give(block)


def test_a_pool_keeps_no_small_blocks_and_none_if_memory_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = BlockPool()
    pool.give(pool.take(1000))
    assert pool.nbytes == 0
    block = pool.take(4 * MIB)
    monkeypatch.setattr("xpulab.sharing.host_memory.recently_available", lambda **_: 15 * MIB)
    pool.give(block)
    assert pool.nbytes == 0
    with pytest.raises(ValueError, match="closed"):
        block.array((1,), np.int8)


def test_a_pool_closes_blocks_that_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xpulab.sharing.memory._KEPT", 0.05)
    descriptors = len(os.listdir("/proc/self/fd"))
    pool = BlockPool()
    pool.give(pool.take(MIB))
    deadline = time.monotonic() + 120
    while pool.nbytes and time.monotonic() < deadline:
        time.sleep(0.02)
    assert pool.nbytes == 0
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_a_block_can_be_mapped_over_other_memory() -> None:
    size = 3 * mmap.PAGESIZE
    ours = mmap.mmap(-1, size)
    there = np.frombuffer(ours, np.uint8)
    there[:] = 1
    address = there.__array_interface__["data"][0]
    with SharedBlock.create(size) as block:
        block.write(np.full(size, 2, np.uint8), 0)
        block.overlay(address, size - mmap.PAGESIZE)
        assert np.unique(there).tolist() == [1, 2]
        there[5] = 7
        assert block.array((size,), np.uint8)[5] == 7
    assert there[5] == 7  # after `close`
    restore(address, size - mmap.PAGESIZE)
    assert not there[: size - mmap.PAGESIZE].any()
    assert there[-1] == 1


def test_a_path_is_not_valid_for_a_later_block_with_its_descriptor() -> None:
    first = SharedBlock.create(8)
    path = first.path
    first.close()
    with SharedBlock.create(8) as second:
        assert path.partition("?")[0] == second.path.partition("?")[0]
        with pytest.raises(FileNotFoundError, match="is gone"):
            SharedBlock.open(path)


@pytest.mark.parametrize("call", ["memfd_create", "ftruncate", "pwrite"])
def test_memory_that_the_host_refuses_is_a_memory_error(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    descriptors = len(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as patch:
        patch.setattr(os, call, refuse)
        with pytest.raises(MemoryError, match=r"no shared .* bytes.*: \[Errno 28\] No space left on device"):
            SharedBlock.create(8).write(np.zeros(1), 0)
    assert len(os.listdir("/proc/self/fd")) == descriptors
