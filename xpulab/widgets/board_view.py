"""The live view of a board in a notebook: in JupyterLab in a panel beside the notebook, elsewhere in the cell's output.

As the view of a cluster, it has two outputs, of which one is visible: the widget, and the same as static HTML for a
notebook without its kernel. The panel is that of the extension sidecar. Where it is missing, and in front ends without
panels, the widget in the page has all parts.
"""

from __future__ import annotations

import contextlib
import importlib.util
import threading
import time
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from xpulab.deploy.watch.utilisation import PACE
from xpulab.report import usage
from xpulab.report.figure import COLOURS
from xpulab.report.html import css
from xpulab.report.overlay import overlay_html
from xpulab.report.progress import SHARE
from xpulab.report.rendering import as_of, escape, style, widget_view
from xpulab.report.timeline import Timeline, kind_of
from xpulab.widgets.board import ClusterBoard
from xpulab.widgets.pages import outside_cells

if TYPE_CHECKING:
    from xpulab.widgets.board_widget import BoardWidget

__all__ = ["BoardView"]

_STANDING = 2.0  # smallest number of seconds between two updates of the static HTML, because each changes the notebook
_NOW = "for now, type: %xpu_cluster board"
_ADVICE = 'For a panel beside the notebook, type: pip install "xpulab[notebook]", and load the page again.'
_TYPES = {
    "history": ("text/csv", "csv"),
    "csv": ("text/csv", "csv"),
    "png": ("image/png", "png"),
    "trace": ("application/json", "json"),
}
#: The forms of a timeline that are text.
_TEXTS: dict[str, Callable[[Timeline], str]] = {"csv": Timeline.to_csv, "trace": Timeline.to_trace}


