"""The life of a cluster: start, stop, restart, clean-up, and the errors that a user sees."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from leftovers import left_in_memory, processes_marked, shared_memory
from strikes import acted_when
from waiting import until

import xpulab
from xpulab.deploy import cluster as registry
from xpulab.deploy.current import find_current, latest_cluster, latest_start
from xpulab.deploy.mpi import intel
from xpulab.deploy.mpi.command import HERE, RanksOfHost
from xpulab.deploy.plan.plan import Plan
from xpulab.deploy.plan.probe import core_ranges, probe
from xpulab.deploy.processes.launched import Launched
from xpulab.deploy.tasks.conversation import Conversation
from xpulab.exceptions import (
    ClusterStartError,
    DeviceNotFoundError,
    EngineError,
    EngineLostError,
    HandleError,
    NoClusterError,
    OversubscribedWarning,
    PlanError,
)
from xpulab.report import progress
from xpulab.sharing.answers import Reply

pytestmark = pytest.mark.cluster


def alive(pids: list[int]) -> list[int]:
    """Return those that still run. A zombie counts as ended."""
    found = []
    for pid in pids:
        try:
            if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                found.append(pid)
        except psutil.NoSuchProcess:
            continue
    return found


def wait_until_gone(pids: list[int]) -> None:
    until(lambda: not alive(pids))


def pids_of(cluster: xpulab.XPUCluster) -> list[int]:
    assert cluster.engines.processes is not None
    return cluster.engines.processes.pids()


@pytest.fixture(scope="module")
def often_ended() -> Iterator[xpulab.XPUCluster]:
    with xpulab.XPUCluster(1, recover=False, timeout=60) as cluster:
        yield cluster


@pytest.fixture
def lone(often_ended: xpulab.XPUCluster) -> xpulab.XPUCluster:
    """A running cluster of one engine, which a test may stop or lose."""
    return often_ended.start()


@pytest.mark.parametrize("scheduler", ["PBS", "LSF"])
def test_within_a_batch_job_mpiexec_starts_ranks_on_this_host(
    scheduler: str, tmp_path: Path, environment: Callable[..., None]
) -> None:
    """The test sets the variables of a scheduler for a job on this host and another, because there is no scheduler."""
    here = socket.gethostname()
    (tmp_path / "nodes").write_text(f"elsewhere\n{here}\n")
    variables = {
        "PBS": {"PBS_JOBID": "7", "PBS_NODEFILE": str(tmp_path / "nodes"), "PBS_ENVIRONMENT": "PBS_BATCH"},
        "LSF": {"LSB_JOBID": "7", "LSB_MCPU_HOSTS": f"elsewhere 1 {here} 1"},
    }
    environment(**variables[scheduler])
    start = intel.command([RanksOfHost(HERE, 2)])
    command = [*start.words, "-n", "2", "hostname"]
    said = subprocess.check_output(command, env={**os.environ, **start.environment}, text=True, timeout=240)
    assert said.splitlines() == [here] * 2


def test_a_cluster_starts_here_also_within_a_job_of_slurm_and_leaves_nothing(environment: Callable[..., None]) -> None:
    """The variables are those of a job on this host and another."""
    here = socket.gethostname()
    environment(
        SLURM_JOBID="7", SLURM_JOB_ID="7", SLURM_NNODES="2", SLURM_JOB_NUM_NODES="2",
        SLURM_NODELIST=f"elsewhere,{here}", SLURM_TASKS_PER_NODE="1(x2)",
    )  # fmt: skip
    with xpulab.XPUCluster(2, launcher="local") as cluster:
        assert cluster.run(lambda task: task.comm.size) == [2, 2]
        assert {fact.host for fact in cluster.facts} == {here}
        pids = pids_of(cluster)
        folder = cluster.engines.processes.folder  # type: ignore[union-attr]
        assert len(pids) >= 5  # controller and its monitor, mpiexec and its proxy, two engines
        assert xpulab.current_cluster() is cluster
        status = cluster.status()
        assert (status.state, status.n) == ("running", 2)
        assert [engine.rank for engine in status.engines] == [0, 1]
        assert {engine.pid for engine in status.engines} <= set(pids)
        assert [engine.state for engine in status.engines] == ["idle", "idle"]
        assert "xpulab cluster: running, 2 engines" in str(status)
        assert status.engines[0].device in status._repr_html_()
    assert not alive(pids)
    assert not folder.exists()
    assert cluster.status().state == "stopped"
    cluster.stop()


@dataclass
class Program:
    """A program with a cluster, which was killed.

    Attributes
    ----------
    said : list of str
        What it has printed of its cluster.
    pids : list of int
        The processes of the cluster, and those that its ranks had started.
    before : set of str
        The shared memory before the program.
    pid : int
        The program itself.
    folder : Path
        That of the cluster.
    client : XPUCluster
        The cluster as this process has attached to it before.
    """

    said: list[str]
    pids: list[int]
    before: set[str]
    pid: int
    folder: Path
    client: xpulab.XPUCluster


@pytest.fixture(scope="module")
def killed() -> Program:
    """A program that has started a cluster. Other tests initialise MPI in this process, which then listens, too."""
    source = f"""
