"""Clusters of real MPI engines for the tests, and the check that a run leaves nothing behind."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Generator, Iterator
from typing import Any

import pytest
from exercises import with_solutions
from hypothesis import settings
from leftovers import not_of_others, processes_marked, shared_memory

import xpulab

# A shell starts background processes with SIGINT ignored, and Python then never raises KeyboardInterrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

# With this variable, each of the many processes would compile all modules that it imports again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Each run uses the same examples, so that a failure is due to the change that is tested.
settings.register_profile("the same", derandomize=True, deadline=None)
settings.load_profile("the same")

# No test uses results of earlier tuning on this machine, or tunes in its middle. The tests of tuning turn it on.
os.environ["XPULAB_TUNE"] = "0"

# With several workers (`-n 3`), each worker has clusters that the others do not see, as if another user ran it.
if "PYTEST_XDIST_WORKER" in os.environ:
    _folder = tempfile.TemporaryDirectory(prefix="xpulab-tests-")
    os.environ["XPULAB_RUNTIME_DIR"] = _folder.name


@pytest.hookimpl(trylast=True)  # after pytest-rerunfailures has connected this worker to the first process
def pytest_configure(config: pytest.Config) -> None:
    """Have pytest-rerunfailures send its messages at once; TCP keeps the second one of a test back for 40 ms."""
    if connection := getattr(getattr(config, "failures_db", None), "sock", None):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


@pytest.hookimpl(trylast=True)  # after options such as `-k` have removed tests
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Add the solutions of a notebook's exercises to its cells, and skip notebooks without what they need."""
    items[:] = with_solutions(items)
    reasons = {}
    if not os.environ.get("XPULAB_NOTEBOOK_HOSTS"):
        reasons["09_"] = "tests/hosts/test_notebook_of_hosts.py runs notebook 09, on hosts that it makes"
    if any(importlib.util.find_spec(name) is None for name in ("torch", "skorch")):
        reasons["10_"] = "PyTorch and skorch are not installed"
    for item in items:
        if reason := reasons.get(item.path.name[:3]):
            item.add_marker(pytest.mark.skip(reason=reason))


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
    if left := _left_behind(
        lambda: [f"process {pid}: {line[:200]}" for pid, line in processes_marked().items() if pid not in running]
    ):
        pytest.fail(left)


_memory_left = ""


@pytest.hookimpl(trylast=True)  # after all workers have ended
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Check that the run leaves no shared memory. A worker cannot tell its own from that of the others."""
    global _memory_left
    if "PYTEST_XDIST_WORKER" not in os.environ:
        _memory_left = _left_behind(lambda: sorted(not_of_others(shared_memory() - _memory)))
        if _memory_left:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say what the run has left."""
    if _memory_left:
        terminalreporter.write_line(f"ERROR {_memory_left}", red=True)


#: Numbers of engines of the clusters, and the names of tests with them. (`pair` has two other engines.)
CLUSTERS = {1: "1-engine", 3: "3-engines", 2: "2-engines-as-GPUs"}


@pytest.fixture(scope="session")
def clusters() -> Iterator[Callable[[int], xpulab.XPUCluster]]:
    """A function that returns the running cluster of `n` engines, and starts it at the first call."""
    with contextlib.ExitStack() as until_the_end:

        @functools.cache
        def running(n: int) -> xpulab.XPUCluster:
            cluster = until_the_end.enter_context(_started(n))
            cluster.run(_imitate, n == 2, n == 3)
            return cluster

        yield running


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
    import numpy as np

    from xpulab.engine import comm

    if as_long:
        comm._FEW = 1
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


@contextlib.contextmanager
def _started(n: int) -> Iterator[xpulab.XPUCluster]:
    shared = n > len(os.sched_getaffinity(0))
    with pytest.warns(xpulab.exceptions.OversubscribedWarning, match="share") if shared else contextlib.nullcontext():
        cluster = xpulab.XPUCluster(n, timeout=60).start()
    try:
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture
def current(cluster: xpulab.XPUCluster) -> xpulab.XPUCluster:
    """The parametrised cluster, as the active cluster: other tests may have started clusters since."""

    return cluster.activate()


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A shell with the extension, without clusters of other tests, because unloading stops all clusters."""
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    from xpulab.deploy import cluster as registry

    monkeypatch.setattr(registry, "_clusters", [])
    monkeypatch.setattr(registry, "_latest", [])
    config = Config()
    config.HistoryManager.enabled = False
    shell: Any = InteractiveShell(config=config)
    monkeypatch.setattr("IPython.get_ipython", lambda: shell)
    shell.extension_manager.load_extension("xpulab")
    yield shell
    shell.extension_manager.unload_extension("xpulab")
