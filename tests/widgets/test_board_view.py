"""The board of a cluster of real engines: its forms, its history and timeline, Stop, and its files."""

from __future__ import annotations

import csv
import io
import json
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from IPython.core.displaypub import CapturingDisplayPublisher
from IPython.core.interactiveshell import InteractiveShell
from reports import Document
from strikes import meetings, strike
from waiting import until

import xpulab
from xpulab import widgets
from xpulab.cluster import KMeans
from xpulab.console.cells import run_cell
from xpulab.exceptions import CallInterrupted
from xpulab.report.history import History
from xpulab.report.profile import profiled
from xpulab.widgets.board import ClusterBoard
from xpulab.widgets.board_view import BoardView

pytestmark = pytest.mark.cluster

X = np.random.default_rng(0).normal(size=(20_000, 8)).astype(np.float32)


class ZMQInteractiveShell(InteractiveShell):
    """A shell with the class name of a notebook's shell."""


@pytest.fixture
def notebook() -> Iterator[Any]:
    InteractiveShell.clear_instance()
    shell = ZMQInteractiveShell.instance()
    shell.display_pub = CapturingDisplayPublisher()
    widgets.install(shell)
    yield shell
    widgets.uninstall()
    ZMQInteractiveShell.clear_instance()


@pytest.fixture
def fresh(on_pair: xpulab.XPUCluster) -> xpulab.XPUCluster:
    """A cluster without calls."""
    on_pair.engines.history = History()
    return on_pair


@pytest.fixture
def view(notebook: Any, fresh: xpulab.XPUCluster, on_pair: xpulab.XPUCluster) -> Iterator[BoardView]:
    view = BoardView(ClusterBoard(on_pair))
    yield view
    view.close()


@pytest.fixture
def gently(on_pair: xpulab.XPUCluster) -> Iterator[None]:
    """Fits that leave the cores to others, and have as few iterations as a view can follow."""
    on_pair.run(strike, pause=0.02)
    yield
    on_pair.run(meetings)


def fit(k: int, **options: Any) -> KMeans:
    return KMeans(k, init=X[:k], n_init=1, tol=0, **{"max_iter": 20, **options}).fit(X)


def endless(ended: list[BaseException]) -> None:
    """Fit until an interrupt, and add it to `ended`."""
    try:
        KMeans(30, n_init=100_000, max_iter=10_000, tol=0, random_state=0).fit(X)
    except CallInterrupted as interrupt:
        ended.append(interrupt)


def test_history_and_timeline_have_what_the_reports_have(view: BoardView) -> None:
    models = [fit(5), fit(7)]
    run_cell(view.board.cluster, "1 + 1")
    board = xpulab.board()
    assert [call.title for call in board.history.calls][:2] == ["KMeans.fit", "KMeans.fit"]
    assert board.history.calls[2].title.startswith("%%xpu cell")
    for number, model in enumerate(models, 1):
        timeline = board.timeline(number)
        report = model.report_
        assert len(timeline) == 2 * len(report.iterations)
        for engine in report.engines:
            mine = timeline.seconds[timeline.rank == engine.rank].sum(axis=0)
            spent = np.array([*engine.seconds.values()])
            assert (mine[:-1] <= spent + 1e-6).all()
            assert mine[2] > 0  # kernels after the last iteration are not in it
    assert len(board.timeline(99)) == 0
    models[0].predict(X)
    assert (len(board.timeline(4)), board.latest()) == (0, 2)
    for text in (str(board), Document(board._repr_html_()).text):
        assert all(words in text for words in ("n_clusters=5", "n_clusters=7", "Timeline of KMeans.fit"))


def test_a_script_has_its_calls(fresh: xpulab.XPUCluster) -> None:
    """Nobody has loaded the extension, or shown a board."""
    KMeans(5, init=X[:5], n_init=1, tol=0, max_iter=20).fit(X).predict(X)
    fresh.run(lambda task: task.comm.rank)
    with pytest.raises(ValueError, match="contains NaN"):
        KMeans(2).fit(np.full((3, 2), np.nan))  # it is no call: nothing was sent
    assert [call.title for call in fresh.history.calls] == ["KMeans.fit", "KMeans.predict", "run(<lambda>)"]
    assert "3 calls of this process on the cluster" in str(xpulab.board())
    assert len(fresh.history.to_csv().splitlines()) == 4