import os, psutil, time, xpulab
from collections import ChainMap
from typing import Any
{inspect.getsource(_start_children)}
cluster = xpulab.XPUCluster(2, env=ChainMap({{"SAME": "s", "OWN": "all"}}, {{"1:OWN": "one"}})).start()
print(cluster.run(lambda here: [os.environ[name] for name in ("SAME", "OWN", "HOME")]))
sockets = [s for pid in (os.getpid(), *cluster.engines.processes.pids())
           for s in psutil.Process(pid).net_connections('inet') if s.status == psutil.CONN_LISTEN]
print(*{{s.laddr.ip for s in sockets}})
cluster.run(_start_children)
print(*cluster.engines.processes.pids())
print(cluster.engines.processes.record.name, flush=True)
time.sleep(100)
"""
    environment = {**os.environ, "HOME": "/proc"}  # no folder can be created in it
    environment.pop("IPYTHONDIR", None)
    before = shared_memory()
    words = [sys.executable, "-c", source]
    with subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        *said, pids, name = [program.stdout.readline().rstrip("\n") for _ in range(4)]
        client = xpulab.XPUCluster.attach(name)
        assert client.engines.processes is not None
        folder = client.engines.processes.folder
        program.kill()
    return Program(said, [int(word) for word in pids.split()], before, program.pid, folder, client)


def test_a_cluster_starts_without_a_writable_home_and_with_variables_of_any_mapping(killed: Program) -> None:
    assert killed.said[0] == "[['s', 'all', '/proc'], ['s', 'one', '/proc']]"


def test_every_process_listens_on_loopback_alone(killed: Program) -> None:
    assert killed.said[1] == "127.0.0.1"


def test_everything_ends_when_the_notebook_is_killed(killed: Program) -> None:
    """Clients of its cluster learn of it."""
    assert len(killed.pids) >= 5 + 2 * 2
    wait_until_gone(killed.pids)
    assert not left_in_memory(killed.before)
    until(lambda: not killed.folder.exists())
    with pytest.raises(NoClusterError, match=rf"process {killed.pid}, which had started the cluster, has ended"):
        killed.client.run(lambda task: task.comm.rank)
    assert not killed.client.running


@contextlib.contextmanager
def followed(said: list[str]) -> Iterator[None]:
    """Collect the messages of a start after it has ended."""

    class View:
        def update(self, report: Any) -> None: ...

        def close(self, report: Any) -> None:
            said.extend(report.message.splitlines())

    unsubscribe = progress.subscribe(lambda report: View())
    yield
    unsubscribe()


def test_start_twice_is_harmless(pair: xpulab.XPUCluster) -> None:
    pids = pids_of(pair)
    assert pair.start() is pair
    assert pids_of(pair) == pids


def test_one_of_several_clusters_is_active(pair: xpulab.XPUCluster) -> None:
    said: list[str] = []
    with followed(said), xpulab.XPUCluster(1, timeout=60) as other:
        shared = core_ranges(sorted({core for fact in other.facts for core in fact.cores}))
        assert (
            f"the cluster {pair.label} of this process is still running and uses the same cores {shared}: together "
            "they are slower; if you do not need it, call its stop()"
        ) in said
        assert pair.label.endswith(" (2 engines)")
        assert find_current() is other
        assert pair.activate() is find_current() is pair
        other.activate()
    assert find_current() is pair
    with pytest.raises(NoClusterError, match="this cluster is not running"):
        other.activate()


def test_each_engine_has_its_own_cores(pair: xpulab.XPUCluster) -> None:
    cores = pair.run(lambda task: (sorted(os.sched_getaffinity(0)), task.device.compute_units))
    plan = pair.plan()
    for (used, units), placement in zip(cores, plan.ranks, strict=True):
        assert tuple(used) == placement.cores
        assert units == len(placement.cores)
    if len(os.sched_getaffinity(0)) >= 2:
        assert not set(cores[0][0]) & set(cores[1][0])


def test_every_rank_answers(cluster: xpulab.XPUCluster) -> None:
    assert cluster.run(lambda task: task.comm.rank) == list(range(cluster.size))


def test_more_engines_than_cores_warn_or_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Reached(Exception):
        pass

    def reached(*_: Any, **__: Any) -> None:
        raise Reached

    monkeypatch.setattr("xpulab.deploy.life.Launched.start", reached)  # tests with the `cluster` fixture start some
    n = len(os.sched_getaffinity(0)) + 1

    def entered() -> None:
        with xpulab.XPUCluster(n, timeout=60):
            pass

    def on_a_stack() -> None:
        with contextlib.ExitStack() as stack:
            stack.enter_context(xpulab.XPUCluster(n, timeout=60))

    for start in (lambda: xpulab.XPUCluster(n, timeout=60).start(), entered, on_a_stack):
        with pytest.warns(OversubscribedWarning, match="share") as warned, pytest.raises(Reached):
            start()
        assert warned[0].filename == __file__  # where the user can change it
    with pytest.raises(PlanError, match="share"):
        xpulab.XPUCluster(n, strict=True).start()


def test_a_start_says_in_its_report_that_engines_share_cores(shell: Any, capsys: pytest.CaptureFixture[str]) -> None:
    n = len(os.sched_getaffinity(0)) + 1
    try:
        shell.run_cell(f"c = %xpu_cluster start -n {n}")
        said = capsys.readouterr()
        assert f"{n} engines share the cores" in said.err
        assert "magics.py" not in said.err
        assert "Warning" not in said.err + said.out
        assert f"xpulab: start {n} engines: finished" in said.err
    finally:
        shell.run_cell("%xpu_cluster stop")


def listening(pids: list[int]) -> set[str]:
    addresses = set()
    for pid in pids:
        for connection in psutil.Process(pid).net_connections("inet"):
            if connection.status == psutil.CONN_LISTEN:
                addresses.add(connection.laddr.ip)
    return addresses


def test_every_port_is_on_loopback(pair: xpulab.XPUCluster) -> None:
    assert listening(pids_of(pair)) == {"127.0.0.1"}


def test_connection_files_are_private(pair: xpulab.XPUCluster) -> None:
    folder: Path = pair.engines.processes.folder  # type: ignore[union-attr]
    assert folder.stat().st_mode & 0o777 == 0o700
    files = list((folder / "security").iterdir())
    assert files
    for file in files:
        assert file.stat().st_mode & 0o077 == 0


def test_what_a_function_prints_is_in_the_logs(pair: xpulab.XPUCluster) -> None:
    def say(task: Any) -> None:
        import os

        print(f"rank {task.comm.rank} was here")
        os.write(2, f"rank {task.comm.rank} too\n".encode())  # as a library would

    pair.run(say)
    logs = pair.logs(100)
    for rank in range(2):
        assert f"rank {rank} was here" in logs
        assert f"rank {rank} too" in logs


def test_logs_hold_no_key(pair: xpulab.XPUCluster) -> None:
    import json

    folder: Path = pair.engines.processes.folder  # type: ignore[union-attr]
    key = json.loads((folder / "security" / "ipcontroller-client.json").read_text())["key"]
    assert len(key) > 10
    assert "IPEngine" in pair.logs()
    assert key not in pair.logs(100_000)


@pytest.mark.parametrize("n", [0, -1, "two", 1.5, True])
def test_an_invalid_number_of_engines_is_refused(n: Any) -> None:
    with pytest.raises(PlanError, match=str(n)):
        xpulab.XPUCluster(n).start()
    assert find_current() is None or find_current().running  # type: ignore[union-attr]


def test_an_unknown_device_is_refused_with_a_list_of_devices() -> None:
    with pytest.raises(DeviceNotFoundError, match="opencl"):
        xpulab.XPUCluster(devices="level_zero:7").start()


@pytest.mark.parametrize("in_a_notebook", [False, True])
def test_a_start_that_fails_shows_the_engines_message(in_a_notebook: bool) -> None:
    cluster = xpulab.XPUCluster(1, mpi_args="-no-such-option")

    async def start() -> None:
        cluster.start()

    before = set(psutil.Process().children(recursive=True))
    with pytest.raises(ClusterStartError, match="no-such-option"):
        # In a notebook an event loop runs in the main thread, and ipyparallel uses one in another.
        asyncio.run(start()) if in_a_notebook else cluster.start()
    wait_until_gone([child.pid for child in set(psutil.Process().children(recursive=True)) - before])


def test_an_engine_that_cannot_import_shows_its_traceback(environment: Callable[..., None], tmp_path: Path) -> None:
    (tmp_path / "mpi4py").mkdir()
    (tmp_path / "mpi4py" / "__init__.py").write_text("raise ImportError('a broken installation')")
    environment(PYTHONPATH=str(tmp_path))
    with pytest.raises(ClusterStartError, match="a broken installation"):
        xpulab.XPUCluster(1).start()


def test_a_start_that_takes_too_long_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engines wait for their placement, which is never sent."""
    monkeypatch.setattr("xpulab.deploy.processes.launched.Launched._place", lambda *_: None)
    before = set(processes_marked())
    with pytest.raises(ClusterStartError, match="not ready in time"):
        xpulab.XPUCluster(1, timeout=0.5).start()
    assert set(processes_marked()) <= before


