"""The explorer's view: the latest value of a slider wins, the controls work, and a picture remains at the end."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from reports import Document

import xpulab
from xpulab.explorer import view as explore_view
from xpulab.explorer.latest import Latest
from xpulab.explorer.picture import PALETTE, Picture
from xpulab.explorer.plane import DrawnRow
from xpulab.explorer.plane_snapshot import Selection
from xpulab.explorer.session import Explorer
from xpulab.explorer.snapshot import Snapshot
from xpulab.explorer.view import ExploreView


class Slow(Explorer):
    """An explorer without engines. It takes as long as the test makes it wait, and records its actions."""

    def __init__(self, n_samples: int = 5000) -> None:
        self.rows: Any = np.empty((n_samples, 3))
        self.names = ["a", "b", "c"]
        self.elbows: dict[int, float] = {}
        self.seconds = {"kernel": 0.001}
        self.done: list[Any] = []
        self.free = threading.Event()
        self.free.set()
        self.state: dict[str, Any] = {"k": 3, "points": n_samples, "features": (0, 1)}
        self.inertias = [4.0]
        self.converged = False
        self.selection: Selection | None = None
        self.error: Exception | None = None  # that a step raises

    def _do(self, name: str, *values: Any) -> None:
        assert self.free.wait(120)
        self.done.append((name, *values))

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("k", "points", "features"):
            self._do(name, value)
            self.state[name] = value
        else:
            object.__setattr__(self, name, value)

    inertias: Any = ()
    k: Any = property(lambda self: self.state["k"])
    points: Any = property(lambda self: self.state["points"])
    features: Any = property(lambda self: self.state["features"])

    def start(self) -> None:
        self._do("start")

    def step(self) -> None:
        if self.error is not None:
            raise self.error
        self._do("step")
        self.inertias = [*self.inertias, self.inertias[-1] / 2]
        self.converged = len(self.inertias) > 4

    def restart(self) -> None:
        self._do("restart")

    def reset(self) -> None:
        self._do("reset")

    def move_center(self, j: int, x: float, y: float) -> None:
        self._do("move", j, x, y)

    def extend_elbow(self, k: int) -> None:
        self._do("elbow", k)
        self.elbows = {**self.elbows, k: 9.0 / k}

    def row_at(self, x: float, y: float) -> DrawnRow | None:
        if self.error is not None:
            raise self.error
        self._do("row", x, y)
        return DrawnRow(4321, {"a": x, "b": y, "c": 3.25}, 1, x, y, 7) if x >= 0 else None

    def select(self, shape: Any = None) -> Any:
        self._do("select", shape)
        self.selection = None if shape is None else Selection((1200, 0, 34), np.array(shape))

    def picture(self) -> Picture:
        return self.snapshot().picture

    def snapshot(self) -> Snapshot:
        k = self.state["k"]
        counts = np.zeros((k, 6, 8), np.int32)
        counts[:, 2, 3] = range(k)
        turns = len(self.inertias)
        return Snapshot(
            Picture(counts, ("a", "b"), (0.0, 0.0), (1.0, 1.0)), self.points, len(self.rows), 3, k, 0,
            np.full((turns, k, 2), 0.5), tuple(self.inertias), self.elbows, self.converged,
            selection=self.selection,
        )  # fmt: skip


class Shown:
    """Replaces the handle of a display, and keeps the updates."""

    def __init__(self) -> None:
        self.updates: list[dict[str, str]] = []

    def update(self, thing: Any) -> None:
        self.updates.append(thing._repr_mimebundle_())


@pytest.fixture
def view() -> Iterator[ExploreView]:
    view = ExploreView(Slow())
    view.pace = 100.0
    yield view
    view.explorer.free.set()  # type: ignore[union-attr]
    view.close()


def done(view: ExploreView) -> list[Any]:
    assert view.wait(120)
    return view.explorer.done  # type: ignore[union-attr]


def test_of_waiting_requests_with_one_name_only_the_last_is_handled() -> None:
    drawn: list[Any] = []
    started, free = threading.Event(), threading.Event()

    def draw(asked: dict[str, Any]) -> None:
        started.set()
        assert free.wait(120)
        drawn.append(asked)

    latest = Latest(draw)
    latest.ask("k", 0)
    assert started.wait(120)
    for value in range(1, 20):
        latest.ask("k", value)
        latest.ask("points", -value)
    assert not latest.wait(0.05)
    free.set()
    assert latest.wait(120)
    assert drawn == [{"k": 0}, {"k": 19, "points": -19}]
    latest.ask("k", 20)
    assert latest.wait(120)
    assert drawn[2:] == [{"k": 20}]


def test_twenty_changes_of_a_slider_draw_few_pictures(view: ExploreView) -> None:
    explorer: Any = view.explorer
    explorer.free.clear()
    for k in range(4, 24):
        view.ask("k", k)
    explorer.free.set()
    ks = [k for _, k in done(view)]
    assert ks[-1] == 23
    assert len(ks) <= 2


def test_nothing_runs_when_nothing_is_asked_for(view: ExploreView) -> None:
    view.ask("step")
    assert view.wait(120)
    assert not [thread for thread in threading.enumerate() if thread.name == "xpulab-explore"]


def test_each_control_does_what_it_says(view: ExploreView) -> None:
    for name, value in [
        ("k", 5), ("points", 100), ("x", 2), ("y", 0), ("move", [1, 0.5, 0.25]), ("step", None), ("reset", None),
        ("restart", None),
    ]:  # fmt: skip
        view.ask(name, value)
        assert view.wait(120)
    assert done(view) == [
        ("k", 5), ("points", 100), ("features", [2, 1]), ("features", [2, 0]), ("move", 1, 0.5, 0.25), ("step",),
        ("reset",), ("restart",),
    ]  # fmt: skip


def test_the_row_at_the_pointer_is_sent_in_words_and_without_another_picture(
    view: ExploreView, monkeypatch: pytest.MonkeyPatch
) -> None:
    view.widget = view._make_widget()
    sent: list[Any] = []
    monkeypatch.setattr(view.widget, "send", sent.append)
    states: list[Any] = []
    view.widget.observe(states.append, "state")
    view.widget._handle_custom_msg({"name": "row", "value": [0.5, 0.25]}, [])
    assert done(view) == [("row", 0.5, 0.25)]
    assert sent == [{"row": {
        "title": "Row 4,321 of cluster 1", "hue": PALETTE[1], "values": [["a", "0.5"], ["b", "0.25"], ["c", "3.25"]],
        "more": "the first of 7 rows at this pixel", "x": 0.5, "y": 0.25,
    }}]  # fmt: skip
    view.ask("row", [-1, 0])
    assert view.wait(120)
    view.explorer.error = xpulab.exceptions.NoClusterError("the cluster was stopped")  # type: ignore[union-attr]
    view.ask("row", [0, 0])
    assert view.wait(120)
    assert sent[1:] == [{"row": None}, {"row": {"title": "the cluster was stopped", "values": [], "more": ""}}]
    assert states == []


def test_the_features_of_the_picture_are_the_first_of_those_that_are_shown(view: ExploreView) -> None:
    explorer: Any = view.explorer
    explorer.state["features"] = (9, 2)
    explorer.names = [f"f{i}" for i in range(20)]
    explorer.row_at = lambda x, y: DrawnRow(0, dict.fromkeys(explorer.names, 1.0), 0, x, y, 1)
    row: Any = view._row(0.5, 0.5)
    assert [name for name, _ in row["values"]] == ["f9", "f2", "f0", "f1", "f3", "f4", "f5", "f6"]
    assert row["more"] == "and 12 more features"


def test_what_is_selected_is_said_in_words_and_a_click_selects_nothing(view: ExploreView) -> None:
    view.widget = view._make_widget()
    assert view.widget.state["selected"] is False
    shape = [[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]]
    view.ask("select", shape)
    assert done(view) == [("select", shape)]
    assert view.widget.state["line"].splitlines()[1:] == ["1,234 rows selected: 1,200 of cluster 0, 34 of cluster 2"]
    assert view.widget.state["selected"] is True
    view.ask("select", None)
    assert done(view)[1:] == [("select", None)]
    assert view.widget.state["line"] == view.snapshot().line()


def test_the_present_value_changes_nothing(view: ExploreView) -> None:
    for name, value in [("k", 3), ("points", 5000), ("x", 0), ("y", 1)]:
        view.ask(name, value)
    assert done(view) == []


def test_play_goes_on_until_it_has_converged(view: ExploreView) -> None:
    view.ask("play", True)
    assert done(view) == [("step",)] * 4
    assert not view.playing


def test_pause_ends_play_and_other_controls_work_during_play(view: ExploreView) -> None:
    view.ask("pace", 1 / 30)
    view.ask("play", True)
    view.ask("k", 4)
    time.sleep(0.05)
    view.ask("play", False)
    assert ("k", 4) in done(view)
    assert ("step",) not in done(view)


def test_the_elbow_is_computed_step_by_step_and_other_requests_are_handled_in_between(view: ExploreView) -> None:
    explorer: Any = view.explorer
    explorer.elbows = {1: 9.0, 2: 5.0}
    explorer.free.clear()
    view.ask("elbow")
    time.sleep(0.05)
    view.ask("step")
    explorer.free.set()
    order = done(view)
    assert [k for name, *k in order if name == "elbow"] == [[k] for k in range(3, 13)]
    assert order.index(("step",)) <= 1


def test_stop_ends_play_and_elbow(view: ExploreView) -> None:
    explorer: Any = view.explorer
    explorer.free.clear()
    view.ask("elbow")
    view.ask("play", True)
    time.sleep(0.05)
    view.ask("stop")
    explorer.free.set()
    order = done(view)
    assert len(order) <= 1
    assert not view.playing


def test_play_keeps_its_pace(view: ExploreView) -> None:
    view.ask("pace", 5)
    started = time.monotonic()
    view.ask("play", True)
    assert done(view) == [("step",)] * 4
    assert time.monotonic() - started > 0.5  # four times a fifth of a second, less the first
    assert view.pace == 5


def test_changes_from_python_are_shown(view: ExploreView) -> None:
    explorer: Any = view.explorer
    explorer.changed()  # the view is not shown yet, so there is nothing to redraw
    assert not [thread for thread in threading.enumerate() if thread.name == "xpulab-explore"]
    view._standing = shown = Shown()
    explorer.k = 7
    explorer.changed()
    assert view.wait(120)
    assert "k=7" in shown.updates[-1]["text/plain"]
    view.close()
    explorer.k, seen = 8, len(shown.updates)
    explorer.changed()
    assert view.wait(120)
    assert len(shown.updates) == seen


def test_a_stopped_cluster_is_reported_and_the_view_can_start_it(view: ExploreView) -> None:
    error = xpulab.exceptions.NoClusterError("the cluster was stopped; type: %xpu_cluster start")
    view.explorer.error = error  # type: ignore[union-attr]
    view.ask("step")
    assert view.wait(120)
    assert (view.message, view.stopped) == ("the cluster was stopped; type: %xpu_cluster start", True)
    view.ask("start")
    assert done(view) == [("start",)]
    assert not view.stopped


def test_an_error_is_shown_and_stops_playing(view: ExploreView) -> None:
    error = xpulab.exceptions.EngineLostError("the engines have ended; type: %xpu_cluster start")
    view.explorer.error = error  # type: ignore[union-attr]
    view.ask("play", True)
    assert view.wait(120)
    assert view.message == "EngineLostError: the engines have ended; type: %xpu_cluster start"
    assert not view.playing
    view.ask("k", 7)
    assert ("k", 7) in done(view)


def test_the_widget_has_what_the_browser_shows(view: ExploreView) -> None:
    view.widget = view._make_widget()
    assert view.widget.choices == {
        "title": "k-means explorer",
        "elbow": True,
        "iterates": True,
        "names": ["a", "b", "c"],
        "points": [100, 200, 500, 1000, 2000, 5000],
        "clusters": list(range(1, 21)),
        "paces": [0.5, 1, 2, 4, 8, 16, 100],
    }
    json.dumps(view.widget.state)
    before = view.widget.png
    view.widget._handle_custom_msg({"name": "k", "value": 6}, [])
    assert view.wait(120)
    state = view.widget.state
    assert (state["k"], state["points"], state["x"], state["y"], state["playing"]) == (6, 5000, 0, 1, False)
    assert state["centers"] == [[0.5, 0.5]] * 6
    assert "to the answer of the engines" in state["message"]
    assert "k=6, start 0: 0 iterations, inertia 4" in state["line"]
    assert view.widget.png == view.snapshot().png != before
    document = Document(f"<div>{state['html']}</div>")
    assert [each["href"] for each in document.attributes("image")] == [""]
    assert [each["data-center"] for each in document.attributes("g") if "data-center" in each] == list("012345")


def test_values_set_from_python_are_among_the_choices() -> None:
    explorer: Any = Slow(12)
    explorer.state.update(k=11, points=7)
    widget = ExploreView(explorer)._make_widget()
    assert widget.choices["points"] == [7, 12]
    assert widget.choices["clusters"] == list(range(1, 13))
    widget.close()


def test_the_standing_picture_is_the_last_one_and_is_hidden_while_the_widget_works(view: ExploreView) -> None:
    view._standing = shown = Shown()
    view.ask("k", 5)
    assert view.wait(120)
    bundle = shown.updates[-1]
    assert set(bundle) == {"text/html", "text/plain"}
    assert "k=5" in bundle["text/plain"]
    document = Document(bundle["text/html"])
    assert str(document.attributes("image")[0]["href"]).startswith("data:image/png;base64,")
    assert {"data-xpu-standing": view.name} in document.attributes("div")
    assert f".xpu-live-{view.name} " in bundle["text/html"]


def test_without_ipywidgets_there_is_no_widget_and_a_snapshot(
    view: ExploreView, monkeypatch: pytest.MonkeyPatch
) -> None:
    import builtins

    real = builtins.__import__

    def missing(name: str, *arguments: Any, **keywords: Any) -> Any:
        if name in ("xpulab.explorer.widget", "anywidget", "ipywidgets"):
            raise ImportError(name)
        return real(name, *arguments, **keywords)

    monkeypatch.setattr(builtins, "__import__", missing)
    assert view._make_widget() is None
    assert "k=3" in str(view.snapshot())


def test_a_terminal_shows_the_text_and_makes_no_widget(view: ExploreView, capsys: pytest.CaptureFixture[str]) -> None:
    view._ipython_display_()
    assert capsys.readouterr().out == f"{view.snapshot()}\n"
    assert view.widget is None


def test_the_javascript_is_in_the_package() -> None:
    from xpulab.explorer.widget import ExploreWidget

    assert "export default" in (Path(explore_view.__file__).parent / "explore.js").read_text()
    assert "export default" in str(ExploreWidget._esm)


@pytest.mark.cluster
def test_the_controls_work_on_real_engines(pair: xpulab.XPUCluster) -> None:

    pair.activate()
    X = np.random.default_rng(0).normal(size=(1500, 3)).astype(np.float32)
    view = xpulab.explore(X, k=4, features=(2, 1), points=1000)
    view.pace = 100.0
    assert repr(view).startswith("k-means of 1,000 of 1,500 rows x 3, k=4, start 0: 0 iterations")
    before = view.snapshot().png
    for name, value in [("k", 5), ("x", 0), ("points", 1500), ("step", None), ("move", [1, 0.0, 0.0]), ("play", True)]:
        view.ask(name, value)
        assert view.wait(120)
        assert "Error" not in view.message
    assert isinstance(view.explorer, Explorer)
    assert view.explorer.converged
    assert (view.explorer.k, view.explorer.features, view.explorer.points) == (5, (0, 1), 1500)
    assert view.snapshot().png != before
    view.ask("elbow")
    assert view.wait(120)
    shown = view.snapshot()
    assert isinstance(shown, Snapshot)
    assert list(shown.elbows) == list(range(1, 13))
    assert shown.elbows[1] == pytest.approx(((X - X.mean(axis=0)) ** 2).sum(), rel=1e-5)


@pytest.mark.cluster
def test_a_notebook_without_a_kernel_shows_the_last_picture(tmp_path: Path) -> None:
    """In a real kernel, a thread draws the pictures, and the output must belong to the cell.

    The explorer shows changes made from Python, and works again after another cluster was started.
    """
    import nbformat
    from nbclient import NotebookClient

    cells = [
        "import numpy as np, xpulab, warnings\nwarnings.simplefilter('ignore')\n"
        "cluster = xpulab.XPUCluster(1, timeout=60).start()\n"
        "view = xpulab.explore(np.random.default_rng(0).normal(size=(1000, 2)), k=3)\nview",
        "view.explorer.k = 4",
        "other = xpulab.explore(cluster.scatter(np.eye(9)), k=2); cluster.stop()\n"
        "view.ask('play', True); view.wait(); print(view.message, view.stopped, view.playing)",
        "with xpulab.XPUCluster(1, timeout=60):\n"
        "    view.explorer.step(); print(view.snapshot().line()[:49])\n"
        "    other.ask('step'); other.wait(); print(other.message)",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    NotebookClient(notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": tmp_path}}).execute()
    bundles = [output.data for output in notebook.cells[0].outputs if output.output_type == "display_data"]
    assert "application/vnd.jupyter.widget-view+json" in bundles[0]
    assert "k=4" in bundles[1]["text/plain"]
    assert "data:image/png;base64," in bundles[1]["text/html"]
    assert "ExploreWidget" not in str(bundles)
    said = ["".join(each.text for each in cell.outputs if each.output_type == "stream") for cell in notebook.cells]
    assert said[2] == "the cluster was stopped; type: %xpu_cluster start True False\n"
    assert said[3] == (
        "k-means of 1,000 rows x 2, k=4, start 0: 1 iterat\n"
        "HandleError: the rows of this explorer were on engines that were stopped; scatter them again, and type: "
        "xpulab.explore(rows)\n"
    )
