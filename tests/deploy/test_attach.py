"""Clusters that outlive the notebook that started them, and several notebooks on one cluster."""

from __future__ import annotations

import contextlib
import copy
import gc
import json
import os
import pickle
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import strikes
from sklearn.model_selection import GridSearchCV
from strikes import meetings, strike
from waiting import until

import xpulab
from xpulab import cli
from xpulab.cluster import KMeans
from xpulab.deploy.processes.processes import Processes
from xpulab.deploy.processes.record import Record, choose, find
from xpulab.exceptions import ClusterError, HandleError, NoClusterError
from xpulab.report import progress

pytestmark = pytest.mark.cluster

PRELUDE = """
import os, signal, sys, time, threading
import numpy as np
import xpulab
X = np.random.default_rng(0).normal(size=(20_000, 8)).astype(np.float32)
"""
X = np.random.default_rng(0).normal(size=(20_000, 8)).astype(np.float32)
FITS = "from xpulab.cluster import KMeans\n"  # takes longer to import than all the rest
LONG = {"n_clusters": 60, "random_state": 0, "tol": 0, "max_iter": 50, "n_init": 2, "init": "random"}


def notebook(code: str, *arguments: str) -> subprocess.Popen[str]:
    """Start another process of this user."""
    return subprocess.Popen(
        [sys.executable, "-c", PRELUDE + code, *arguments], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True
    )


