"""Clusters of real MPI engines for the tests, and the check that a run leaves nothing behind."""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib.util
import os
import runpy
import signal
import sys
import tempfile
import time
import weakref
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from constants import constants_here
from displayed_reports import leave_reports_out
from exercises import with_solutions
from hypothesis import settings
from leftovers import not_of_others, processes_marked, shared_memory
from suites import end_suites
from threadpoolctl import threadpool_limits

import xpulab
from tests.scheduling import FoldersStayTogether
from xpulab.data import Outgoing
from xpulab.deploy.registry import Registry
from xpulab.sharing.board import Board
from xpulab.sharing.memory import SharedBlock
from xpulab.sharing.sources import ProcessRows, Source

# A shell starts background processes with SIGINT ignored, and Python then never raises KeyboardInterrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

# With this variable, each of the many processes would compile all modules that it imports again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# What modules and the collection of ten thousand tests make is never garbage: see `pytest_collection_finish`.
gc.disable()

# Each run uses the same examples, so that a failure is due to the change that is tested.
settings.register_profile("the same", derandomize=True, deadline=None)
settings.load_profile("the same")

leave_reports_out()

# No test uses results of earlier tuning on this machine, or tunes in its middle. The tests of tuning turn it on.
os.environ["XPULAB_TUNE"] = "0"

# With several workers (`-n 3`), each worker has clusters that the others do not see, as if another user ran it. Its
# ranks share the cores with those of the others.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("I_MPI_THREAD_YIELD", "3")
    os.environ.setdefault("I_MPI_THREAD_SLEEP", "50")
    _folder = tempfile.TemporaryDirectory(prefix="xpulab-tests-")
    os.environ["XPULAB_RUNTIME_DIR"] = _folder.name


_HOSTS = Path(__file__).parent / "hosts"
_BROWSER = Path(__file__).parent / "browser"


@pytest.hookimpl(wrapper=True)  # around options such as `-m` and `-k`, which remove tests
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Generator[None, None, None]:
    """Mark tests, leave combinations out, add the solutions of exercises, and skip what lacks its needs.

    The marks say what needs engines or the device, so that ``-m "not cluster and not slow"`` leaves it out.
    """
    for item in items:
        needs = set(getattr(item, "fixturenames", ()))
        if item.path.suffix == ".ipynb" or needs & {"clusters", "pair", "_often_lost"}:
            item.add_marker("cluster")
        elif "device" in needs:  # the driver compiles a kernel for each combination
            item.add_marker("slow")
        if _SECOND_TRY and isinstance(item, pytest.Function) and item.get_closest_marker("flaky") is None:
            item.add_marker(pytest.mark.flaky(reruns=1))
    yield
    left_out = set() if os.environ.get("XPULAB_ALL_COMBINATIONS") else _left_out(items)
    if left_out:
        items[0].config.hook.pytest_deselected(items=left_out)
    items[:] = with_solutions([item for item in items if item not in left_out])
    reasons = {}
    if not os.environ.get("XPULAB_NOTEBOOK_HOSTS"):
        reasons["09_"] = "tests/hosts/test_notebook_of_hosts.py runs notebook 09, on hosts that it makes"
    if any(importlib.util.find_spec(name) is None for name in ("torch", "skorch")):
        reasons["10_"] = "PyTorch and skorch are not installed"
    if not os.environ.get("XPULAB_HOSTS"):
        reasons[str(_HOSTS)] = "XPULAB_HOSTS is not set, with which the tests make hosts and a Slurm on this machine"
    if not os.environ.get("XPULAB_BROWSER"):
        reasons[str(_BROWSER)] = "XPULAB_BROWSER is not set, with which the tests open notebooks in Chromium"
    for item in items:
        if reason := reasons.get(item.path.name[:3]) or reasons.get(str(item.path.parent)):
            item.add_marker(pytest.mark.skip(reason=reason))