def test_a_profiled_cell_has_a_timeline(view: BoardView) -> None:
    with profiled():
        run_cell(view.board.cluster, "comm.Barrier()")
    timeline = view.board.timeline()
    assert timeline.engines == [0, 1]
    assert "MPI Barrier" in timeline.phases


@pytest.mark.usefixtures("gently")
def test_the_widget_follows_a_fit_which_stop_ends(view: BoardView) -> None:
    ended: list[BaseException] = []
    widget = view.widget
    assert widget is not None
    view.ask("views", 1)
    caller = threading.Thread(target=endless, args=(ended,))
    caller.start()
    until(lambda: widget.busy and "iteration " in widget.running and "xpu-progress" in widget.running)
    until(lambda: len(widget.spans) > 0)
    assert widget.about["phases"][-1] == "other"
    until(lambda: "polyline" in widget.engines)
    view.ask("stop")
    caller.join(120)
    assert not caller.is_alive()
    assert len(ended) == 1
    until(lambda: not widget.busy and "interrupted" in widget.history)


@pytest.mark.usefixtures("gently")
def test_a_call_that_waits_for_another_one_is_named(view: BoardView) -> None:
    ended: list[BaseException] = []
    callers = [threading.Thread(target=endless, args=(ended,)) for _ in range(2)]
    for caller in callers:
        caller.start()
    board, words = view.board, "KMeans.fit: waiting for KMeans.fit of another thread"
    until(lambda: "xpu-progress" in board.running() and any(each.startswith(words) for each in board.now()[2]))
    assert words in Document(board.running()).text
    assert f"waiting: {words}" in str(board)
    until(lambda: len(ended) == 2, meanwhile=lambda: view.ask("stop").join())
    for caller in callers:
        caller.join(120)
        assert not caller.is_alive()


def test_stop_ends_a_cell_in_another_thread(view: BoardView) -> None:
    ended: list[BaseException] = []

    def run() -> None:
        try:
            run_cell(view.board.cluster, "while True: pass")
        except CallInterrupted as interrupt:
            ended.append(interrupt)

    caller = threading.Thread(target=run)
    caller.start()
    until(lambda: "%%xpu of this notebook" in view.board.running())
    view.ask("stop")
    caller.join(120)
    assert not caller.is_alive()
    assert "was interrupted" in str(ended[0])
    assert view.board.history.calls[-1].state == "interrupted"


def test_requests_of_the_page(view: BoardView) -> None:
    fit(5), fit(7)
    widget = view.widget
    assert widget is not None
    files = {name: data for name, _, data in map(view.exported, ("history", "csv", "trace", "png"))}
    view.ask("export", "history").join()
    assert widget.message == ""
    assert len(list(csv.reader(io.StringIO(files["xpulab-history.csv"].decode())))) == 3
    assert len(list(csv.reader(io.StringIO(files["xpulab-timeline.csv"].decode())))) == 41
    assert json.loads(files["xpulab-timeline.json"])["traceEvents"]
    assert files["xpulab-timeline.png"].startswith(b"\x89PNG")
    view.ask("compare", [1, 2]).join()
    assert "xpu-o1" in widget.overlay
    view.ask("compare", [1]).join()
    assert widget.overlay == ""
    view.ask("names", None).join()
    assert "on 2 ranks" in widget.names
    assert "on 2 ranks" in str(view.board)
    run_cell(view.board.cluster, "made_since = 1")
    view.ask("views", 1).join()
    until(lambda: "made_since" in widget.names)
    view.ask("timeline", 1).join()
    assert widget.about["number"] == 1
    view.ask("measure", True).join()
    run_cell(view.board.cluster, "comm.Barrier()")
    view.ask("measure", False).join()
    assert view.board.timeline().title.startswith("%%xpu cell")


def test_an_error_of_a_request_is_shown(view: BoardView) -> None:
    view.ask("export", "png").join()
    assert view.widget is not None
    assert (
        view.widget.message
        == "ValueError: there is no timeline yet; fit an estimator that iterates, for example KMeans"
    )


def test_a_notebook_shows_the_widget_and_the_standing_form(view: BoardView, notebook: Any) -> None:
    fit(5)
    view.show()
    live, standing = (output["data"] for output in notebook.display_pub.outputs[-2:])
    assert set(live) == {"application/vnd.jupyter.widget-view+json", "text/html", "text/plain"}
    assert "KMeans.fit" in Document(standing["text/html"]).text
    assert "as of" in standing["text/plain"]
    fit(6)
    shown = notebook.display_pub.outputs
    until(lambda: "n_clusters=6" in shown[-1]["data"]["text/plain"])
