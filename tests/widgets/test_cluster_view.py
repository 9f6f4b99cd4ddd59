"""The view of a cluster: its forms, its updates, and its buttons, which ask before they act."""

from __future__ import annotations

import builtins
import dataclasses
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from IPython.core.displaypub import CapturingDisplayPublisher
from IPython.core.interactiveshell import InteractiveShell
from reports import EVIL, Document

from xpulab import widgets
from xpulab.deploy.status import ClusterStatus, EngineStatus
from xpulab.widgets.cluster_view import ClusterView

ENGINE = EngineStatus(
    rank=0,
    host="node01",
    pid=991,
    device="Arc A770",
    selector="level_zero:0.1",
    cores=(0, 1),
    state="idle",
    heartbeat_age_s=0.2,
    memory_used=2**28,
    device_bytes=2**20,
    device_memory=2**34,
    memory_free=2**33,
    device_free=2**34 - 2**20,
)


class Cluster:
    """A stand-in with the public state that a view reads."""

    def __init__(self) -> None:
        self.running = True
        self.size = 1
        self.engine = ENGINE
        self.calls: list[str] = []

    def status(self) -> ClusterStatus:
        return ClusterStatus("running", 1, 2.0, (self.engine,)) if self.running else ClusterStatus("stopped", 0)

    def stop(self) -> None:
        self.calls.append("stop")
        self.running = False

    def start(self) -> None:
        self.calls.append("start")
        self.running = True

    def restart(self) -> None:
        self.calls.append("restart")
        raise RuntimeError(EVIL)


class ZMQInteractiveShell(InteractiveShell):
    """A shell with the class name of a notebook's shell."""


@pytest.fixture
def shell() -> Iterator[Any]:
    InteractiveShell.clear_instance()
    shell = ZMQInteractiveShell.instance()
    shell.display_pub = CapturingDisplayPublisher()
    yield shell
    widgets.uninstall()
    ZMQInteractiveShell.clear_instance()


@pytest.fixture
def cluster() -> Any:
    return Cluster()


@pytest.fixture
def view(cluster: Any, shell: Any) -> Iterator[ClusterView]:
    view = ClusterView(cluster)
    yield view
    view.close()


def parts(view: ClusterView) -> tuple[Any, ...]:
    """Update the view, and return the widgets of its live table, of the row of buttons, and of the launch shapes."""
    view._update()
    assert view._widget is not None
    return view._widget._box.children


def shown(view: ClusterView) -> Document:
    """Return the live table."""
    return Document(parts(view)[0].value)


def buttons(view: ClusterView) -> dict[str, Any]:
    """Return the buttons that can be pressed, by name."""
    return {b.description: b for b in parts(view)[1].children if hasattr(b, "click")}