def _left_out(items: list[pytest.Item]) -> set[pytest.Item]:
    """Return the combinations of parameters that do not run.

    Each combination of a test's other parameters runs on one of its clusters, in turn, if there are as many of them as
    clusters. In general, with the mark `fraction`, the combinations run for which the numbers of the parameters add up
    to a multiple of n. If each parameter has n values or more, each combination of all parameters but one runs with a
    value of the one that is left, such as one of the clusters.
    """
    of_tests: dict[str, list[tuple[pytest.Item, dict[str, int]]]] = defaultdict(list)
    known: dict[tuple[str, str], list[object]] = defaultdict(list)
    for item in items:
        if (call := getattr(item, "callspec", None)) is None:
            continue
        parameters, test = dict(call.params), item.nodeid.partition("[")[0]
        for each in item.iter_markers("parametrize"):
            names = each.args[0].split(",") if isinstance(each.args[0], str) else each.args[0]
            first, *rest = (name.strip() for name in names)
            parameters[first] = (call.params[first], *(parameters.pop(name) for name in rest))  # they change together
        numbers = {}
        for name, value in parameters.items():
            values = known[test, name]
            same = tuple(map(id, value)) if isinstance(value, tuple) else id(value)
            if same not in values:
                values.append(same)
            numbers[name] = values.index(same)
        of_tests[test].append((item, numbers))
    found = set()
    for test, combinations in of_tests.items():
        if test.endswith("::test_the_checks_of_scikit_learn"):
            found |= _checks_left_out([item for item, _ in combinations])
            continue
        mark = combinations[0][0].get_closest_marker("fraction")
        n = mark.args[0] if mark else len(known[test, "cluster"])
        if mark or (n and len(combinations) >= n * n):
            found |= {item for item, numbers in combinations if sum(numbers.values()) % n}
    return found


def _checks_left_out(items: list[Any]) -> set[pytest.Item]:
    """Return scikit-learn's checks that do not run: each runs with a third of many estimators, and with one of two."""
    of_estimators: dict[int, list[pytest.Item]] = defaultdict(list)
    for item in items:
        of_estimators[id(item.callspec.params["estimator"])].append(item)
    n, every = min(3, len(of_estimators)), enumerate(of_estimators.values())
    return {check for first, checks in every for number, check in enumerate(checks, first) if number % n}


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> FoldersStayTogether | None:
    """Say which worker runs which file, unless the command line names another ``--dist``."""
    return FoldersStayTogether(config, log) if config.getvalue("dist") == "loadfile" else None


def pytest_collection_finish() -> None:
    """Have the collector of garbage look at what tests make, and not at the tests and their modules.

    Give each of several workers one thread for OpenMP and BLAS, whose libraries the tests have loaded. Two threads
    would wait for each other at full speed beside the engines, which took a ninth of all processor time.
    """
    gc.freeze()
    gc.enable()
    if "PYTEST_XDIST_WORKER" in os.environ:
        threadpool_limits(1)


def _failing_at_interrupts() -> Generator[None, Any, Any]:
    """Fail a test, or its fixtures, that an interrupt leaves, in place of the worker, which has further tests.

    The interrupt may be that of a test before, if this test has ended too early.
    """
    try:
        return (yield)
    except KeyboardInterrupt as interrupt:
        if "PYTEST_XDIST_WORKER" not in os.environ:
            raise
        pytest.fail(f"{type(interrupt).__name__} has left the test: {interrupt}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Generator[None, Any, Any]:
    """See `_failing_at_interrupts`."""
    return (yield from _failing_at_interrupts())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, Any, Any]:
    """See `_failing_at_interrupts`."""
    return (yield from _failing_at_interrupts())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Generator[None, Any, Any]:
    """See `_failing_at_interrupts`."""
    return (yield from _failing_at_interrupts())


_seen: weakref.WeakSet[xpulab.XPUCluster] = weakref.WeakSet()  # clusters that this process has started or attached
_shared: weakref.WeakSet[xpulab.XPUCluster] = weakref.WeakSet()  # those of fixtures that several tests share
_activate = Registry.activate


def _note_and_activate(registry: Registry[Any], cluster: xpulab.XPUCluster) -> None:
    _seen.add(cluster)
    _activate(registry, cluster)


