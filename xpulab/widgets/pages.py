"""Brings the outputs of reports to pages that do not get their updates.

An output of a cell is updated by its display_id, which a front end forgets when its page is loaded again; a second tab
never knows it. So each output has classes that say which it is, and a script (`messenger.js`) finds it in the page. If
the output does not change any more although its report runs, the script asks the kernel, which then sends all further
updates as messages, too. Pages that get the updates never ask, and nothing is sent to them but a sign of life if the
kernel draws less often than once a second.
"""

from __future__ import annotations

import contextvars
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from xpulab.widgets.messenger import Messenger

__all__ = ["Pages", "outside_cells"]

T = TypeVar("T")

_BEAT = 1.0  # seconds between two signs of life
_MOST = 200  # outputs whose last drawing is kept for pages that open later


@dataclass
class Drawing:
    """The latest drawing of an output.

    Attributes
    ----------
    number : int
        Counts the drawings of the output from 1.
    html : str
        The drawing, as `Pages.marked` returned it.
    runs : bool
        Whether the report in it runs.
    final : bool
        Whether it is the last one.
    """

    number: int
    html: str
    runs: bool
    final: bool


class Pages:
    """The pages that may show the outputs of this kernel."""

    def __init__(self) -> None:
        self.kernel = uuid.uuid4().hex
        self._latest: OrderedDict[str, Drawing] = OrderedDict()
        self._asked: set[str] = set()
        self._messenger: Messenger | None = None
        self._made = self._beats = False
        self._sent = 0.0
        self._lock = threading.RLock()

    def marked(self, html: str, name: str, number: int, final: bool) -> str:
        """Return the HTML of an output with the classes by which `messenger.js` finds it.

        Classes also stay in a notebook that is not trusted, of which JupyterLab removes other attributes.
        """
        last = " xpu-final" if final else ""
        return f'<div class="xpu-report xpu-of-{self.kernel} xpu-drawn-{name}-{number}{last}">{html}</div>'

    def await_drawings(self) -> None:
        """Make the messenger, before a report that runs is drawn. Repeated calls do nothing.

        Another thread makes it: the import takes 0.3 s, which is not part of the time for drawing.
        """
        if not self._made:
            self._made = True
            threading.Thread(target=self._make, name="xpulab-messenger", daemon=True).start()

    def drawn(self, name: str, drawing: Drawing) -> bool:
        """Keep a drawing that was displayed, and return whether it was also sent because a page has asked for it."""
        with self._lock:
            self._sent = time.monotonic()
            if not drawing.runs and drawing.number == 1:
                return False  # it is the only one if nothing follows
            self._latest[name] = drawing
            while len(self._latest) > _MOST:
                self._latest.popitem(last=False)
            if drawing.runs and not self._beats:
                self._beats = True
                threading.Thread(target=self._beat, name="xpulab-pages", daemon=True).start()
            asked = name in self._asked
            if asked:
                self._send([(name, 0)])
            return asked

    def loaded(self) -> None:
        """Note that a page was loaded: what runs is sent from now on, because no question comes while a cell runs."""
        with self._lock:
            self._asked.update(name for name, drawing in self._latest.items() if drawing.runs)
            self._send([(name, 0) for name in self._asked])

    def ended(self, name: str) -> None:
        """Note that the latest drawing of an output was the last one."""
        with self._lock:
            if drawing := self._latest.get(name):
                drawing.final, drawing.runs = True, False

    def close(self) -> None:
        """Send nothing more."""
        with self._lock:
            if self._messenger is not None:
                outside_cells(self._messenger.close)
            self._messenger, self._made = None, False
            self._latest.clear()

    def _make(self) -> None:
        try:
            from xpulab.widgets.messenger import Messenger
        except ImportError:  # without anywidget, a page that was loaded again shows what its notebook has
            return
        messenger = outside_cells(lambda: Messenger(kernel=self.kernel))
        messenger.on_msg(lambda _, content, buffers: self._answer(content["ask"]))
        with self._lock:
            self._messenger = messenger

    def _answer(self, ask: list[tuple[str, int]]) -> None:
        with self._lock:
            self._asked.update(name for name, _ in ask if name in self._latest and not self._latest[name].final)
            self._send(ask)

    def _send(self, outputs: list[tuple[str, int]]) -> None:
        """Send these outputs to all pages: each with its HTML if the page has an older drawing than the latest."""
        said: list[dict[str, object]] = []
        for name, number in outputs:
            drawing = self._latest.get(name)
            new = {"drawn": drawing.number, "html": drawing.html} if drawing and drawing.number > number else {}
            said.append({"id": name, "over": drawing is None or drawing.final, **new})
            if drawing is None or drawing.final:
                self._asked.discard(name)
        if self._messenger is not None:
            outside_cells(self._messenger.send, {"outputs": said})
            self._sent = time.monotonic()

    def _beat(self) -> None:
        """Send a sign of life in each second in which nothing else was sent, as long as a report runs."""
        while True:
            time.sleep(_BEAT)
            with self._lock:
                if not any(each.runs for each in self._latest.values()):
                    self._beats = False
                    return
                if time.monotonic() - self._sent > _BEAT:
                    self._send([])


def outside_cells(call: Callable[..., T], *arguments: object) -> T:
    """Call a function as if no cell were running. Otherwise the widget gets messages only after the cell has ended.

    ipykernel 7 handles a widget's messages in the event loop from which the widget last sent. If this is the loop of a
    cell, messages from the front end's own loop for widgets wait until the cell has ended.
    """
    from IPython.core.getipython import get_ipython

    parent = getattr(getattr(get_ipython(), "kernel", None), "_shell_parent", None)

    def detached() -> T:
        if isinstance(parent, contextvars.ContextVar):
            parent.set({})
        return call(*arguments)

    return contextvars.copy_context().run(detached)