@pytest.mark.timeout(60)
def test_a_rank_that_is_stopped_when_all_have_registered_ends_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stopping(Conversation):
        def exchange(self, name: str, *given: Any) -> list[Reply]:
            assert self.engines.processes is not None
            for process in map(psutil.Process, self.engines.processes.pids()):
                if "xpulab.engine" in process.cmdline()[:4]:
                    process.suspend()
            return super().exchange(name, *given)

    monkeypatch.setattr("xpulab.deploy.cluster.Conversation", Stopping)

    with pytest.raises(ClusterStartError, match=r"an engine \(pid \d+\) was stopped while the cluster was starting"):
        xpulab.XPUCluster(1, silence=1.0).start()


def test_restart_gives_new_engines_forgets_the_rows_and_keeps_no_descriptor(lone: xpulab.XPUCluster) -> None:
    first = pids_of(lone)
    handle = lone.scatter(np.ones((5, 2)))
    lone.run(lambda task: task.comm.rank)  # opens the logs
    opened = len(os.listdir("/proc/self/fd"))
    lone.restart()
    assert not alive(first)
    with pytest.raises(HandleError, match="stopped or restarted"):
        handle.gather()
    assert lone.run(lambda task: task.comm.rank) == [0]
    until(lambda: len(os.listdir("/proc/self/fd")) <= opened)  # threads close theirs a moment later


