"""The live view of a cluster in a notebook: a table of its engines, and buttons to stop and to restart them.

It has two outputs, of which one is visible. The first is a widget: it follows the engines while a cell runs, also after
the page was loaded again, and its buttons work. The second is the same table as static HTML, for a notebook that is
opened without its kernel, for nbconvert, and for a front end without ipywidgets. A style sheet decides which output is
visible, because front ends show an error instead of a widget without a kernel.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import threading
import time
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from xpulab.deploy.status_view import shapes_html, status_html
from xpulab.report.progress import SHARE
from xpulab.report.rendering import Html, as_of, block, counted, escape, style, widget_view
from xpulab.widgets.pages import outside_cells

if TYPE_CHECKING:
    from ipywidgets import Widget

    from xpulab.deploy.cluster import XPUCluster
    from xpulab.deploy.status import ClusterStatus, EngineStatus

__all__ = ["ClusterView"]

_INTERVAL = 0.5  # seconds between two reads of the board
_STANDING = 2.0  # smallest number of seconds between two updates of the static HTML, because each changes the notebook
_BEAT = 0.5  # seconds; shorter ages of heartbeats are rounded up, so that the table does not change at every read
_NOW = "for now, type: %xpu_cluster status, and for the last report: %xpu_cluster last"


class ClusterView:
    """The view of one cluster in one notebook. It can be shown several times; all outputs show the same.

    Parameters
    ----------
    cluster : XPUCluster
        Only its public state is read.
    board : callable, optional
        Returns the widget of the cluster's board, which a button shows; None if it cannot be shown.
    """

    def __init__(self, cluster: XPUCluster, board: Callable[[], Widget | None] | None = None) -> None:
        self._cluster = cluster
        self._engines: ClusterStatus | None = None  # the last status that had engines
        self._id = f"xpulab-{uuid.uuid4().hex}"
        self._widget = _widget(cluster, board)
        self._shown: Any = None
        self._due = 0.0
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="xpulab-cluster-view", daemon=True)

    def show(self) -> None:
        """Show the view in the output of the running cell."""
        from IPython.display import display

        status = self._status()
        if self._widget is not None:
            outside_cells(self._widget.update, status)
            display(self._widget.bundle(), raw=True)
        display(self._standing(status), raw=True, display_id=self._id)
        self._shown = _gist(status)
        if not self._thread.is_alive():
            self._thread.start()

    def close(self) -> None:
        """Stop following the cluster. The outputs stay."""
        self._closed.set()
        if self._thread.is_alive():
            self._thread.join()

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, Any]:
        """Return the widget, the HTML and the text in one output."""
        status = self._status()
        return {**(self._widget.bundle() if self._widget else {}), **self._standing(status)}

    def _follow(self) -> None:
        pause = _INTERVAL
        while not self._closed.wait(pause):
            begun = time.thread_time()
            # If the cluster is stopped while its state is read, this update may fail. The next one is right again.
            with contextlib.suppress(Exception):
                self._update()
            pause = max(_INTERVAL, (time.thread_time() - begun) / SHARE)

    def _update(self) -> None:
        from IPython.display import display

        status = self._status()
        if self._widget is not None:
            outside_cells(self._widget.update, status)
        if _gist(status) != self._shown and time.monotonic() >= self._due:
            display(self._standing(status), raw=True, display_id=self._id, update=True)
            self._shown = _gist(status)
            self._due = time.monotonic() + _STANDING

    def _status(self) -> ClusterStatus:
        """Return the present status. The status of a stopped cluster has the engines that it had."""
        status = self._cluster.status()
        if status.engines:
            self._engines = dataclasses.replace(status, engines=tuple(map(_with_steady_age, status.engines)))
            return self._engines
        if self._engines is None:
            return status
        return dataclasses.replace(status, n=self._engines.n, engines=tuple(map(_ended, self._engines.engines)))

    @staticmethod
    def _standing(status: ClusterStatus) -> dict[str, str]:
        words = as_of(_NOW) if status.state == "running" else ""
        below = f'<div class="xpu"><div class="xpu-dim">{escape(words)}</div></div>' if words else ""
        html = f'<div class="xpu-standing"><style>{style("standing")}</style>{status._repr_html_()}{below}</div>'
        return {"text/html": html, "text/plain": f"{status}\n  {words}" if words else str(status)}


def _gist(status: ClusterStatus) -> Any:
    """Return the parts of the status whose changes update the static HTML; memory in use is not among them."""
    engines = [(engine.pid, engine.state, engine.device_bytes) for engine in status.engines]
    return status.state, status.warnings, status.others, status.interrupted, engines


def _with_steady_age(engine: EngineStatus) -> EngineStatus:
    beats = math.ceil((engine.heartbeat_age_s or 0.0) / _BEAT)
    return dataclasses.replace(engine, heartbeat_age_s=beats * _BEAT)


def _ended(engine: EngineStatus) -> EngineStatus:
    """Return the status of an engine after its cluster was stopped: only its rank, host and device are left."""
    return dataclasses.replace(
        engine,
        state="ended",
        run=0,
        iteration=0,
        memory_used=None,
        memory_free=None,
        device_bytes=None,
        device_free=None,
        heartbeat_age_s=None,
    )


def _widget(cluster: XPUCluster, board: Callable[[], Widget | None] | None) -> _Widget | None:
    """Return the widget; None if ipywidgets is not installed."""
    try:
        import ipywidgets  # noqa: F401
    except ImportError:
        return None
    return outside_cells(_Widget, cluster, board)


class _Widget:
    """The widget: the table, and the buttons below it."""

    def __init__(self, cluster: XPUCluster, board: Callable[[], Widget | None] | None) -> None:
        import ipywidgets

        self._cluster, self._board = cluster, board
        self._table = ipywidgets.HTML()
        self._shapes = ipywidgets.HTML()  # by itself, because each drawing folds it
        self._buttons = ipywidgets.HBox(layout={"align_items": "center"})
        self._box = ipywidgets.VBox([self._table, self._buttons, self._shapes])
        self._box.add_class("xpu-live")
        self._running: bool | None = None  # whether the buttons are those of a running cluster
        self._busy = False

    def update(self, status: ClusterStatus) -> None:
        """Show a status. Parts that have not changed are not sent."""
        content = status.to_dict()
        self._table.value, self._shapes.value = status_html(content, shapes=False), shapes_html(content)
        running = status.state not in ("stopped", "left")
        if running != self._running and not self._busy:
            self._offer(running)

    def bundle(self) -> dict[str, Any]:
        """Return the widget for a cell's output. If no widget can be shown, its text is above the table."""
        words = "buttons to stop and restart: %xpu_cluster stop, %xpu_cluster restart"
        html = block("Buttons of the cluster", [f'<span class="xpu-dim">{escape(words)}</span>'])
        return {**widget_view(self._box), "text/html": html, "text/plain": words}

    def _offer(self, running: bool) -> None:
        """Show the buttons for a running or a stopped cluster."""
        self._running, self._busy = running, False
        if not running:
            self._show(_button("Start the engines", "play", lambda: self._act("starting", self._cluster.start)))
            return
        n = self._cluster.size
        what = f"{counted(n, 'engine')}? Rows and variables there are lost."
        stop, restart = self._cluster.stop, self._cluster.restart
        self._show(
            _button("Stop", "stop", lambda: self._ask(f"Stop {what}", "stopping", stop)),
            _button("Restart", "refresh", lambda: self._ask(f"Restart {what}", "restarting", restart)),
            *([_button("Board", "bar-chart", self._show_board)] if self._board is not None else []),
        )

    def _show_board(self) -> None:
        """Show the board below the buttons; in JupyterLab it opens in a panel."""
        if self._board is not None and (widget := self._board()) is not None:
            self._box.children = (self._table, self._buttons, self._shapes, widget)

    def _ask(self, question: str, doing: str, call: Callable[[], Any]) -> None:
        """Show a question, and call the function only if the user confirms it."""
        yes = _button("Yes", "check", lambda: self._act(doing, call), "warning")
        no = _button("No", "times", lambda: self._offer(True))
        self._show(_words(question), yes, no)
        no.focus()

    def _act(self, doing: str, call: Callable[[], Any]) -> None:
        self._busy = True
        self._show(_words(f"{doing} …"))
        try:
            call()
        except Exception as error:
            self._offer(self._cluster.running)
            self._buttons.children = (*self._buttons.children, _words(f"{type(error).__name__}: {error}"))
        else:
            self._offer(self._cluster.running)

    def _show(self, *children: Widget) -> None:
        self._buttons.children = children


def _button(name: str, icon: str, press: Callable[[], None], style: str = "") -> Any:
    import ipywidgets

    button = ipywidgets.Button(description=name, icon=icon, button_style=style, tooltip=name)
    button.layout.width = "auto"
    button.on_click(lambda _: outside_cells(press))
    return button


def _words(text: str) -> Any:
    import ipywidgets

    return ipywidgets.HTML(Html(f'<span role="status">{escape(text)}</span>'))
