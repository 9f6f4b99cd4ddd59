"""The limit of a container or a batch job counts, not the memory of the machine. Files imitate control groups."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import until

from xpulab.sharing import host_memory

GIB = 1 << 30


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A host with 64 GiB, of which 40 GiB are free, and 8 GiB of swap space, without control groups."""
    sizes = {"MemTotal": 64 * GIB, "MemFree": 1024, "MemAvailable": 40 * GIB, "SwapFree": 8 * GIB}
    lines = [f"{name}:  {size >> 10} kB\n" for name, size in sizes.items()]
    (tmp_path / "meminfo").write_text("".join(lines) + "HugePages_Total:       7\n")
    monkeypatch.setattr(host_memory, "_HOST", tmp_path / "meminfo")
    monkeypatch.setattr(host_memory, "_PROCESS", tmp_path)
    return tmp_path


def mounts(host: Path, cgroup: str, *lines: str) -> None:
    (host / "cgroup").write_text(cgroup)
    (host / "mountinfo").write_text("22 1 0:20 / /proc rw,relatime shared:5 - proc proc rw\n" + "\n".join(lines) + "\n")


def second(host: Path, path: str = "/slurm/job", inside: str = "/") -> Path:
    """Make cgroups of version 2: the process is in the group `path`, and the tree is mounted from `inside`."""
    top = host / "two"
    mounts(host, f"0::{path}\n", f"30 22 0:26 {inside} {top} rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate")
    return top


def group(path: Path, limit: str | int, used: int = 0, cached: int = 0) -> None:
    path.mkdir(parents=True, exist_ok=True)
    (path / "memory.max").write_text(f"{limit}\n")
    (path / "memory.current").write_text(f"{used}\n")
    (path / "memory.stat").write_text(
        f"anon 1\nfile 99999999999\nshmem 3\ninactive_file {cached // 2}\nactive_file {cached - cached // 2}\n"
    )


def test_without_control_groups_the_memory_of_the_host_counts(host: Path) -> None:
    assert host_memory.total() == 64 * GIB
    assert host_memory.available() == 40 * GIB
    assert host_memory.available(swap=True) == 48 * GIB


def test_the_memory_in_use_except_cached_pages_is_subtracted_from_the_limit(host: Path) -> None:
    group(second(host) / "slurm/job", 10 * GIB, used=7 * GIB, cached=2 * GIB)
    assert host_memory.total() == 10 * GIB
    assert host_memory.available() == host_memory.available(swap=True) == 5 * GIB


def test_the_narrowest_group_up_to_the_root_counts(host: Path) -> None:
    top = second(host)
    group(top / "slurm/job", "max", used=3 * GIB)
    group(top / "slurm", 32 * GIB, used=31 * GIB)
    assert host_memory.total() == 32 * GIB
    assert host_memory.available() == 1 * GIB
    group(top / "slurm", 32 * GIB, used=33 * GIB)  # the use may exceed the limit for a moment
    assert host_memory.available() == 0


@pytest.mark.parametrize("limit", ["max", 900 * GIB])
def test_a_limit_beyond_the_host_does_not_count(host: Path, limit: str | int) -> None:
    group(second(host) / "slurm/job", limit, used=3 * GIB)
    assert host_memory.total() == 64 * GIB
    assert host_memory.available() == 40 * GIB


@pytest.mark.parametrize(("path", "inside"), [("/", "/"), ("/docker/1f", "/docker/1f"), ("/docker/1f", "/other")])
def test_a_container_sees_its_group_as_the_topmost(host: Path, path: str, inside: str) -> None:
    group(second(host, path, inside), 4 * GIB, used=1 * GIB)
    assert host_memory.total() == 4 * GIB
    assert host_memory.available() == 3 * GIB


def test_limits_of_the_first_version_of_cgroups_count(host: Path) -> None:
    top = host / "one"
    mounts(
        host,
        "5:cpu,cpuacct:/elsewhere\n4:memory:/jobs/7\n0::/\n",
        f"31 22 0:27 / {host} rw shared:9 - cgroup cgroup rw,cpu,cpuacct",
        f"32 22 0:28 / {top} rw shared:9 - cgroup cgroup rw,memory",
        f"33 22 0:29 / {host / 'two'} rw shared:9 - cgroup2 cgroup2 rw",
    )
    (top / "jobs/7").mkdir(parents=True)
    for path, limit, used in ((top, 2**63 - 4096, 20 * GIB), (top / "jobs/7", 8 * GIB, 6 * GIB)):
        (path / "memory.limit_in_bytes").write_text(f"{limit}\n")
        (path / "memory.usage_in_bytes").write_text(f"{used}\n")
        (path / "memory.stat").write_text(f"cache 9\ntotal_inactive_file {GIB}\ntotal_active_file 0\n")
    assert host_memory.total() == 8 * GIB
    assert host_memory.available() == 3 * GIB


@pytest.mark.parametrize("text", ["", "much\n"])
def test_files_of_control_groups_without_a_number_are_ignored(host: Path, text: str) -> None:
    folder = second(host) / "slurm/job"
    group(folder, 1 * GIB)
    (folder / "memory.current").write_text(text)
    assert host_memory.available() == 40 * GIB


def test_the_memory_of_this_host_is_found() -> None:
    assert 0 < host_memory.available() <= host_memory.total()
    # Other programs may take memory between the two looks.
    until(lambda: host_memory.available() <= host_memory.available(swap=True))


def test_a_process_has_bytes_in_memory_until_it_ends() -> None:
    assert host_memory.resident(os.getpid()) > 1 << 20
    with subprocess.Popen([sys.executable, "-c", "pass"]) as ended:
        pass
    assert host_memory.resident(ended.pid) == 0