def test_a_killed_engine_is_an_error_within_seconds() -> None:
    before = shared_memory()
    with xpulab.XPUCluster(2, recover=False) as cluster:
        pids = pids_of(cluster)
        children = [pid for pids in cluster.run(_start_children) for pid in pids]
        memory = {name for names in cluster.run(_memory_of_children) for name in names}
        assert all(map(os.path.exists, memory))
        os.kill(cluster.facts[1].pid, signal.SIGKILL)
        started = time.monotonic()
        wait_until_gone(children)  # before any call
        assert not left_in_memory(before)
        until(lambda: not any(map(os.path.exists, memory)))
        with pytest.raises((EngineLostError, NoClusterError), match=r"%xpu_cluster start"):
            _run_until_lost(cluster)
        assert time.monotonic() - started < 5  # docs/promises.md
        wait_until_gone(pids)
        with pytest.raises(NoClusterError, match="not running"):
            cluster.run(lambda task: 0)


def _start_children(task: Any) -> list[int]:
    """Start processes on an engine which do not end by themselves, and shared memory that a process removes."""
    import multiprocessing
    import subprocess
    import time
    from multiprocessing import resource_tracker, shared_memory

    forked = multiprocessing.get_context("fork").Process(target=time.sleep, args=(1000,), daemon=True)
    forked.start()
    started = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    task.engine.namespace["kept"] = [
        started,
        shared_memory.SharedMemory(create=True, size=1),
        multiprocessing.get_context("spawn").Semaphore(),
    ]
    tracker: Any = resource_tracker
    return [int(forked.pid or 0), started.pid, tracker._resource_tracker._pid]