class BoardView:
    """The view of one board in one notebook. All its outputs and its panel show the same.

    Parameters
    ----------
    board : ClusterBoard
    """

    def __init__(self, board: ClusterBoard) -> None:
        self.board = board
        self._id = f"xpulab-{uuid.uuid4().hex}"
        self._widget: BoardWidget | None = outside_cells(self._make_widget)
        self._panel: Any = None
        self._views = 0  # those that are open in a page
        self._call = 0  # number of the call whose timeline is shown; 0 for the latest
        self._compared: list[int] = []
        self._told_timeline: object = None
        self._told_standing: object = None
        self._stands = False  # whether the static HTML is shown
        self._due = 0.0
        self._measures = contextlib.ExitStack()
        self._measured: list[usage.CellUsage] = []  # the history has them, too
        self._names_of = 0  # number of the calls before the names were asked for
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="xpulab-board", daemon=True)

    def show(self) -> None:
        """Show the view in the output of the running cell, and, in JupyterLab, in a panel."""
        from IPython.display import display

        if (widget := self.widget) is not None:
            text = "the board of the cluster; type: %xpu_cluster board"
            display({**widget_view(widget), "text/html": "", "text/plain": text}, raw=True)
        display(self._standing(), raw=True, display_id=self._id)
        self._stands = True

    @property
    def widget(self) -> BoardWidget | None:
        """The widget, which follows the cluster from now on; None if it cannot be shown."""
        if not self._thread.is_alive() and not self._closed.is_set():
            self.board.sample()
            self.board.keep()
            self._thread.start()
        if self._widget is not None:
            outside_cells(setattr, self._widget, "opens", True)
            outside_cells(self._update)
        return self._widget

    def close(self) -> None:
        """Stop following the cluster. The outputs stay."""
        self._closed.set()
        self._measures.close()
        if self._thread.is_alive():
            self._thread.join()

    def _follow(self) -> None:
        pause = PACE
        while not self._closed.wait(pause):
            begun = time.thread_time()
            # If the cluster is stopped while its state is read, this update may fail. The next one is right again.
            with contextlib.suppress(Exception):
                self.board.sample()
                self.board.keep()
                self._measured.clear()
                if self._widget is not None and self._views:
                    outside_cells(self._update)
                self._stand()
            pause = max(PACE, (time.thread_time() - begun) / (2 * SHARE))

    # -- the widget ---------------------------------------------------------------------------------------------------

    def _make_widget(self) -> BoardWidget | None:
        """Return the widget, or None if ipywidgets or anywidget is missing."""
        try:
            from xpulab.widgets.board_widget import BoardWidget
        except ImportError:
            return None
        advice = "" if importlib.util.find_spec("sidecar") is not None else _ADVICE
        widget = BoardWidget(
            name=self._id, css=css() + style("base") + style("board") + style("controls"), advice=advice
        )
        widget.on_msg(lambda _, content, buffers: self.ask(content["name"], content["value"]))
        return widget

    def _update(self) -> None:
        """Show the present state. Parts that have not changed are not sent."""
        widget, board = self._widget, self.board
        if widget is None:
            return
        widget.running, widget.engines = board.running(), board.engines()
        widget.history = board.history.html(chosen=True)
        widget.busy = board.now()[0] != ""
        if self._compared:
            self._compare(self._compared)
        if board.named is not None and not widget.busy and self._names_of != board.history.total:
            self._names_of = board.history.total  # a call may have made names
            self.ask("names")
        calls = [[each.number, each.title] for each in board.with_timelines()]
        if calls != widget.calls:
            widget.calls = calls
        self._show_timeline()

    def _show_timeline(self) -> None:
        """Send the timeline of the chosen call, if it has changed."""
        widget, number = self._widget, self._call or self.board.latest()
        if widget is None:
            return
        timeline = self.board.timeline(number or None)
        told = (number, len(timeline), float(timeline.start[-1]) if len(timeline) else 0.0)
        if told == self._told_timeline:
            return
        self._told_timeline = told
        kinds = [kind_of(phase) for phase in timeline.phases]
        called = self.board.history.numbered(number)
        with widget.hold_sync():
            widget.spans = _packed(timeline)
            widget.about = {
                "number": number,
                "title": timeline.title,
                "phases": list(timeline.phases),
                "kinds": kinds,
                "colours": [COLOURS[kind][0] for kind in kinds],
                "cell": called is not None and called.usage is not None,
            }

    # -- requests -----------------------------------------------------------------------------------------------------

    def ask(self, name: str, value: Any = None) -> threading.Thread:
        """Handle a request of the user in a thread, which is returned: a task of the engines may have to wait.

        Parameters
        ----------
        name : str
            One of `_REQUESTS`.
        value : object
            Its argument.
        """
        thread = threading.Thread(target=self._work, args=(name, value), name="xpulab-board-request", daemon=True)
        thread.start()
        return thread

    def _work(self, name: str, value: object) -> None:
        try:
            outside_cells(_REQUESTS[name], self, value)
        except Exception as error:  # shown in the view, because nobody would see an error of this thread
            self._say(f"{type(error).__name__}: {error}")

    def _say(self, words: str) -> None:
        if self._widget is not None:
            outside_cells(setattr, self._widget, "message", words)

    def _count(self, step: int) -> None:
        self._views = max(0, self._views + step)

    def _open_panel(self, _: object) -> None:
        """Open the panel of JupyterLab, in place of an earlier one. The front end then hides the parts in the page."""
        from sidecar import Sidecar

        if self._widget is None:
            return
        self._widget.opens = False
        self._widget.panel += 1
        if self._panel is not None:
            self._panel.close()
        bundle = {**widget_view(self._widget), "text/plain": ""}
        output = {"output_type": "display_data", "data": bundle, "metadata": {}}
        self._panel = Sidecar(title="xpulab board", anchor="split-right", outputs=(output,))

    def _stop(self, _: object) -> None:
        """End the running call, of whichever process."""
        self.board.cluster.stop_call()

    def _compare(self, numbers: list[int]) -> None:
        """Lay the chosen calls over each other."""
        self._compared = list(numbers)
        found = [self.board.history.numbered(number) for number in self._compared]
        calls = [(each.number, each.report) for each in found if each is not None and each.report is not None]
        if self._widget is not None:
            self._widget.overlay = overlay_html(calls) if len(calls) > 1 else ""

    def _choose(self, number: int) -> None:
        self._call = number
        self._show_timeline()

    def _measure(self, on: bool) -> None:
        """Measure what cells do on the engines from now on, or no longer."""
        self._measures.close()
        if on:
            self._measures.enter_context(usage.collecting(self._measured))

    def _find_names(self, _: object) -> None:
        self._names_of = self.board.history.total
        names = self.board.find_names()
        if self._widget is not None:
            self._widget.names = names._repr_html_()

    def _export(self, kind: str) -> None:
        """Send a file to the browser, which saves it."""
        name, type_, data = self.exported(kind)
        if self._widget is not None:
            self._widget.send({"name": "file", "file": name, "type": type_}, [data])

    def exported(self, kind: str) -> tuple[str, str, bytes]:
        """Return the name, the MIME type and the content of a file.

        Parameters
        ----------
        kind : {"history", "csv", "trace", "png"}
            The history, or the form of the chosen timeline.

        Raises
        ------
        ValueError
            If there is no timeline.
        """
        type_, ending = _TYPES[kind]
        if kind == "history":
            return f"xpulab-history.{ending}", type_, self.board.history.to_csv().encode()
        timeline = self.board.timeline(self._call or None)
        if not len(timeline):
            raise ValueError("there is no timeline yet; fit an estimator that iterates, for example KMeans")
        data = timeline.to_png() if kind == "png" else _TEXTS[kind](timeline).encode()
        return f"xpulab-timeline.{ending}", type_, data

    # -- the standing form --------------------------------------------------------------------------------------------

    def _stand(self) -> None:
        """Update the static HTML if a call has begun or ended, or an engine has changed its state."""
        from IPython.display import display

        if not self._stands or time.monotonic() < self._due or (gist := self._gist()) == self._told_standing:
            return
        display(self._standing(), raw=True, display_id=self._id, update=True)
        self._told_standing = gist
        self._due = time.monotonic() + _STANDING

    def _gist(self) -> object:
        calls = [(call.number, call.state) for call in self.board.history.calls]
        return calls, self.board.cluster.running

    def _standing(self) -> dict[str, str]:
        words = as_of(_NOW) if self.board.cluster.running else ""
        below = f'<div class="xpu"><div class="xpu-dim">{escape(words)}</div></div>' if words else ""
        html = f'<div class="xpu-standing"><style>{style("standing")}</style>{self.board._repr_html_()}{below}</div>'
        return {"text/html": html, "text/plain": f"{self.board}\n{words}".rstrip()}


def _packed(timeline: Timeline) -> bytes:
    """Return a timeline as rows of float32: rank, run, iteration, start, and the seconds of each phase."""
    about = np.stack([timeline.rank, timeline.run, timeline.iteration, timeline.start], axis=1)
    return np.concatenate([about, timeline.seconds], axis=1).astype(np.float32).tobytes()


_REQUESTS: dict[str, Callable[[BoardView, Any], None]] = {
    "views": BoardView._count,
    "panel": BoardView._open_panel,
    "stop": BoardView._stop,
    "compare": BoardView._compare,
    "timeline": BoardView._choose,
    "measure": BoardView._measure,
    "names": BoardView._find_names,
    "export": BoardView._export,
}