def says(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def ends(process: subprocess.Popen[str]) -> int:
    process.communicate(timeout=120)
    return process.returncode


@pytest.fixture(scope="module")
def colleagues() -> Iterator[list[subprocess.Popen[str]]]:
    """The processes of `colleague`, of which the last one may run."""
    started: list[subprocess.Popen[str]] = []
    yield started
    for process in started:
        process.communicate(timeout=120)


@pytest.fixture
def colleague(colleagues: list[subprocess.Popen[str]]) -> subprocess.Popen[str]:
    """Another process of this user, in which a test runs code with `asked`. A test may kill it."""
    if colleagues and colleagues[-1].poll() is None and is_ready(colleagues[-1]):
        return colleagues[-1]
    colleagues.append(notebook(f"{FITS}import json\nfor line in sys.stdin: exec(json.loads(line), globals())"))
    assert is_ready(colleagues[-1])
    return colleagues[-1]


def is_ready(process: subprocess.Popen[str]) -> bool:
    """Return whether a colleague's process takes code, after what a test that has failed has left."""
    with contextlib.suppress(BrokenPipeError):
        asked(process, "print('ready', flush=True)")
    while said := says(process):
        if said == "ready":
            return True
    return False


def asked(process: subprocess.Popen[str], code: str) -> None:
    """Have the process of a colleague run code. It does so after the code that it runs now."""
    assert process.stdin is not None
    process.stdin.write(f"{json.dumps(code)}\n")
    process.stdin.flush()


def alive(pids: list[int]) -> list[int]:
    def lives(pid: int) -> bool:
        try:
            return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False

    return [pid for pid in pids if lives(pid)]


@pytest.fixture(scope="module")
def orphan() -> Iterator[xpulab.XPUCluster]:
    """A detached cluster whose notebook was killed in the middle of a fit. This process attaches to it then."""
    name = f"orphan{os.getpid()}_{time.monotonic_ns()}"  # another one if a test that has failed runs once more
    starter = notebook(
        f"{FITS}c = xpulab.XPUCluster(2, detach=True, name=sys.argv[1]).start()\n"
        "c.scatter(X, name='old'); train = c.scatter(X, name='train'); c.scatter(X[:7], name='old')\n"
        "nameless = c.scatter(X[:5])\n"
        f"import psutil; sys.path.append({str(Path(strikes.__file__).parent)!r}); import strikes\n"
        "c.run(strikes.strike, 1, strikes.stand_still, iterations=3)\n"
        f"threading.Thread(target=lambda: KMeans(**{LONG}).fit(X), daemon=True).start()\n"
        # One is enough, for which the other one waits: the first may stand still before the other has its message.
        "while 'stopped' not in [psutil.Process(fact.pid).status() for fact in c.facts]: time.sleep(0.02)\n"
        "print(nameless.id, flush=True); time.sleep(100)",
        name,
    )
    with contextlib.ExitStack() as if_it_fails:
        if_it_fails.callback(lambda: xpulab.XPUCluster.attach(name).stop())
        if_it_fails.callback(starter.kill)
        nameless = says(starter)
        if_it_fails.pop_all()
    starter.kill()
    ends(starter)
    cluster = xpulab.XPUCluster.attach(name)
    messages: list[str] = []

    class View:
        """Lets the engines go on when their fit is shown: they have stopped so that it lasts until then."""

        def update(self, report: Any) -> None:
            messages.append(report.message)
            if "iteration" in report.message:
                for fact in cluster.facts:
                    os.kill(fact.pid, signal.SIGCONT)

        def close(self, report: Any) -> None: ...

    try:
        first = cluster.status()
        unsubscribe = progress.subscribe(lambda report: View())
        try:
            report = cluster.last()
        finally:
            unsubscribe()
        cluster.seen = (nameless, first, messages, report)  # type: ignore[attr-defined]
        yield cluster
    finally:
        cluster.stop()


def test_a_fit_outlives_its_notebook_and_the_next_one_sees_it(orphan: xpulab.XPUCluster) -> None:
    _, status, messages, report = orphan.seen  # type: ignore[attr-defined]
    assert [engine.state for engine in status.engines] == ["KMeans.fit", "KMeans.fit"]
    assert status.engines[0].iteration >= 1  # shown every 50 ms, and the engines stand still
    assert f"xpulab cluster {orphan.options.name}: running, 2 engines" in str(status)
    assert "detached" in str(status)
    assert any("waiting for KMeans.fit of process" in message and "iteration" in message for message in messages)
    assert report is not None
    assert (report.title, report.status, report.n_samples) == ("KMeans.fit", "not converged", 20_000)
    assert report.parameters["n_clusters"] == 60
    assert [engine.rows for engine in report.engines] == [10_000, 10_000]
    assert report.iterations[-1].init == LONG["n_init"]
    assert report.seconds >= report.iterations[0].seconds > 0
    km = KMeans(**LONG).fit(X)
    assert km.report_.objective is not None
    assert report.objective is not None
    assert km.report_.objective[1] == pytest.approx(report.objective[1], rel=1e-6)
    again = orphan.last()
    assert again is km.report_


def test_handles_are_listed_by_name_and_stay(orphan: xpulab.XPUCluster) -> None:
    nameless = orphan.seen[0]  # type: ignore[attr-defined]
    found = orphan.handles()
    assert set(found) == {"old", "train", nameless}
    assert (found["train"].gather() == X).all()
    assert (found["old"].gather() == X[:7]).all()
    assert (found[nameless].gather() == X[:5]).all()
    assert found["train"].counts == (10_000, 10_000)
    ours = KMeans(9, random_state=0).fit(found["train"])
    sent = KMeans(9, random_state=0).fit(X)
    np.testing.assert_array_equal(ours.labels_, sent.labels_)
    np.testing.assert_array_equal(ours.predict(found["train"]), sent.labels_)
    del found, ours
    gc.collect()
    train = orphan.handles()["train"]
    assert (train.gather() == X).all()
    orphan.release(train)
    assert "train" not in orphan.handles()
    with pytest.raises(HandleError):
        train.gather()


def test_an_attached_cluster_is_like_a_started_one(orphan: xpulab.XPUCluster) -> None:
    assert orphan.run(lambda task: task.comm.allgather(task.comm.rank)) == [[0, 1]] * 2
    assert xpulab.XPUCluster.attach(orphan.options.name) is orphan
    assert len(orphan.plan().ranks) == 2
    assert "IPEngine" in orphan.logs()
    orphan.detach()
    assert not orphan.running
    assert find()
    with xpulab.XPUCluster.attach(orphan.options.name) as again:
        assert again.run(lambda task: task.comm.rank) == [0, 1]
        pids = again.engines.processes.pids()  # type: ignore[union-attr]
    assert len(pids) >= 5
    assert alive(pids) == pids  # a client that leaves the cluster does not stop it


def test_an_object_that_has_left_its_cluster_says_how_to_come_back(orphan: xpulab.XPUCluster) -> None:
    name = orphan.options.name
    cluster = xpulab.XPUCluster.attach(name)
    rows = cluster.scatter(X[:50], name="rows")
    cluster.detach()
    assert cluster.status().state == "left"
    said = f"xpulab cluster {name}: this process has left it, and it goes on; type: xpulab.XPUCluster.attach('{name}')"
    assert str(cluster) == said
    assert said.replace("'", "&#x27;").partition(": ")[2] in cluster.status()._repr_html_()
    back = rf"has left the cluster {name}, .*type: xpulab\.XPUCluster\.attach\('{name}'\)"
    for call in (lambda: cluster.run(print), lambda: cluster.scatter(X), lambda: cluster.activate()):
        with pytest.raises(NoClusterError, match=back):
            call()
    with pytest.raises(HandleError, match=rf"{back}, and then cluster\.handles\(\)"):
        rows.gather()
    with xpulab.XPUCluster.attach(name) as again:
        assert (again.handles()["rows"].gather() == X[:50]).all()


def test_the_magics_say_what_was_left(orphan: xpulab.XPUCluster, shell: Any) -> None:
    name = orphan.options.name
    for line in (f"attach {name}", "detach", "status"):
        said = shell.run_line_magic("xpu_cluster", line)
        if not line.startswith("attach"):  # both say it, in a terminal, too
            assert said.state == "left"
            assert str(said).endswith(f"this process has left it, and it goes on; type: %xpu_cluster attach {name}")


def test_a_cluster_is_not_copied(orphan: xpulab.XPUCluster) -> None:
    for copied in (copy.deepcopy, pickle.dumps, lambda each: orphan.run(lambda here, _: 1, each)):
        name = orphan.options.name
        with pytest.raises(TypeError, match=rf"cannot be copied or pickled.*XPUCluster\.attach\('{name}'\)"):
            copied(orphan)


def test_a_detached_cluster_that_loses_an_engine_leaves_nothing(orphan: xpulab.XPUCluster) -> None:
    orphan.detach()
    assert orphan.options.name is not None
    record = choose(orphan.options.name)
    with xpulab.XPUCluster.attach(orphan.options.name) as cluster:
        pids = cluster.engines.processes.pids()  # type: ignore[union-attr]
    os.kill(record.facts[0].pid, signal.SIGKILL)
    until(lambda: not alive(pids))
    assert orphan.options.name not in [record.name for record in find()]
    assert not os.path.exists(record.folder)
    with pytest.raises(NoClusterError, match=r"no (running )?cluster .*type: %xpu_cluster"):
        xpulab.XPUCluster.attach(orphan.options.name)


def test_a_killed_cluster_is_reported_and_one_that_does_not_answer_can_be_stopped(
    capsys: pytest.CaptureFixture[str],
) -> None:
    name = f"lab{os.getpid()}"
    killed = xpulab.XPUCluster(1, detach=True, name=name).start()
    folder, pids = killed.engines.processes.folder, killed.engines.processes.pids()  # type: ignore[union-attr]
    killed.detach()
    for number in (signal.SIGSTOP, signal.SIGKILL):  # so that no process sees the end of another, and cleans up
        for pid in pids:
            os.kill(pid, number)
    until(lambda: not alive(pids))
    assert folder.exists()
    with pytest.raises(NoClusterError, match=rf"the cluster {name} is gone: its processes were killed, .*%xpu_cluster"):
        xpulab.XPUCluster.attach(name)
    assert not folder.exists()
    again = xpulab.XPUCluster(1, detach=True, name=name).start()
    folder, pids = again.engines.processes.folder, again.engines.processes.pids()  # type: ignore[union-attr]
    again.detach()
    os.kill(pids[0], signal.SIGSTOP)
    assert cli.main(["status"]) == 0
    assert f"{name} (1 engine, detached)" in capsys.readouterr().out
    assert cli.main(["stop", name]) == 0
    assert capsys.readouterr().out == f"stopped: {name} (1 engine, detached)\n"
    until(lambda: not alive(pids))
    assert not folder.exists()
    assert cli.main(["stop", name]) == 2
    assert "NoClusterError: no " in capsys.readouterr().err


@pytest.fixture
def ours(pair: xpulab.XPUCluster) -> xpulab.XPUCluster:
    """The cluster of 2 engines, as the active cluster."""
    return pair.activate()


def name_of(cluster: xpulab.XPUCluster) -> str:
    assert cluster.engines.processes is not None
    return cluster.engines.processes.record.name


def test_a_second_notebook_uses_the_cluster_of_the_first(
    ours: xpulab.XPUCluster, colleague: subprocess.Popen[str]
) -> None:
    rows = ours.scatter(X, name="shared")
    code = (
        f"with xpulab.XPUCluster.attach({name_of(ours)!r}) as c:\n"
        "    km = KMeans(9, random_state=0).fit(c.handles()['shared'])\n"
        "    c.scatter(X[:9], name='theirs'); c.scatter(X[:9])\n"
        "    lives = c.status().lives\n"
        "print(km.inertia_, lives, flush=True)"
    )
    asked(colleague, code)
    inertia, lives = says(colleague).split(" ", 1)
    assert lives == f"ends with process {os.getpid()}"
    assert float(inertia) == pytest.approx(KMeans(9, random_state=0).fit(rows).inertia_, rel=1e-6)
    assert "theirs" in ours.handles()
    for array in ours.handles().values():
        ours.release(array)


def test_the_report_of_a_first_call_names_the_notebook_that_it_waits_for(
    ours: xpulab.XPUCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before its first rows are sent, a process asks the engines whether they can read its memory."""
    code = (
        "c = xpulab.XPUCluster.attach(sys.argv[1])\n"
        "def busy(task):\n"
        "    import time\n"
        "    time.sleep(2)\n"
        "c.run(busy)\n"
        "print(flush=True)"
    )
    with monkeypatch.context() as patch:
        patch.setenv("JPY_SESSION_NAME", "/home/somebody/prices.ipynb")
        other = notebook(code, name_of(ours))
    until(lambda: (ours.engines.board.ranks["client"] == other.pid).all())  # type: ignore[union-attr]
    ours.rows.readable = None
    lines: list[str] = []

    class View:
        def update(self, report: Any) -> None:
            lines.append(report.line())

        def close(self, report: Any) -> None: ...

    unsubscribe = progress.subscribe(lambda report: View())
    km = KMeans(5, random_state=1).fit(X)
    unsubscribe()
    assert ends(other) == 0
    assert any("waiting for run of prices.ipynb" in line for line in lines)
    assert all(line.startswith("KMeans.fit") for line in lines)
    assert km.report_.waited > 0.5
    assert km.report_.sent < 0.5


def test_a_call_names_the_client_that_it_waits_for_and_an_interrupt_ends_only_the_wait(
    ours: xpulab.XPUCluster, colleague: subprocess.Popen[str], tmp_path: Path
) -> None:
    code = (
        f"c = xpulab.XPUCluster.attach({name_of(ours)!r})\n"
        "def busy(task):\n"
        "    import os, time\n"
        f"    while not os.path.exists({str(tmp_path / 'told')!r}): time.sleep(0.02)\n"
        "    return task.comm.allgather(task.comm.rank)\n"
        "print(c.run(busy), flush=True)"
    )
    before = KMeans(5, random_state=0).fit(X)
    asked(colleague, code)
    until(lambda: (ours.engines.board.ranks["client"] == colleague.pid).all())  # type: ignore[union-attr]
    messages: list[str] = []
    waiting = f"waiting for run of process {colleague.pid}"

    class View:
        def update(self, report: Any) -> None:
            messages.append(report.line())
            if waiting not in messages[-1]:
                return
            if "handles" in messages[-1]:
                (tmp_path / "told").touch()  # the other process has computed until now
            elif not [message for message in messages[:-1] if waiting in message]:
                os.kill(os.getpid(), signal.SIGINT)  # of this process: its main thread waits

        def close(self, report: Any) -> None: ...

    km = KMeans(5, random_state=1)
    unsubscribe = progress.subscribe(lambda report: View())
    try:
        with pytest.raises(KeyboardInterrupt):
            km.fit(X)
        assert not (tmp_path / "told").exists()  # the other process still computes
        ours.handles()
    finally:
        (tmp_path / "told").touch()
        unsubscribe()
    assert any(message.startswith(f"xpulab: handles  {waiting}  ") for message in messages)
    assert says(colleague) == "[[0, 1], [0, 1]]"
    np.testing.assert_array_equal(KMeans(5, random_state=0).fit(X).labels_, before.labels_)
    until(lambda: not (ours.engines.board._head["cancelled"] != 0).any())  # type: ignore[union-attr]


def test_an_interrupt_elsewhere_does_not_end_what_runs_here(
    ours: xpulab.XPUCluster, colleague: subprocess.Popen[str], tmp_path: Path
) -> None:
    code = (
        "from xpulab.report import progress\n"
        "class View:\n"
        "    def update(self, report):\n"
        "        if 'waiting for' in report.line(): print('waits', flush=True)\n"
        "    def close(self, report): pass\n"
        f"c = xpulab.XPUCluster.attach({name_of(ours)!r})\n"
        "unsubscribe = progress.subscribe(lambda report: View())\n"
        "try:\n    KMeans(5, random_state=0).fit(X)\n"
        "except KeyboardInterrupt:\n    print('interrupted', flush=True)\n"
        "unsubscribe()"
    )
    once = {**LONG, "n_init": 1, "max_iter": 100}
    right = KMeans(**once).fit(X)
    said: list[str] = []
    stays, heard = str(tmp_path / "stays"), str(tmp_path / "heard")

    def stay() -> None:
        Path(stays).touch()
        while not os.path.exists(heard):
            time.sleep(0.01)

    def disturb() -> None:
        try:
            until(lambda: os.path.exists(stays))
            asked(colleague, code)
            said.append(says(colleague))
            colleague.send_signal(signal.SIGINT)
            while said[-1] == "waits":
                said.append(says(colleague))
        finally:
            Path(heard).touch()

    thread = threading.Thread(target=disturb)
    thread.start()
    ours.run(strike, 1, stay, iterations=4)
    found = KMeans(**once).fit(X)
    ours.run(meetings)
    thread.join()
    assert (said[0], said[-1]) == ("waits", "interrupted")
    np.testing.assert_array_equal(found.labels_, right.labels_)
    assert found.n_iter_ == right.n_iter_


def test_the_call_of_a_client_that_was_killed_is_named_and_can_be_ended(
    ours: xpulab.XPUCluster, colleague: subprocess.Popen[str]
) -> None:
    code = (
        f"c = xpulab.XPUCluster.attach({name_of(ours)!r})\n"
        "KMeans(60, random_state=0, tol=0, n_init=3_000, init='random').fit(X)"
    )
    assert ours.stop_call() == ""
    ours.run(strike, pause=0.02)  # the fit leaves the cores to the processes that this test starts
    try:
        asked(colleague, code)
        ranks = ours.engines.board.ranks  # type: ignore[union-attr]
        until(lambda: ranks[0]["client"] == colleague.pid and ranks[0]["iteration"] > 2)
        colleague.kill()
        colleague.wait()
        messages: list[str] = []

        class View:
            def update(self, report: Any) -> None:
                messages.append(report.line())

            def close(self, report: Any) -> None: ...

        unsubscribe = progress.subscribe(lambda report: View())
        waiting = threading.Thread(target=ours.handles)
        waiting.start()
        until(
            lambda: re.search(
                rf"waiting for KMeans\.fit of process {colleague.pid}, which has ended, while its call goes on, \d+ s "
                r"by now( \(.*iteration \d+.*\))?; to end it, interrupt this call, and type: cluster\.stop_call\(\)",
                "\n".join(messages),
            )
        )
        command = [sys.executable, "-m", "xpulab", "stop", name_of(ours), "--call"]
        assert subprocess.run(command, capture_output=True, text=True).stdout == "ended: KMeans.fit\n"
        waiting.join(120)
        unsubscribe()
        assert not waiting.is_alive()
        assert not (ours.engines.board._head["cancelled"] != 0).any()  # type: ignore[union-attr]
    finally:
        ours.stop_call()  # if the test has failed
        ours.run(meetings)
    assert KMeans(3, random_state=0).fit(X).labels_.shape == (20_000,)


def test_a_client_learns_that_another_one_lost_or_restarted_the_engines() -> None:
    code = (
        "c = xpulab.XPUCluster.attach(sys.argv[1])\n"
        "print('ready', flush=True)\n"
        "try:\n    c.run(lambda task: __import__('time').sleep(60))\n"
        "except xpulab.exceptions.EngineLostError as lost:\n    print('lost', lost.reason, flush=True)\n"
        "with xpulab.XPUCluster.attach(sys.stdin.readline().strip()) as c:\n"
        "    c.restart()\n"
        "    print(c.facts[0].pid, c.run(lambda task: task.comm.rank), flush=True)"
    )
    with xpulab.XPUCluster(1) as cluster:
        other = notebook(code, name_of(cluster))
        assert says(other) == "ready"
        first = cluster.facts[0].pid
        os.kill(first, signal.SIGKILL)
        assert says(other).startswith(f"lost rank 0 (pid {first} ")
        km = KMeans(2, random_state=0).fit(X[:100])  # the client that started the engines starts new ones
        assert any("started new engines" in note for note in km.report_.notes)
        pids = cluster.engines.processes.pids()  # type: ignore[union-attr]
        assert other.stdin is not None
        other.stdin.write(f"{name_of(cluster)}\n")
        other.stdin.flush()
        theirs, ranks = says(other).split(" ", 1)
        assert ranks == "[0]"
        assert ends(other) == 0
        assert not alive([*pids, int(theirs)])
        assert cluster.status().state == "stopped"
        with pytest.raises(
            NoClusterError, match=r"another process has stopped or restarted the cluster; type: %xpu_cluster start"
        ):
            KMeans(2).fit(X)
        assert not cluster.running


def test_a_search_in_threads_equals_a_search_in_one_thread(ours: xpulab.XPUCluster) -> None:
    grid = {"n_clusters": [2, 3, 4], "random_state": [0]}
    few = X[:3000]
    alone = GridSearchCV(KMeans(max_iter=20), grid, cv=3).fit(few)
    import joblib

    with joblib.parallel_backend("threading"):
        threads = GridSearchCV(KMeans(max_iter=20), grid, cv=3, n_jobs=2).fit(few)
    np.testing.assert_allclose(threads.cv_results_["mean_test_score"], alone.cv_results_["mean_test_score"], rtol=1e-6)
    np.testing.assert_array_equal(threads.best_estimator_.labels_, alone.best_estimator_.labels_)


def test_an_engine_that_ends_before_it_is_watched_is_lost() -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    processes = Processes(Record("/nowhere", "x", (0, 0.0), "1"))
    processes.watch([ended.pid])
    assert processes.ended() == "an engine"


def test_another_version_is_refused(monkeypatch: pytest.MonkeyPatch, ours: xpulab.XPUCluster, no_cluster: None) -> None:
    monkeypatch.setattr("xpulab.deploy.cluster.__version__", "99")
    with pytest.raises(ClusterError, match=r"started by xpulab .*, and this is 99"):
        xpulab.XPUCluster.attach(name_of(ours))