def _memory_of_children(task: Any) -> list[str]:
    """Have joblib's workers compute on an engine. Return the files of shared memory, of `_start_children`, too."""
    import glob
    import os

    import joblib

    assert sum(joblib.Parallel(2)(joblib.delayed(abs)(number) for number in (-1, 2))) == 3
    of_joblib = glob.glob(f"/dev/shm/*[_-]{os.getpid()}[_-]*")
    assert {os.path.basename(path).partition("-")[0].partition("_")[0] for path in of_joblib} == {"joblib", "sem.loky"}
    return [f"/dev/shm/{task.engine.namespace['kept'][1].name}", *of_joblib]


def _run_until_lost(cluster: xpulab.XPUCluster) -> None:
    for _ in range(100):
        cluster.run(lambda task: task.comm.allgather(1))
        time.sleep(0.05)


def _sleep(task: Any, seconds: float) -> None:
    import time

    time.sleep(seconds)


@pytest.mark.parametrize("which", [0, 1], ids=["itself", "its heart monitor"])
def test_everything_ends_when_the_controller_is_killed(which: int, lone: xpulab.XPUCluster) -> None:
    pids = pids_of(lone)
    controller = psutil.Process(lone.engines.processes.record.processes["controller"][0])  # type: ignore[union-attr]
    [controller, *controller.children(recursive=True)][which].kill()
    with pytest.raises((EngineLostError, NoClusterError), match="%xpu_cluster start"):
        _run_until_lost(lone)
    wait_until_gone(pids)


def test_a_start_without_its_heart_monitor_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[int] = []
    place = Launched._place

    def placed(processes: Launched, plan: Plan) -> None:
        deadline = time.monotonic() + 120
        while not killed and time.monotonic() < deadline:  # not ready before the engines know their places
            time.sleep(0.01)
        place(processes, plan)

    monkeypatch.setattr(Launched, "_place", placed)
    others, before = set(psutil.Process().children()), set(processes_marked())

    def strike() -> None:
        deadline = time.monotonic() + 120  # so that it never strikes another test's cluster
        while not killed and time.monotonic() < deadline:
            time.sleep(0.01)
            for child in set(psutil.Process().children()) - others:
                with contextlib.suppress(psutil.Error):
                    if "xpulab.deploy.processes.controller" in child.cmdline() and (monitors := child.children()):
                        monitors[0].kill()
                        killed.append(monitors[0].pid)

    threading.Thread(target=strike, daemon=True).start()
    with pytest.raises(ClusterStartError, match="controller ended while the cluster was starting"):
        xpulab.XPUCluster(1).start()
    assert set(processes_marked()) <= before