Registry.activate = _note_and_activate  # type: ignore[assignment, method-assign]


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any]) -> Generator[None, Any, Any]:
    """Note which clusters belong to fixtures that several tests share."""
    before = set(_seen)
    try:
        return (yield)
    finally:
        if fixturedef.scope != "function":
            _shared.update(set(_seen) - before)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note that a test has failed, for its fixtures and for ``--junitxml``, which forgets the first of two runs."""
    report = yield
    if report.failed:
        item.stash[_FAILED] = True
        item.user_properties.append(("traceback", report.longreprtext))
    return report


_FAILED = pytest.StashKey[bool]()


@pytest.fixture(autouse=True)
def own_clusters_have_ended(request: pytest.FixtureRequest) -> Iterator[None]:
    """End the clusters that a test has started before it failed, so that a second run of it finds none of them."""
    before = set(_seen)  # of wider fixtures, which are there first
    request.node.stash[_FAILED] = False
    yield
    if request.node.stash[_FAILED]:
        for cluster in set(_seen) - before - set(_shared):
            if cluster.running:
                cluster.detach() if cluster.attached else cluster.stop()


_memory = shared_memory()  # what is there before the run


def _left_behind(find: Callable[[], list[str]]) -> str:
    """Say what is left after some seconds; an empty text if it is nothing."""
    deadline = time.monotonic() + 10
    while find() and time.monotonic() < deadline:
        time.sleep(0.1)
    return f"the run has left behind: {', '.join(left)}" if (left := find()) else ""


@pytest.fixture(scope="session", autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """Check that the run, or this worker, leaves no process. `--rerun-except` names the error's text."""
    running = set(processes_marked())
    yield
    end_suites()
    if left := _left_behind(
        lambda: [f"process {pid}: {line}" for pid, line in processes_marked().items() if pid not in running]
    ):
        pytest.fail(left)


@pytest.fixture(autouse=True)
def ctrl_c_is_left_as_it_was() -> Iterator[None]:
    """Check that no test, and no call in it, leaves another handler of SIGINT: Ctrl-C of later tests would be lost."""
    yield
    if (handler := signal.getsignal(signal.SIGINT)) is not signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        pytest.fail(f"SIGINT has another handler after the test: {handler}")


@pytest.fixture(autouse=True)
def no_request_to_stop_is_left() -> Iterator[None]:
    """Check that no test leaves a request to stop a task on the board of a cluster that other tests share."""
    yield
    for cluster in [each for each in _shared if each.running]:
        if (board := cluster.engines.board) is not None and (left := _left_behind(functools.partial(_requests, board))):
            for number in board.requests:
                board.forget(number)
            pytest.fail(left)


def _requests(board: Board) -> list[str]:
    return [f"a request to stop task {number}" for number in board.requests]


#: Whether each test that fails is run once more, which .ci/run asks for.
_SECOND_TRY = bool(os.environ.get("XPULAB_SECOND_TRY"))
_MOST_RERUNS = 8  # of about ten thousand tests: more is a fault that shows by chance, not the machine's load
_faults: list[str] = []  # of the whole run


@pytest.hookimpl(trylast=True)  # after all workers have ended
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Check that the run leaves no shared memory, and that few tests ran twice.

    A worker cannot tell its own memory from that of the others.
    """
    if "PYTEST_XDIST_WORKER" in os.environ:
        return
    if left := _left_behind(lambda: sorted(not_of_others(shared_memory() - _memory))):
        _faults.append(left)
    terminal = session.config.pluginmanager.get_plugin("terminalreporter")
    if terminal is not None and (twice := len(terminal.stats.get("rerun", ()))) > _MOST_RERUNS:
        _faults.append(f"{twice} tests have failed and then passed or failed again; expected at most {_MOST_RERUNS}")
    if _faults:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say why tests ran twice, and what is wrong with the run."""
    for report in terminalreporter.stats.get("rerun", ()):
        terminalreporter.section(f"first run of {report.nodeid}")
        terminalreporter.write_line(report.longreprtext)
    for fault in _faults:
        terminalreporter.write_line(f"ERROR {fault}", red=True)


