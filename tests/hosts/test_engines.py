"""One cluster over two hosts: results as on one host, Stop, lost engines and hosts, and nothing that is left."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil
import pytest
from calls_of_hosts import X, busy, interrupted_when, require_clean, require_same, results
from machines import Network
from PIL import Image
from sent import nothing_sent
from waiting import until

import xpulab
from xpulab.cluster import KMeans
from xpulab.console.cells import run_cell
from xpulab.deploy.tasks.limits import Demand
from xpulab.exceptions import EngineError, EngineLostError, NotEnoughMemoryError
from xpulab.report.figure import COLOURS
from xpulab.report.profile import profiled
from xpulab.report.timeline import of_cell
from xpulab.sharing import hangs
from xpulab.widgets.board_view import BoardView

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.cluster

SCREENSHOTS = Path(__file__).parents[2] / "build" / "screenshots"
LIMIT = 5.0  # seconds without a sign of a host after which it is lost


def started(hosts: Network, *, n: int = 3, **arguments: Any) -> xpulab.XPUCluster:
    """A cluster of one engine here and the others on node1."""
    arguments = {"display": "none", "timeout": 120, **arguments}
    names = f"{hosts.address}:1,node1:{n - 1}"
    return xpulab.XPUCluster(hosts=names, ssh_config=hosts.ssh_config, **arguments).start()


@pytest.fixture(scope="module")
def both(hosts: Network) -> Iterator[xpulab.XPUCluster]:
    with started(hosts) as cluster:
        yield cluster


@pytest.fixture
def on_both(both: xpulab.XPUCluster) -> xpulab.XPUCluster:
    return both.activate()


def test_ranks_run_on_both_hosts_and_the_status_shows_them(on_both: xpulab.XPUCluster, hosts: Network) -> None:
    def here(task: Any) -> tuple[str, int]:
        import platform

        print(f"rank {task.comm.rank} on {platform.node()}")
        return platform.node(), os.getpid()

    found = on_both.run(here)
    assert [name for name, _ in found[1:]] == ["node1", "node1"]
    assert found[0][0] != "node1"
    assert {pid for _, pid in found[1:]} <= hosts.hosts[0].processes().keys()
    status = on_both.status()
    assert [engine.host for engine in status.engines] == [name for name, _ in found]
    assert all((engine.memory_used or 0) > 2**20 and engine.memory_free for engine in status.engines)
    assert "node1" in str(status)


def test_the_board_has_curves_of_engines_of_other_hosts(on_both: xpulab.XPUCluster) -> None:
    def compute(task: Any, done: str) -> None:
        import time
        from pathlib import Path

        end = time.process_time() + 2.0
        while task.comm.rank == 1 and time.process_time() < end:
            pass
        if task.comm.rank == 1:
            Path(done).touch()
        while task.comm.rank == 2 and not Path(done).exists():  # on the same host; a rank that waits by MPI polls
            time.sleep(0.05)
        if task.comm.rank == 2:
            Path(done).unlink()

    board = xpulab.board(on_both)
    board.sample()
    on_both.run(compute, f"/tmp/computed-{os.getpid()}")
    time.sleep(1.2)  # an agent tells what is new every half second
    board.sample()
    assert board.utilisation is not None
    _, computed, waited = (samples[-1] for samples in board.utilisation.samples)
    assert computed[1] > 2 * waited[1]
    assert all(memory > 2**20 for *_, memory in (computed, waited))
    board.sample()
    time.sleep(1.2)
    board.sample()
    for rank in range(3):
        assert f"use, engine {rank}" in board.engines()
        assert f"memory, engine {rank}" in board.engines()


def test_the_board_has_timelines_of_engines_of_other_hosts(on_both: xpulab.XPUCluster) -> None:
    """The clock of node1 is far ahead; the timeline has the times of the notebook's host."""
    board = xpulab.board(on_both)
    rows = np.random.RandomState(0).rand(200_000, 6).astype(np.float32)
    KMeans(30, init="random", n_init=1, max_iter=25, tol=0, random_state=0).fit(rows)
    board.keep()  # before the last iterations have come
    until(lambda: board.timeline().iteration.tolist() == [*range(1, 26)] * 3, meanwhile=board.keep)
    timeline = board.timeline()
    assert timeline.engines == [0, 1, 2]
    assert (timeline.of_kind("kernel") > 0).all()
    ends = (timeline.start + timeline.seconds.sum(axis=1)).reshape(3, 25)
    assert (np.diff(ends) > 0).all()
    # No rank leaves the reduction of an iteration before all have left that of the iteration before, whoever finds a
    # core first; clocks are compared to about a millisecond.
    assert (ends[:, 1:].min(axis=0) + 1e-3 > ends[:, :-1].max(axis=0)).all()
    time.sleep(1.0)
    board.keep()
    KMeans(3, random_state=0).fit(X)
    assert len(board.timeline(board.history.calls[-2].number)) == 75
    assert '"engine 2"' in timeline.to_trace()


