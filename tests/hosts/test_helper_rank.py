"""A cluster without an engine on the notebook's host: one more rank there carries rows, and computes nothing."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from calls_of_hosts import X, busy, interrupted_when, require_clean, require_same, results
from machines import Network
from waiting import until

import xpulab
from xpulab import scanning
from xpulab.cluster import KMeans
from xpulab.decomposition import PCA
from xpulab.deploy.tasks.limits import Demand
from xpulab.exceptions import EngineError, EngineLostError, NotEnoughMemoryError
from xpulab.sharing.sources import BlockRows
from xpulab.sources.mapped import mapped

pytestmark = pytest.mark.cluster

RANDOM = np.random.RandomState(0).rand(300_000, 6).astype(np.float32)
LONG: dict[str, Any] = {"init": "random", "n_init": 1, "tol": 0, "random_state": 0}


@pytest.fixture(scope="module")
def helped(hosts: Network) -> Iterator[xpulab.XPUCluster]:
    """A cluster of two engines on node1 and one on node2."""
    arguments: dict[str, Any] = {"display": "none", "timeout": 120}
    with xpulab.XPUCluster(hosts="node1:2,node2:1", ssh_config=hosts.ssh_config, **arguments) as cluster:
        yield cluster
    for host in hosts.hosts:
        require_clean(host)


@pytest.fixture
def on_helped(helped: xpulab.XPUCluster) -> xpulab.XPUCluster:
    return helped.activate()


def helper_of(cluster: xpulab.XPUCluster) -> psutil.Process:
    assert cluster.engines.helper is not None
    return psutil.Process(cluster.engines.helper.pid)


def test_users_see_the_engines_only(on_helped: xpulab.XPUCluster) -> None:
    def seen(task: Any) -> tuple[Any, ...]:
        from mpi4py import MPI

        return task.rank, task.size, task.comm.size, MPI.COMM_WORLD.size, task.comm.allreduce(1)

    assert on_helped.run(seen) == [(rank, 3, 3, 3, 3) for rank in range(3)]
    assert on_helped.size == on_helped.status().n == 3
    assert sorted(engine.host for engine in on_helped.status().engines) == ["node1", "node1", "node2"]


def test_the_plan_shows_the_helper_rank(on_helped: xpulab.XPUCluster, hosts: Network) -> None:
    answer = on_helped.plan(show=True)
    assert re.search(r"helper .* carries rows, computes nothing", str(answer))
    assert "carries rows, computes nothing" in answer._repr_html_()
    options = f"-print-all-exitcodes -iface {answer.interface} -ppn 1 -hosts node1,node1,node2,{hosts.address} "
    assert f"mpiexec -n 4 {options}" in answer.command


def test_the_helper_rank_has_no_device_and_little_memory(on_helped: xpulab.XPUCluster) -> None:
    process = helper_of(on_helped)
    assert process.memory_info().rss < 150 << 20
    assert not re.search("libOpenCL|libsycl|DPCTL", Path(f"/proc/{process.pid}/maps").read_text())
    assert process.cpu_percent(1.0) < 20


def test_results_are_those_of_one_host(
    helped: xpulab.XPUCluster, pair: xpulab.XPUCluster, hosts: Network, tmp_path: Path
) -> None:
    shared = Path(hosts.ssh_config).parent
    require_same(results(helped, tmp_path, shared), results(pair, tmp_path, shared))


def test_variables_travel_to_and_from_all_hosts(on_helped: xpulab.XPUCluster) -> None:
    large = np.arange(300_000.0)
    on_helped.push({"large": large})
    on_helped.push({"part": large}, ranks=[0, 2], scatter=True)
    np.testing.assert_array_equal(on_helped.pull("large")[2], large)
    np.testing.assert_array_equal(np.concatenate(on_helped.pull("part", ranks=[0, 2])), large)


def test_an_exception_of_an_engine_and_one_of_the_helper_rank(
    on_helped: xpulab.XPUCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.save(tmp_path / "rows.npy", RANDOM)
    on_file = np.load(tmp_path / "rows.npy", mmap_mode="r")
    file = mapped(on_file)
    assert file is not None
    for _ in range(2):
        with pytest.raises(EngineError, match="KeyError"):
            on_helped.call("no such task", {"source": BlockRows.of_all(file, file.dtype, [0, 1, 2, 300_000])})
        with monkeypatch.context() as changed:
            changed.setattr(scanning, "mapped", lambda X: replace(file, state=[0, 0, 0, 0]))
            with pytest.raises(ValueError, match="was written to or replaced since"):
                on_helped.scatter(on_file)
    np.testing.assert_array_equal(on_helped.scatter(on_file).gather(), RANDOM)


def test_large_rows_are_read_in_the_notebooks_memory(on_helped: xpulab.XPUCluster) -> None:
    on_helped.rows.blocks.clear()
    handle = on_helped.scatter(RANDOM)
    assert on_helped.rows.readable
    assert on_helped.rows.blocks.nbytes == 0  # nothing was copied into shared memory
    np.testing.assert_array_equal(handle.gather(), RANDOM)


@pytest.mark.parametrize("rank", [0, 2])
def test_nan_in_large_rows_is_found_on_the_host_that_has_them(on_helped: xpulab.XPUCluster, rank: int) -> None:
    rows = np.random.RandomState(1).rand(600_000, 8).astype(np.float32)  # those that are looked through on engines
    place = rank * 200_000 + 777
    rows[place, 3] = np.nan
    for call in (on_helped.scatter, KMeans(3, random_state=0).fit):
        with pytest.raises(ValueError, match=f"Input X contains NaN(.|\n)*in row {place}, column 3"):
            call(rows)
    rows[place, 3] = 0.5
    np.testing.assert_array_equal(on_helped.scatter(rows).gather(), rows)


def received(network: Network) -> list[int]:
    """Bytes that have come to each host."""
    shown = [json.loads(host.run("ip", "-s", "-j", "link", "show", "eth0")) for host in network.hosts]
    return [int(about[0]["stats64"]["rx"]["bytes"]) for about in shown]


@pytest.fixture
def own_folder(hosts: Network) -> Iterator[Path]:
    """A folder in /tmp, of which each host has its own."""
    folder = Path(tempfile.mkdtemp(prefix="xpulab-files-", dir="/tmp"))
    yield folder
    for host in hosts.hosts:
        host.run("rm", "-rf", str(folder))
    shutil.rmtree(folder)


@pytest.mark.parametrize("there", ["both", "one", "other content", "longer"])
def test_a_file_is_read_where_it_is_the_same_and_sent_to_other_hosts(
    on_helped: xpulab.XPUCluster, hosts: Network, own_folder: Path, there: str
) -> None:
    """The rows of node1 are 9.6 MB, and those of node2 4.8 MB."""
    rows = np.random.RandomState(1).rand(600_000, 6).astype(np.float32)
    path, folder = own_folder / "rows.npy", Path(hosts.ssh_config).parent  # all hosts see this folder
    np.save(path, rows)
    np.save(folder / "rows.npy", rows + 1 if there == "other content" else rows)
    if there == "longer":
        with open(folder / "rows.npy", "ab") as file:
            file.write(b"more")
    for host in hosts.hosts[1:] if there == "one" else hosts.hosts:
        host.run("mkdir", str(own_folder))
        host.run("cp", str(folder / "rows.npy"), str(path))
    before = received(hosts)
    handle = on_helped.load_npy(path)
    came = np.subtract(received(hosts), before)
    few, sizes = 1_000_000, [9_600_000, 4_800_000]
    sent = {"both": [False, False], "one": [True, False]}.get(there, [True, True])
    assert [bytes_ > few for bytes_ in came] == sent, came
    assert all(bytes_ > size for bytes_, size, was in zip(came, sizes, sent, strict=True) if was)
    np.testing.assert_array_equal(handle.gather(), rows)


def test_rows_that_do_not_fit_are_refused(on_helped: xpulab.XPUCluster, hosts: Network, own_folder: Path) -> None:
    with pytest.raises(NotEnoughMemoryError, match="of this host's memory"):
        on_helped.require_room(Demand("X", [0, 10**12, 0], 8))
    rows = np.random.RandomState(1).rand(9_000, 5)
    np.save(own_folder / "rows.npy", rows)
    np.save(Path(hosts.ssh_config).parent / "few.npy", rows)
    hosts.hosts[0].run("mkdir", str(own_folder))
    hosts.hosts[0].run("cp", str(Path(hosts.ssh_config).parent / "few.npy"), str(own_folder / "rows.npy"))
    on_helped.memory = 0
    try:
        with pytest.raises(NotEnoughMemoryError, match=r"but engine 2 cannot read them, .*/rows.npy\nput it where all"):
            PCA(2).fit(xpulab.scan(own_folder / "rows.npy"))
    finally:
        on_helped.memory = None
    assert PCA(2).fit(xpulab.scan(own_folder / "rows.npy")).n_samples_ == 9_000


def test_stop_ends_a_fit_on_all_hosts_at_the_same_iteration(on_helped: xpulab.XPUCluster) -> None:
    model = KMeans(50, max_iter=3, **LONG).fit(RANDOM)  # compiles
    model.set_params(max_iter=10**6)
    thread = interrupted_when(lambda: busy(on_helped, 4))  # the board may still show the fit before
    with pytest.raises(KeyboardInterrupt):
        model.fit(RANDOM)
    thread.join()
    same = KMeans(50, max_iter=model.n_iter_, **LONG).fit(RANDOM)
    np.testing.assert_allclose(model.cluster_centers_, same.cluster_centers_, rtol=1e-4)
    assert (model.labels_ != model.predict(RANDOM)).sum() < 10  # those of the last centres, but for rounding


def test_a_fit_continues_after_the_helper_rank_is_lost(on_helped: xpulab.XPUCluster) -> None:
    process = helper_of(on_helped)

    def kill() -> None:
        until(lambda: busy(on_helped, 20))
        process.kill()

    thread = threading.Thread(target=kill)
    thread.start()
    model = KMeans(50, max_iter=60, **LONG).fit(RANDOM)
    thread.join()
    note = model.report_.notes[0]
    assert re.search(rf"the helper rank \(pid {process.pid} on .*\), which carries rows .* killed by signal: 9", note)
    assert "iteration 0" not in note
    np.testing.assert_allclose(model.inertia_, KMeans(50, max_iter=60, **LONG).fit(RANDOM).inertia_, rtol=1e-4)


def test_a_helper_rank_that_is_stopped_is_named_and_nothing_is_left(
    on_helped: xpulab.XPUCluster, hosts: Network
) -> None:
    """This is the last test of this cluster."""
    on_helped.silence, on_helped.recover = 2.0, False
    process = helper_of(on_helped)
    process.send_signal(signal.SIGSTOP)
    with pytest.raises(EngineLostError, match=r"the helper rank .* gave no sign of life for 2 s"):
        on_helped.scatter(X)
    until(lambda: not process.is_running() or process.status() == psutil.STATUS_ZOMBIE)
    for host in hosts.hosts:
        require_clean(host)


NOTEBOOK = """
import sys, xpulab
cluster = xpulab.XPUCluster(1, hosts="node2", ssh_config=sys.argv[1], display="none").start()
print("started", flush=True)
cluster.run(lambda task: __import__("time").sleep(1000))
"""


def test_nothing_is_left_on_any_host_after_the_notebook_is_killed(hosts: Network) -> None:
    words = [sys.executable, "-c", NOTEBOOK, hosts.ssh_config]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as notebook:
        assert notebook.stdout is not None
        assert notebook.stdout.readline() == "started\n"
        children = psutil.Process(notebook.pid).children(recursive=True)
        assert any("xpulab.engine" in child.cmdline() for child in children)
        os.kill(notebook.pid, signal.SIGKILL)
    require_clean(hosts.hosts[1])
    assert not psutil.wait_procs(children, 120)[1]