#: Numbers of engines of the clusters, and the names of tests with them. (`pair` has two other engines.)
CLUSTERS = {1: "1-engine", 3: "3-engines", 2: "2-engines-as-GPUs"}


@pytest.fixture(scope="session")
def clusters() -> Iterator[Callable[[int], xpulab.XPUCluster]]:
    """A function that returns the running cluster of `n` engines, and starts it at the first call.

    Engines that have taken the place of lost ones are prepared, too, when the cluster is asked for again.
    """
    with contextlib.ExitStack() as until_the_end:
        prepared: dict[int, list[int]] = {}  # number of engines -> their processes

        @functools.cache
        def running(n: int) -> xpulab.XPUCluster:
            return until_the_end.enter_context(_started(n))

        def ready(n: int) -> xpulab.XPUCluster:
            cluster = running(n)
            if (pids := [engine.pid for engine in cluster.facts]) != prepared.get(n):
                cluster.run(_imitate, n == 2, n == 3)
                prepared[n] = pids
            return cluster

        yield ready


@pytest.fixture(autouse=True)
def engines_are_prepared(request: pytest.FixtureRequest) -> None:
    """Prepare new engines of `cluster` before the next test: it would pass as one of engines that imitate nothing."""
    if {"cluster", "clusters"} <= {*request.fixturenames}:
        request.getfixturevalue("clusters")(len(request.getfixturevalue("cluster").facts))


@pytest.fixture(scope="module", params=CLUSTERS, ids=CLUSTERS.get)
def cluster(request: pytest.FixtureRequest, clusters: Callable[[int], xpulab.XPUCluster]) -> xpulab.XPUCluster:
    """A running cluster of 1, 3 and 2 engines. They share cores if there are fewer. Fresh memory contains garbage.

    All engines are on the CPU's device. This package treats the device of the 2 engines as one with its own memory,
    and chooses the settings for GPUs. The 3 engines exchange every array as they exchange long ones, so that each
    algorithm's tests pass that way too. A test may ask for another number, such as 4, by `indirect` parameters.
    """
    return clusters(request.param)


def _imitate(task: Any, as_gpu: bool, as_long: bool) -> None:
    """On an engine: fill fresh memory with garbage; treat the device as a GPU, and every message as a long one."""
    from xpulab.engine import comm

    if as_long:
        comm.FEW = 1
    device = task.device
    if as_gpu:
        device.shares_memory = device.is_cpu = False
    empty = device.empty

    def not_initialised(size: int, dtype: Any) -> Any:
        array = empty(size, dtype)
        device.fill(array, np.nan if array.dtype.kind == "f" else 0x5A)
        return array

    device.empty = not_initialised


@pytest.fixture(scope="session")
def pair() -> Iterator[xpulab.XPUCluster]:
    """A running cluster of 2 engines."""
    with _started(2) as cluster:
        yield cluster


@pytest.fixture
def on_pair(pair: xpulab.XPUCluster) -> xpulab.XPUCluster:
    """The cluster of 2 engines, as the active cluster."""
    return pair.activate()


@pytest.fixture(scope="session")
def _often_lost() -> Iterator[xpulab.XPUCluster]:
    with xpulab.XPUCluster(2, silence=5.0) as cluster:
        _shared.add(cluster)
        yield cluster


@pytest.fixture
def losable(_often_lost: xpulab.XPUCluster) -> xpulab.XPUCluster:
    """A running cluster of 2 engines of which a test may lose some, as the active cluster."""
    if not _often_lost.running:
        _often_lost.restart()
    return _often_lost.activate()