_SHOW = """([values, spans]) => {
    const model = {get: name => name === 'spans' ? new DataView(new Uint8Array(spans).buffer) : values[name],
                   on: () => null, off: () => null, send: () => null};
    window.view.render({model, el: document.querySelector("main")});
}"""


def test_a_browser_draws_the_timeline_of_engines_of_other_hosts(on_both: xpulab.XPUCluster, browser: Browser) -> None:
    """A lane for each engine, in which kernels and waits are seen, and numbers that name the engine."""
    pytest.importorskip("anywidget", reason="the board is a widget")
    rows = np.random.RandomState(0).rand(200_000, 6).astype(np.float32)
    KMeans(30, init="random", n_init=1, max_iter=25, tol=0, random_state=0).fit(rows)
    board = xpulab.board(on_both)
    until(lambda: len(board.timeline()) == 75)
    view = BoardView(board)
    widget = view.widget
    assert widget is not None
    page = browser.new_page(viewport={"width": 900, "height": 1000})
    try:
        state = widget.get_state()
        values = {name: state[name] for name in state if not name.startswith(("_", "layout", "spans"))}
        page.set_content("<body style='background:#fff'><main></main></body>")
        script = "\n".join(Path(xpulab.widgets.__path__[0], name).read_text() for name in ("board.js", "timeline.js"))
        page.add_script_tag(content=script.replace("export default", "window.view ="))
        page.evaluate(_SHOW, [values, list(widget.spans)])
        lanes = page.get_by_role("application", name="Timeline")
        lanes.focus()
        page.keyboard.press("ArrowRight")
        for rank in range(3):
            page.get_by_text(
                re.compile(rf"^engine {rank}, iteration 1: .*kernel .*the most work: engine [012]$")
            ).wait_for()
            page.keyboard.press("ArrowDown")
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=SCREENSHOTS / "timeline-of-hosts.png")
        image = np.asarray(Image.open(io.BytesIO(lanes.screenshot())).convert("RGB")).astype(int)
        for rank in range(3):
            lane = image[26 * rank + 6 : 26 * rank + 20, 70:]
            shares = [
                (abs(lane - _rgb(kind)).max(axis=2) < 12).mean()
                for kind in ("compile", "kernel", "communicate", "wait")
            ]
            assert sum(share > 0 for share in shares) >= 3
            assert sum(shares) > 0.3
        assert page.locator("tr", has_text=re.compile("^[012]")).count() >= 3
    finally:
        page.close()
        view.close()


def _rgb(kind: str) -> np.ndarray:
    return np.array([*bytes.fromhex(COLOURS[kind][0][1:])], int)


@pytest.mark.parametrize("late", [0, 1])
def test_a_cell_has_waits_between_hosts(on_both: xpulab.XPUCluster, late: int) -> None:
    with profiled() as profile:
        run_cell(
            on_both, f"import time\nfor _ in range(2):\n    time.sleep(0.3 * (rank == {late}))\n    comm.Barrier()"
        )
    (cell,) = profile.cells
    for rank, usage in cell.ranks.items():
        assert usage.wait == pytest.approx(0.0 if rank == late else 0.6, abs=0.1)
    timeline = of_cell(cell)
    for rank, usage in cell.ranks.items():
        assert timeline.of_kind("wait")[timeline.rank == rank].sum() == pytest.approx(usage.wait)
    left = (timeline.start + timeline.seconds.sum(axis=1))[timeline.iteration > 0].reshape(len(cell.ranks), 2)
    np.testing.assert_allclose(left, np.broadcast_to(left[0], left.shape), atol=0.1)  # the clocks of hosts differ