def within_seconds(true: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 120
    while not true() and time.monotonic() < deadline:
        time.sleep(0.02)
    return true()


def test_three_forms(view: ClusterView) -> None:
    bundle = view._repr_mimebundle_()
    assert set(bundle) == {"application/vnd.jupyter.widget-view+json", "text/html", "text/plain"}
    for text in (bundle["text/plain"], Document(bundle["text/html"]).text, shown(view).text):
        for word in ("node01", "991", "Arc A770", "level_zero:0.1", "256 MiB used, 8.0 GiB free", "1.0 MiB used"):
            assert word in text


def test_the_standing_form_has_the_time_of_its_update(view: ClusterView, cluster: Any) -> None:
    """A reader who opens the notebook without its kernel sees running engines only together with a date."""
    words = f"as of {time.strftime('%Y-%m-%d')}"
    standing = view._repr_mimebundle_()
    for text in (standing["text/plain"], Document(standing["text/html"]).text):
        assert words in text
        assert text.endswith("for the last report: %xpu_cluster last")
    assert "as of" not in shown(view).text  # the live table is always true
    cluster.running = False
    assert "as of" not in view._repr_mimebundle_()["text/plain"]


def test_it_follows_the_engines(view: ClusterView, cluster: Any, shell: Any) -> None:
    view.show()
    cluster.engine = dataclasses.replace(ENGINE, state="KMeans.fit", run=2, iteration=17)
    outputs = shell.display_pub.outputs
    assert within_seconds(lambda: "KMeans.fit, run 2, iteration 17" in outputs[-1]["data"]["text/plain"])
    live, standing, *updates = outputs
    assert "application/vnd.jupyter.widget-view+json" in live["data"]
    assert len({output["transient"]["display_id"] for output in (standing, *updates)}) == 1
    assert [output["update"] for output in outputs] == [False, False, *[True] * len(updates)]


def test_memory_and_heartbeats_do_not_change_the_notebook(view: ClusterView, cluster: Any, shell: Any) -> None:
    view.show()
    sent = len(shell.display_pub.outputs)
    values: list[str] = []
    table, *_ = parts(view)
    table.observe(lambda change: values.append(change.new), "value")
    for age in (0.1, 0.3, 0.49):
        cluster.engine = dataclasses.replace(ENGINE, heartbeat_age_s=age)
        parts(view)
    assert values == []
    cluster.engine = dataclasses.replace(ENGINE, memory_free=2**32)
    parts(view)
    assert len(values) == 1
    assert len(shell.display_pub.outputs) == sent


def test_launch_shapes_are_drawn_again_only_if_they_change_because_this_folds_them(
    view: ClusterView, cluster: Any
) -> None:
    cluster.engine = dataclasses.replace(ENGINE, launch_shape="4x4x16, span 4096 (default)")
    table, _, shapes = parts(view)
    assert "4096" not in table.value
    drawn = shapes.value
    assert "<summary>Launch shapes</summary><div>4x4x16, span 4096 (default)</div>" in drawn
    cluster.engine = dataclasses.replace(cluster.engine, state="KMeans.fit", iteration=3, memory_used=2**29)
    assert "iteration 3" in shown(view).text
    assert shapes.value == drawn


def test_after_the_stop_the_view_shows_the_stopped_engines(view: ClusterView, cluster: Any) -> None:
    assert "● idle" in shown(view).text
    cluster.running = False
    text = shown(view).text
    assert "stopped, 1 engine; type: %xpu_cluster start" in text
    assert "○ ended" in text
    assert "Arc A770" in text
    assert "ago" not in text


def test_stop_asks_first_and_the_engines_can_be_started_again(view: ClusterView, cluster: Any) -> None:
    buttons(view)["Stop"].click()
    assert cluster.calls == []
    question = Document(parts(view)[1].children[0].value)
    assert question.text == "Stop 1 engine? Rows and variables there are lost."
    buttons(view)["No"].click()
    assert set(buttons(view)) == {"Stop", "Restart"}
    buttons(view)["Stop"].click()
    buttons(view)["Yes"].click()
    assert cluster.calls == ["stop"]
    assert set(buttons(view)) == {"Start the engines"}
    buttons(view)["Start the engines"].click()
    assert cluster.calls == ["stop", "start"]
    assert set(buttons(view)) == {"Stop", "Restart"}


def test_an_error_is_shown_escaped_and_the_buttons_come_back(view: ClusterView, cluster: Any) -> None:
    buttons(view)["Restart"].click()
    buttons(view)["Yes"].click()
    assert cluster.calls == ["restart"]
    said = parts(view)[1].children[-1].value
    assert "<script" not in said
    assert Document(said).text.startswith("RuntimeError: <script>")
    assert set(buttons(view)) == {"Stop", "Restart"}


def test_everything_is_escaped(view: ClusterView, cluster: Any) -> None:
    cluster.engine = dataclasses.replace(ENGINE, device=EVIL, host=EVIL, selector=EVIL, state=EVIL)
    bundle = view._repr_mimebundle_()
    assert "<script" not in bundle["text/html"]
    assert "\x1b" not in bundle["text/plain"]
    assert shown(view).text.count("<script>") == 4


def test_every_button_has_a_name(view: ClusterView) -> None:
    for _ in range(2):
        for button in buttons(view).values():
            assert button.description
            assert button.tooltip
        buttons(view)["Stop"].click() if "Stop" in buttons(view) else None


def test_without_ipywidgets_there_is_html(cluster: Any, shell: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.split(".")[0] == "ipywidgets":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    view = ClusterView(cluster)
    assert set(view._repr_mimebundle_()) == {"text/html", "text/plain"}
    view.show()
    view.close()
    assert [set(output["data"]) for output in shell.display_pub.outputs] == [{"text/html", "text/plain"}]


def as_views(shell: Any) -> None:
    """Show the stand-ins as a notebook shows clusters."""
    displays = shell.display_formatter.ipython_display_formatter
    displays.for_type(Cluster, displays.lookup_by_type("xpulab.deploy.cluster.XPUCluster"))


def test_a_notebook_shows_clusters_as_views_and_a_terminal_as_text(cluster: Any, shell: Any) -> None:
    widgets.install(shell)
    as_views(shell)
    status = dataclasses.replace(cluster.status(), cluster=cluster)
    assert shell.display_formatter.format(status) == ({}, {})
    assert len(shell.display_pub.outputs) == 2
    assert set(shell.display_formatter.format(cluster.status())[0]) == {"text/html", "text/plain"}
    shell.display_formatter.format(cluster)
    identities = {(o["transient"] or {}).get("display_id") for o in shell.display_pub.outputs} - {None}
    assert len(identities) == 1  # one view of a cluster, shown twice
    widgets.uninstall()
    assert set(shell.display_formatter.format(status)[0]) == {"text/html", "text/plain"}


def test_a_cluster_that_never_ran_has_no_view(cluster: Any, shell: Any) -> None:
    widgets.install(shell)
    as_views(shell)
    cluster.running = False
    assert set(shell.display_formatter.format(cluster)[0]) == {"text/plain"}
    assert shell.display_pub.outputs == []


def test_after_a_failed_update_the_view_is_updated_again(view: ClusterView, cluster: Any, shell: Any) -> None:
    view.show()
    good, failed = cluster.status, []

    def failing() -> ClusterStatus:
        failed.append(1)
        raise ZeroDivisionError

    cluster.status = failing
    assert within_seconds(lambda: len(failed) == 2)
    cluster.status = good
    cluster.engine = dataclasses.replace(ENGINE, state="%%xpu")
    outputs = shell.display_pub.outputs
    assert within_seconds(lambda: "▶ %%xpu" in outputs[-1]["data"]["text/plain"])