@contextlib.contextmanager
def _started(n: int) -> Iterator[xpulab.XPUCluster]:
    shared = n > len(os.sched_getaffinity(0))
    with pytest.warns(xpulab.exceptions.OversubscribedWarning, match="share") if shared else contextlib.nullcontext():
        cluster = xpulab.XPUCluster(n, timeout=240).start()  # also on a busy machine, whose disk is slow
    _shared.add(cluster)  # also if a test is the first to ask for it
    try:
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture
def current(cluster: xpulab.XPUCluster) -> xpulab.XPUCluster:
    """The parametrised cluster, as the active cluster: other tests may have started clusters since."""

    return cluster.activate()


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """A function that sets environment variables until the test ends, or removes those that are None."""

    def change(**variables: str | None) -> None:
        for name, value in variables.items():
            if value is None:
                monkeypatch.delenv(name, raising=False)
            else:
                monkeypatch.setenv(name, value)

    return change


@pytest.fixture
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, in which this process works until the test ends."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def run_benchmark(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """A function that runs a file of benchmarks/ as a program, on a running cluster, and returns what it prints."""
    benchmarks = Path(__file__).parents[1] / "benchmarks"

    def run(script: str, *options: str, cluster: xpulab.XPUCluster | None = None) -> str:
        def running(n: int, **_: Any) -> Any:
            assert cluster is not None
            assert n == cluster.size
            return contextlib.nullcontext(cluster.activate())

        with monkeypatch.context() as patch:
            patch.setattr(sys, "argv", [Path(script).name, *options])
            patch.syspath_prepend(str((benchmarks / script).parent))
            if cluster is not None:
                patch.setattr(xpulab, "XPUCluster", running)
            runpy.run_path(str(benchmarks / script), run_name="__main__")
        return capsys.readouterr().out

    return run


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of bytes that this process writes into shared memory, or lets the engines read in its own memory.

    What a task is told without rows does not count, which is in shared memory if it is long.
    """
    counted: list[int] = []
    write, send = SharedBlock.write, Outgoing.send_rows

    class Told(SharedBlock):
        """Memory of what a task is told."""

    def writing(block: SharedBlock, data: np.ndarray, offset: int) -> None:
        counted.append(data.nbytes)
        write(block, data, offset)

    def sending(outgoing: Outgoing, rows: np.ndarray, *rest: Any) -> Source:
        source = send(outgoing, rows, *rest)
        if isinstance(source, ProcessRows):
            counted.append(rows.nbytes)
        return source

    Told.write = write  # type: ignore[method-assign]
    monkeypatch.setattr("xpulab.deploy.tasks.ways.SharedBlock", Told)
    monkeypatch.setattr(SharedBlock, "write", writing)
    monkeypatch.setattr(Outgoing, "send_rows", sending)
    return counted


@pytest.fixture
def received(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of bytes of the results that come to this process; rows of a handle never do."""
    counted: list[int] = []
    receive = Outgoing.receive

    def receiving(outgoing: Outgoing, shape: Any, dtype: Any, on_disk: bool = False) -> Any:
        counted.append(int(np.prod(shape)) * np.dtype(dtype).itemsize)
        return receive(outgoing, shape, dtype, on_disk)

    monkeypatch.setattr(Outgoing, "receive", receiving)
    return counted


@pytest.fixture
def merged_lines() -> Iterator[None]:
    """Let a line that a rank prints wait for the other ranks as long as it takes: none is late on a busy machine."""
    with constants_here("xpulab.deploy.tasks.merging", HOLD=600.0):
        yield


@pytest.fixture
def no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the library not know the clusters of other tests, which go on."""
    from xpulab.deploy import cluster as registry

    monkeypatch.setattr(registry.clusters, "running", [])
    monkeypatch.setattr(registry.clusters, "latest", [])


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, no_cluster: None, empty_folder: Path) -> Iterator[Any]:
    """A shell with the extension in a folder of its own, of which no reports are kept.

    It has no clusters of other tests, because unloading stops all clusters.
    """
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    config = Config()
    config.HistoryManager.enabled = False
    shell: Any = InteractiveShell(config=config)
    monkeypatch.setattr("IPython.get_ipython", lambda: shell)
    shell.extension_manager.load_extension("xpulab")
    yield shell
    shell.extension_manager.unload_extension("xpulab")