@pytest.mark.parametrize("waits", [0, 1])
def test_a_rank_that_waits_for_one_of_another_host_that_has_ended_raises_an_error(
    on_both: xpulab.XPUCluster, capsys: pytest.CaptureFixture[str], waits: int
) -> None:
    """Rank 0 is on the notebook's host, and rank 1 and 2 are on the other one."""

    def hurry(task: Any, told: float, chance: float) -> None:
        from xpulab.sharing import hangs

        hangs.TOLD, hangs.LAST_CHANCE = told, chance

    on_both.run(hurry, 1.0, 6.5)  # after the 5 seconds after which the line comes
    says = rf"rank {waits} waits in line 2 \(recv\); rank {'1, 2' if waits == 0 else '0, 2'} have ended"
    try:
        with pytest.raises(EngineError, match=f"NeverAnsweredError: no rank can answer any more: {says}"):
            run_cell(on_both, f"if rank == {waits}:\n    comm.recv(source={1 - waits})")
    finally:
        on_both.run(hurry, 5.0, 3.0)
    assert re.search(says + "; Stop frees it", capsys.readouterr().err)


def test_what_ranks_of_other_hosts_print_is_shown(
    on_both: xpulab.XPUCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(5):
        on_both.run(lambda task, number: print(f"line {number} of {task.comm.rank}"), number)
        said = capsys.readouterr().out.splitlines()
        assert sorted(said) == [f"[{rank}] line {number} of {rank}" for rank in range(3)]


def test_results_are_those_of_one_host(
    both: xpulab.XPUCluster, pair: xpulab.XPUCluster, hosts: Network, tmp_path: Path
) -> None:
    shared = Path(hosts.ssh_config).parent
    require_same(results(both, tmp_path, shared), results(pair, tmp_path, shared))


def test_several_messages_to_each_host(both: xpulab.XPUCluster) -> None:
    """Rows of 20 MiB travel in pieces there and back, with a rest that is no whole piece."""
    both.activate()
    rows = np.random.RandomState(1).rand(654_321, 8).astype(np.float32)
    handle = both.scatter(rows)
    np.testing.assert_array_equal(handle.gather(), rows)


def test_variables_travel_to_and_from_all_hosts(on_both: xpulab.XPUCluster) -> None:
    large = np.arange(300_000.0)
    on_both.push({"large": large, "small": [1, 2]})
    on_both.push({"part": large}, scatter=True)
    on_both.push({"of_two": large}, ranks=[0, 2], scatter=True)
    for found in on_both.pull("large"):
        np.testing.assert_array_equal(found, large)
    assert on_both.pull("small") == [[1, 2]] * 3
    np.testing.assert_array_equal(np.concatenate(on_both.pull("part")), large)
    np.testing.assert_array_equal(np.concatenate(on_both.pull("of_two", ranks=[0, 2])), large)


def test_what_has_travelled_is_freed_on_all_hosts(on_both: xpulab.XPUCluster) -> None:
    def blocks(task: Any) -> int:
        opened = [os.path.realpath(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")]
        used = [line for line in Path("/proc/self/maps").read_text().splitlines() if "memfd:xpulab (" in line]
        return len([path for path in opened if "memfd:xpulab (" in path]) + len(used)

    KMeans(3, random_state=0).fit(X)
    before = on_both.run(blocks)
    on_both.run(lambda task: task.engine.namespace.update(large=np.full(300_000, task.rank)))
    for rank, found in enumerate(on_both.pull("large")):
        np.testing.assert_array_equal(found, np.full(300_000, rank))
    model = KMeans(3, random_state=0).fit(X)
    model.predict(X)
    assert on_both.run(blocks) == before


def test_clocks_of_hosts_are_not_compared(on_both: xpulab.XPUCluster) -> None:
    """The clock of node1 is far ahead. If the ranks compared times, one of the two sums would be 0."""

    def spent(task: Any) -> tuple[float, float]:
        for _ in range(3):
            task.task.comm.allreduce(np.ones(3))
        return task.task.comm.wait, task.task.comm.communicate

    for wait, communicate in on_both.run(spent):
        assert wait > 0
        assert communicate > 0


def test_an_exception_on_another_host_ends_the_task_everywhere(on_both: xpulab.XPUCluster) -> None:
    def fail(task: Any) -> None:
        if task.comm.rank == 2:
            raise RuntimeError("no such luck")
        task.comm.Barrier()

    with pytest.raises(EngineError, match="no such luck"):
        on_both.run(fail)
    assert KMeans(3, random_state=0).fit(X).n_iter_ > 0  # the ranks have new communicators


@pytest.mark.timeout(60)
def test_an_exception_that_no_other_rank_waits_for(on_both: xpulab.XPUCluster) -> None:
    """The other ranks have ended the task before the relay tells them of the exception."""

    def fail(task: Any) -> None:
        if task.comm.rank == 2:
            raise RuntimeError("no such luck")

    for _ in range(3):
        with pytest.raises(EngineError, match="no such luck"):
            on_both.run(fail)
        assert on_both.run(lambda task: task.comm.size) == [3, 3, 3]


def test_rows_that_do_not_fit_into_a_hosts_memory_are_refused(on_both: xpulab.XPUCluster) -> None:
    for sent, host in ((False, "node1"), (True, "this host")):  # what is sent passes through this host's memory
        with pytest.raises(NotEnoughMemoryError, match=f"X needs .* of {host}'s memory"):
            on_both.require_room(Demand("X", [0, 10**12, 0], 8, sent=sent))
    on_both.memory = "40KB"
    try:  # a file of this host, from which engines would take them in passes, is not there
        with nothing_sent(on_both), pytest.raises(NotEnoughMemoryError, match="this call needs at once"):
            KMeans(3).fit(np.eye(9000, 5))
    finally:
        on_both.memory = None


def test_stop_ends_a_fit_on_all_hosts_at_the_same_iteration(on_both: xpulab.XPUCluster) -> None:
    rows = np.random.RandomState(0).rand(300_000, 6).astype(np.float32)
    model = KMeans(50, init="random", n_init=1, max_iter=3, tol=0, random_state=0).fit(rows)  # compiles
    model.set_params(max_iter=10**6)
    thread = interrupted_when(lambda: busy(on_both, 1))
    with pytest.raises(KeyboardInterrupt):
        model.fit(rows)
    thread.join()
    same = KMeans(50, init="random", n_init=1, max_iter=model.n_iter_, tol=0, random_state=0).fit(rows)
    np.testing.assert_allclose(model.cluster_centers_, same.cluster_centers_, rtol=1e-4)
    # Those of the ranks of the other host, too. A few rows are as near to two centres, to rounding.
    assert (model.labels_ != model.predict(rows)).sum() < 4
    assert KMeans(3, random_state=0).fit(X).n_iter_ > 0


def test_stop_ends_a_users_code_on_all_hosts(on_both: xpulab.XPUCluster) -> None:
    def sleep(task: Any) -> None:

        time.sleep(1000)

    thread = interrupted_when(lambda: busy(on_both))
    with pytest.raises(KeyboardInterrupt, match="rank 2 was in"):
        on_both.run(sleep)
    thread.join()
    assert on_both.run(lambda task: task.comm.size) == [3, 3, 3]


def listening(processes: Iterator[psutil.Process]) -> set[str]:
    return {
        connection.laddr.ip
        for process in processes
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    }


def test_keys_are_in_private_files_and_sockets_on_the_chosen_interface(
    on_both: xpulab.XPUCluster, hosts: Network
) -> None:
    assert on_both.engines.processes is not None
    host, folder = hosts.hosts[0], on_both.engines.processes.folder
    connection = folder / "security" / "ipcontroller-engine.json"
    keys = json.loads(connection.read_text())
    secrets = [keys["key"], keys["curve_secretkey"]] if "curve_secretkey" in keys else [keys["key"]]
    assert host.run("stat", "-c", "%a", str(folder), str(connection)).split() == ["700", "600"]
    assert connection.stat().st_mode & 0o077 == 0
    mine = [psutil.Process(pid) for pid in on_both.engines.processes.pids()]
    texts = [" ".join(process.cmdline()) + str(process.environ()) for process in mine]
    texts += [host.run("sh", "-c", "cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' '; true")]
    assert not any(secret and secret in text for secret in secrets for text in texts)
    assert listening(iter(mine)) <= {"127.0.0.1", "::1", hosts.address}
    lines = host.run("ss", "-Hltn").splitlines()
    assert {line.split()[3].rpartition(":")[0] for line in lines} <= {"127.0.0.1", "[::1]", host.address}


def test_a_fit_continues_after_a_rank_of_another_host_is_lost(
    on_both: xpulab.XPUCluster, hosts: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "xpulab.deploy.remote.relay.LIMIT", LIMIT
    )  # for the new engines, whose network the next test cuts
    rows = np.random.RandomState(0).rand(400_000, 6).astype(np.float32)  # takes longer than a program that kills it
    host, pid = hosts.hosts[0], on_both.facts[2].pid

    def kill() -> None:
        until(lambda: busy(on_both, 2))
        host.run("kill", "-9", str(pid))

    thread = threading.Thread(target=kill)
    thread.start()
    model = KMeans(100, init="random", n_init=1, max_iter=100, tol=0, random_state=0).fit(rows)
    thread.join()
    assert re.search(rf"rank 2 \(pid {pid} on node1, .*\) ended: killed by signal: 9", model.report_.notes[0])
    again = KMeans(100, init="random", n_init=1, max_iter=100, tol=0, random_state=0).fit(rows)
    np.testing.assert_allclose(model.inertia_, again.inertia_, rtol=1e-4)


def test_a_host_whose_network_is_cut_is_named_and_ends_its_engines_by_itself(
    on_both: xpulab.XPUCluster, hosts: Network
) -> None:
    """This is the last test of this cluster."""
    host = hosts.hosts[0]
    on_both.recover = False
    assert len(host.processes()) > 1
    host.link("down")
    try:
        with pytest.raises(EngineLostError, match=r"(?s)node1.*type: %xpu_cluster restart$"):
            on_both.run(lambda task: task.comm.Barrier() or __import__("time").sleep(100))
        assert not on_both.running
        require_clean(host)
    finally:
        host.link("up")


NOTEBOOK = """
import sys, xpulab
cluster = xpulab.XPUCluster(2, hosts=sys.argv[1], ssh_config=sys.argv[2], display="none").start()
print("started", flush=True)
cluster.run(lambda task: __import__("time").sleep(1000))
"""


@pytest.mark.parametrize("network", ["there", "cut"])
def test_nothing_is_left_on_any_host_after_the_notebook_is_killed(hosts: Network, network: str) -> None:
    """mpiexec waits for a host that cannot be reached until TCP gives it up, a quarter of an hour later."""
    words, host = [sys.executable, "-c", NOTEBOOK, f"{hosts.address},node1", hosts.ssh_config], hosts.hosts[0]
    try:
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as notebook:
            assert notebook.stdout is not None
            assert notebook.stdout.readline() == "started\n"
            children = psutil.Process(notebook.pid).children(recursive=True)
            if network == "cut":
                host.link("down")
            notebook.kill()
        assert not psutil.wait_procs(children, 120)[1]
        require_clean(host)
    finally:
        host.link("up")


SOON = 1.0  # seconds, in place of those of the line about a wait, and again of the error after it


@pytest.fixture
def slow(hosts: Network) -> Iterator[Network]:
    """The network, through which this machine sends 4 MB a second."""
    (line,) = [
        line
        for line in subprocess.check_output(["ip", "-o", "-4", "addr"], text=True).splitlines()
        if f" {hosts.address}/" in line
    ]
    device = line.split()[1]
    rate = ["root", "tbf", "rate", "32mbit", "burst", "64kb", "latency", "50ms"]
    subprocess.run(["tc", "qdisc", "add", "dev", device, *rate], check=True)
    yield hosts
    subprocess.run(["tc", "qdisc", "del", "dev", device, "root"], check=True)


def hurry(task: Any, limit: float) -> None:
    from xpulab.sharing import hangs

    hangs.TOLD = hangs.LAST_CHANCE = limit


@pytest.mark.usefixtures("merged_lines")
def test_a_long_message_through_a_slow_network_is_not_blamed(
    slow: Network, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(hangs, "TOLD", SOON)
    with xpulab.XPUCluster(
        hosts=f"{slow.address}:1,node1:1", ssh_config=slow.ssh_config, display="none", timeout=120
    ) as cluster:
        cluster.run(hurry, SOON)
        source = f"""
import numpy as np, time
many = np.full(20_000_000, 1 + rank, np.uint8)
begun = time.monotonic()
if rank == 0:
    comm.Send(many, 1)
else:
    comm.Recv(many, 0)
print(many[-1], rank == 0 or time.monotonic() - begun > {2 * SOON})
"""
        run_cell(cluster, source)
    output = capsys.readouterr()
    assert output.out == "[0-1] 1 True\n"
    assert "wait" not in output.err