def test_everything_ends_when_a_program_exits_that_imports_the_class_only() -> None:
    code = (
        "import atexit\natexit.register(lambda: print(c.running))\n"  # called last
        "from xpulab import XPUCluster\nc = XPUCluster(1, display='none').start()\np = c.engines.processes\n"
        "print(c.running, *p.pids(), p.folder, flush=True)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    ran, *pids, folder, runs = done.stdout.split()
    assert (ran, runs) == ("True", "False"), done.stderr
    wait_until_gone([int(pid) for pid in pids])
    assert not Path(folder).exists()


@pytest.mark.parametrize("begun", ["xpulab.deploy.processes.controller", "xpulab.engine"])
def test_an_interrupt_while_starting_leaves_nothing(begun: str) -> None:
    """It comes when the first of these processes has begun."""
    code = "import xpulab\nxpulab.XPUCluster(2).start()"
    notebook = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True)
    children: dict[int, list[str]] = {}

    def has_begun() -> bool:
        assert notebook.poll() is None
        for child in psutil.Process(notebook.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                children[child.pid] = child.cmdline()
        return any(begun in words[:4] for words in children.values())

    try:
        until(has_begun)
        notebook.send_signal(signal.SIGINT)
        assert "start was interrupted" in notebook.communicate(timeout=120)[1]
        wait_until_gone([*children])
    finally:
        notebook.kill()  # if the test has failed


def test_an_error_on_one_rank_is_one_error_and_the_cluster_goes_on(pair: xpulab.XPUCluster) -> None:
    def fail(task: Any) -> Any:
        if task.comm.rank == 1:
            raise ValueError("rank one only")
        return task.comm.allgather(task.comm.rank)

    for _ in range(3):
        with pytest.raises(
            EngineError, match=r"(?s)1 of 2 engines raised ValueError.*rank 1 on.*rank one only"
        ) as caught:
            pair.run(fail)
        assert str(caught.value).count("rank one only") == 1 + str(caught.value).count('ValueError("rank one only")')
        assert pair.run(lambda task: task.comm.allgather(task.comm.rank)) == [[0, 1], [0, 1]]


def test_the_same_error_on_all_ranks_shows_once(pair: xpulab.XPUCluster) -> None:
    def together(task: Any) -> None:
        task.comm.allgather(0)  # else one may see that the other has raised, and leave before
        1 / 0  # noqa: B018

    with pytest.raises(EngineError, match=r"2 of 2 engines raised ZeroDivisionError\nrank 0, 1 on") as caught:
        pair.run(together)
    assert str(caught.value).count("Traceback") == 1


def test_a_call_reads_no_output_after_the_next_call_has_ended(
    pair: xpulab.XPUCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its files are closed by then, and what child processes of the next call print is shown."""

    def print_later(task: Any) -> None:
        subprocess.Popen(["sh", "-c", "sleep 0.5; echo late"])

    with pair.tasks.following() as following:
        following.finish()
        pair.run(print_later)  # by another thread, in a program with several
    shown, deadline = "", time.monotonic() + 120
    while "late" not in shown and time.monotonic() < deadline:
        time.sleep(0.05)
        shown += capsys.readouterr().out
    assert "late" in shown


def test_tasks_from_threads_never_interleave(pair: xpulab.XPUCluster) -> None:
    from concurrent.futures import ThreadPoolExecutor

    def check(task: Any, number: int) -> Any:
        return task.comm.allgather(number)

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda number: pair.run(check, number), range(40)))
    assert results == [[[number, number]] * 2 for number in range(40)]


def test_the_controller_does_not_grow_with_the_data(pair: xpulab.XPUCluster) -> None:
    controller = psutil.Process(pair.engines.processes.record.processes["controller"][0])  # type: ignore[union-attr]
    X = np.zeros((1 << 20, 16), np.float32)  # 64 MiB
    pair.scatter(X[:1000]).gather()
    before = controller.memory_info().rss
    for _ in range(3):
        np.testing.assert_array_equal(pair.scatter(X).gather()[-1], X[-1])
    assert controller.memory_info().rss - before < 8 << 20


def test_an_engine_that_fails_late_ends_the_start_at_once(
    monkeypatch: pytest.MonkeyPatch, environment: Callable[..., None], tmp_path: Path
) -> None:
    (tmp_path / "dpctl").mkdir()
    (tmp_path / "dpctl" / "__init__.py").write_text("raise ImportError('broken after MPI_Init')")
    # The probe is given a healthy answer, as if the environment had been broken since.
    found = xpulab.XPUCluster().plan()
    monkeypatch.setattr("xpulab.deploy.planning.Planning._make_plan", lambda *_: found)
    monkeypatch.setattr("xpulab.deploy.planning.probe", lambda: None)
    environment(PYTHONPATH=str(tmp_path))
    with pytest.raises(ClusterStartError, match="broken after MPI_Init"):
        xpulab.XPUCluster(1).start()


@pytest.mark.parametrize(
    ("number", "words"),
    [(signal.SIGKILL, r"an engine \(pid \d+\) ended"), (signal.SIGSTOP, r"an engine \(pid \d+\) was stopped")],
)
def test_an_engine_lost_before_mpi_has_begun_ends_the_start(number: signal.Signals, words: str) -> None:
    found: list[int] = []
    others = set(psutil.Process().children(recursive=True))

    def strike() -> None:
        deadline = time.monotonic() + 120  # so that it never strikes another test's cluster
        while not found and time.monotonic() < deadline:
            time.sleep(0.01)
            for child in set(psutil.Process().children(recursive=True)) - others:
                with contextlib.suppress(psutil.Error):
                    if "xpulab.engine" in child.cmdline()[:4]:
                        child.send_signal(number)
                        found.append(child.pid)
                        break

    thread = threading.Thread(target=strike)
    thread.start()
    with pytest.raises(ClusterStartError, match=words):
        xpulab.XPUCluster(2, silence=0.5).start()
    thread.join()
    wait_until_gone(found)


def test_a_stop_from_another_thread_ends_the_task_that_runs(lone: xpulab.XPUCluster) -> None:
    assert lone.engines.board is not None
    ranks = lone.engines.board.ranks
    with (
        acted_when(lambda: ranks["hears"].all(), lone.stop),  # as a button does
        pytest.raises(NoClusterError, match=r"stopped while a task was running; type: %xpu_cluster start"),
    ):
        lone.run(_sleep, 600)
    assert lone.start().run(lambda task: task.comm.rank) == [0]


def test_a_stop_ends_the_others_where_a_process_has_just_ended(
    lone: xpulab.XPUCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert lone.engines.processes is not None
    folder, pids = lone.engines.processes.folder, pids_of(lone)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    monkeypatch.setattr(lone.engines.processes, "pids", lambda: [ended.pid, *pids])
    monkeypatch.setattr(psutil, "pid_exists", lambda pid: True)  # as it was a moment ago
    lone.stop()
    wait_until_gone(pids)
    assert not folder.exists()


def test_a_rank_that_raises_after_the_others_have_ended(pair: xpulab.XPUCluster) -> None:
    def late(task: Any) -> None:
        import time

        if task.comm.rank == 1:
            time.sleep(0.3)
            raise ValueError("late")

    for _ in range(2):
        with pytest.raises(EngineError, match=r"1 of 2 engines raised ValueError"):
            pair.run(late)
        assert pair.run(lambda task: task.comm.allgather(task.comm.rank)) == [[0, 1], [0, 1]]


def test_a_rank_that_fails_before_mpi_has_begun_ends_the_start_at_once(
    environment: Callable[..., None], tmp_path: Path
) -> None:
    (tmp_path / "mpi4py").mkdir()
    (tmp_path / "mpi4py" / "__init__.py").write_text(
        "import os\n"
        "if os.environ.get('PMI_RANK') == '1': raise ImportError('broken on rank 1')\n"
        "__path__ = [os.environ['XPULAB_TEST_MPI4PY']]\n"
    )
    import mpi4py

    environment(
        XPULAB_TEST_MPI4PY=str(Path(mpi4py.__file__).parent),
        PYTHONPATH=os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")])),
    )
    with pytest.raises(ClusterStartError, match=r"(?s)ended while the cluster was starting.*broken on rank 1"):
        xpulab.XPUCluster(2, timeout=60).start()


def test_logs_and_restart_are_of_a_start_that_failed_and_the_last_report_of_the_cluster_before(
    no_cluster: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = probe()
    monkeypatch.setattr("xpulab.deploy.planning.probe", lambda: found)
    with pytest.raises(NoClusterError):
        latest_start()
    ran, failed = xpulab.XPUCluster(1), [xpulab.XPUCluster(1, devices="warp", display="none") for _ in range(2)]
    ran.life.seconds_to_start = 1.0
    registry.clusters.latest[:] = [ran]
    for each in failed:
        with pytest.raises(DeviceNotFoundError):
            each.start()
        assert latest_start() is each
        assert "ipcontroller" in each.logs()
        assert latest_cluster() is ran
    assert registry.clusters.latest == [ran, failed[1]]
