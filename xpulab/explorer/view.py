"""The function `explore`: the k-means explorer with its controls, or without them if no front end can show them."""

from __future__ import annotations

import contextvars
import signal
import threading
import time
import uuid
import weakref
from collections.abc import Callable
from typing import Any

from xpulab.exceptions import NoClusterError
from xpulab.explorer.session import ELBOW, Explorer
from xpulab.explorer.snapshot import Snapshot
from xpulab.report.rendering import Html, Text, format_seconds, in_notebook, style, widget_view

__all__ = ["ExploreView", "Latest", "explore"]

MOST_CLUSTERS = 20
#: Iterations per second of automatic play: the values that the control offers, and the default.
PACES = (0.5, 1, 2, 4, 8, 16)
PACE = 4.0
#: Seconds between two updates of the standing picture during play and other work.
STANDING = 2.0
#: Limit for updates, because Jupyter's server drops output beyond a megabyte per second.
_BYTES_PER_SECOND = 700_000


def explore(X: Any, k: int = 8, **parameters: Any) -> ExploreView:
    """Explore k-means in a notebook: with sliders, single iterations, and centres that can be moved.

    Parameters
    ----------
    X : array-like or ShardedArray of shape (n_samples, n_features)
        An array is sent to the engines of the active cluster once, and stays there as long as the explorer exists.
    k : int, default=8
        Initial number of clusters.
    **parameters
        ``points``, ``features``, ``random_state`` and ``shape`` of `xpulab.explorer.session.Explorer`.

    Returns
    -------
    ExploreView
        A notebook shows it with controls. `ExploreView.snapshot` returns the same picture without controls.

    Raises
    ------
    NoClusterError
        If no cluster is running.
    ValueError
        If a parameter does not fit the rows.

    Examples
    --------
    >>> import xpulab
    >>> import numpy as np
    >>> X = np.random.default_rng(0).normal(size=(1000, 2))
    >>> with xpulab.XPUCluster(n=2):
    ...     snapshot = xpulab.explore(X, k=3).snapshot()
    >>> snapshot.k
    3
    """
    return ExploreView(Explorer(X, k, **parameters))


class Latest:
    """Handles requests in another thread. If several requests of one name wait, it handles only the latest of them.

    Therefore the requests of a slider that is dragged do not queue: at most one value of each control waits.

    Parameters
    ----------
    work : callable
        A function of a dict of the requests, name -> value, in the order of the first request of each name. It returns
        the seconds after which it has to be called again without a request, or None.
    """

    def __init__(self, work: Callable[[dict[str, Any]], float | None]) -> None:
        self._work = work
        self._asked: dict[str, Any] = {}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def ask(self, name: str, value: Any = None) -> None:
        """Add a request, and return at once."""
        with self._changed:
            self._asked[name] = value
            if self._thread is None:
                # The context tells IPython which cell an output belongs to. A new thread does not inherit it.
                run = contextvars.copy_context().run
                self._thread = threading.Thread(target=run, args=(self._run,), name="xpulab-explore", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    @property
    def working(self) -> bool:
        """Whether the caller runs in this object's thread."""
        return threading.current_thread() is self._thread

    def wait(self, timeout: float = 60.0) -> bool:
        """Wait until all requests are handled. Return False if this takes longer than `timeout` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: self._thread is None, timeout)

    def _run(self) -> None:
        while True:
            with self._changed:
                asked, self._asked = self._asked, {}
            pause = self._work(asked)
            with self._changed:
                if pause is not None:
                    self._changed.wait_for(lambda: bool(self._asked), pause)
                elif not self._asked:
                    self._thread = None
                    self._changed.notify_all()
                    return


class ExploreView:
    """An explorer in a notebook.

    It has two outputs: the widget, and below it the same picture as static HTML (the standing picture), which the
    widget hides. The widget needs the kernel. A notebook that is converted, or opened without a kernel, shows the
    standing picture.

    Attributes
    ----------
    explorer : Explorer
        The state. The view also shows changes that are made from Python.
    pace : float
        Iterations per second of play.
    """

    def __init__(self, explorer: Explorer) -> None:
        self.explorer = explorer
        self.name = uuid.uuid4().hex
        self.widget: Any = None
        self.playing = False
        self.pace = PACE
        self.message = ""
        self.stopped = False
        self._elbow: list[int] = []
        self._standing: Any = None
        self._stood = 0.0
        self._latest = Latest(self._work)
        follow = weakref.WeakMethod(self._follow)
        explorer.changed = lambda: (follow() or (lambda: None))()

    def snapshot(self) -> Snapshot:
        """Return the present picture as an object that does not change, with text, HTML and a figure.

        This needs no front end.
        """
        return self.explorer.snapshot()

    def ask(self, name: str, value: Any = None) -> None:
        """Do the same as a control. The method returns at once.

        Parameters
        ----------
        name : str
            Name of the control: ``"k"``, ``"points"``, ``"x"``, ``"y"`` (with a value), ``"move"`` (with centre, x, y),
            ``"restart"``, ``"step"``, ``"reset"``, ``"elbow"``, ``"play"`` (with a bool), ``"pace"`` (with iterations
            per second), ``"stop"`` (ends play and elbow), ``"start"`` (starts the cluster) or ``"refresh"``.
        value : Any
            Value of the control.
        """
        self._latest.ask(name, value)

    def refresh(self) -> None:
        """Show the present state of the explorer."""
        self.ask("refresh")

    def wait(self, timeout: float = 60.0) -> bool:
        """Wait until all results are shown. Return False if this takes longer than `timeout` seconds."""
        return self._latest.wait(timeout)

    def close(self) -> None:
        """End play, remove the widget, and leave the standing picture."""
        self.explorer.changed = lambda: None
        self.ask("stop")
        self.wait()
        if self.widget is not None:
            self.widget.close()
            self.widget = None

    def __repr__(self) -> str:
        return str(self.snapshot())

    def _ipython_display_(self) -> None:
        from IPython.core.getipython import get_ipython
        from IPython.display import display

        shell = get_ipython()
        if in_notebook(shell):
            _shown.add(self)
            _hear_interrupts(shell)
            self.widget = self.widget or self._make_widget()
            if self.widget is not None:
                # Without this HTML, a front end that shows no widgets would show the widget's repr.
                nothing = {"text/html": '<div hidden="hidden"></div>', "text/plain": "k-means explorer"}
                display({**widget_view(self.widget), **nothing}, raw=True)
            self._standing = display(_Standing(self), display_id=True)
        else:
            display(Text(self.snapshot()))

    @property
    def busy(self) -> bool:
        """Whether the explorer plays, or computes the elbow curve."""
        return self.playing or bool(self._elbow)

    def _follow(self) -> None:
        """Show changes that were made from Python."""
        if self._standing is not None and not self._latest.working:
            self.refresh()

    # -- requests, in the thread of `Latest` --------------------------------------------------------------------------

    def _work(self, asked: dict[str, Any]) -> float | None:
        """Handle requests, show the result, and return the seconds until the next step of play; None without play."""
        started = time.perf_counter()
        try:
            for name, value in asked.items():
                _CONTROLS[name](self, value)
            if not asked:
                self._turn()
            self.stopped = False
            if not asked or not _QUIET.issuperset(asked):
                self.message = _message(self.explorer, time.perf_counter() - started)
        except Exception as error:  # shown in the view, because nobody would see an error of this thread
            self._stop()
            self.stopped = isinstance(error, NoClusterError)
            self.message = str(error) if self.stopped else f"{type(error).__name__}: {error}"
        going_on = self.busy
        self._show(final=not going_on)
        if not going_on:
            return None
        return max(0.0, started + 1 / self.pace - time.perf_counter()) if self.playing else 0.0

    def _turn(self) -> None:
        """Do one step of automatic work: the next number of clusters of the elbow curve, or the next iteration."""
        if self._elbow:
            self.explorer.extend_elbow(self._elbow.pop(0))
        elif self.playing:
            self.explorer.step()
            self.playing = not self.explorer.converged

    def _show(self, final: bool) -> None:
        if self.widget is not None:
            snapshot = self.snapshot()
            self.widget.png = snapshot.png
            self.widget.state = self._state(snapshot)
            # Wait until the server can have sent this picture.
            time.sleep(len(snapshot.png) / _BYTES_PER_SECOND)
        if self._standing is not None and (final or time.monotonic() - self._stood > STANDING):
            self._standing.update(_Standing(self))
            self._stood = time.monotonic()

    def _state(self, snapshot: Snapshot) -> dict[str, Any]:
        x, y = self.explorer.features
        return {
            "html": snapshot.body(image="") + snapshot.table(),
            "line": snapshot.line(),
            "centers": snapshot.trails[-1].tolist(),
            "k": snapshot.k,
            "points": snapshot.points,
            "x": x,
            "y": y,
            "pace": self.pace,
            "playing": self.playing,
            "busy": self.busy,
            "stopped": self.stopped,
            "message": self.message,
        }

    def _make_widget(self) -> Any:
        """Return the widget, or None if ipywidgets or anywidget is missing."""
        try:
            from xpulab.explorer.widget import ExploreWidget
        except ImportError:
            return None
        snapshot = self.snapshot()
        choices = {
            "names": self.explorer.names,
            "points": _round_numbers(self.explorer.rows.shape[0], self.explorer.points),
            "paces": sorted({*PACES, self.pace}),
            "clusters": list(range(1, min(max(MOST_CLUSTERS, snapshot.k), snapshot.n_samples) + 1)),
        }
        widget = ExploreWidget(
            name=self.name,
            css=style("base") + style("explorer") + style("controls"),
            choices=choices,
            png=snapshot.png,
            state=self._state(snapshot),
        )
        widget.on_msg(lambda _, content, buffers: self.ask(content["name"], content["value"]))
        return widget

    # -- controls -----------------------------------------------------------------------------------------------------

    def _set_k(self, k: int) -> None:
        if k != self.explorer.k:
            self.explorer.k = k

    def _set_points(self, points: int) -> None:
        if points != self.explorer.points:
            self.explorer.points = points

    def _set_feature(self, place: int, feature: int) -> None:
        features = list(self.explorer.features)
        if features[place] != feature:
            features[place] = feature
            self.explorer.features = features

    def _play(self, play: bool) -> None:
        self.playing = play

    def _set_pace(self, pace: float) -> None:
        self.pace = pace

    def _stop(self) -> None:
        self.playing, self._elbow = False, []

    def _find_elbow(self) -> None:
        self._elbow = [k for k in ELBOW if k not in self.explorer.elbows and k <= self.explorer.points]


_CONTROLS: dict[str, Callable[[ExploreView, Any], None]] = {
    "k": ExploreView._set_k,
    "points": ExploreView._set_points,
    "x": lambda view, feature: view._set_feature(0, feature),
    "y": lambda view, feature: view._set_feature(1, feature),
    "move": lambda view, to: view.explorer.move_center(*to),
    "restart": lambda view, _: view.explorer.restart(),
    "step": lambda view, _: view.explorer.step(),
    "reset": lambda view, _: view.explorer.reset(),
    "play": ExploreView._play,
    "pace": ExploreView._set_pace,
    "stop": lambda view, _: view._stop(),
    "start": lambda view, _: view.explorer.start(),
    "elbow": lambda view, _: view._find_elbow(),
    "refresh": lambda view, _: None,
}


#: Controls that need no task on the engines.
_QUIET = {"play", "pace", "stop", "refresh"}


_shown: weakref.WeakSet[ExploreView] = weakref.WeakSet()


def _hear_interrupts(shell: Any) -> None:
    """Make an interrupt of the kernel end play while no cell runs. Without this, ipykernel would ignore it."""
    kernel: Any = getattr(shell, "kernel", None)
    # ipykernel restores this handler at the end of a cell.
    if getattr(kernel, "saved_sigint_handler", None) is signal.SIG_IGN:
        kernel.saved_sigint_handler = _interrupted


def _interrupted(*_: Any) -> None:
    for view in list(_shown):
        if view.busy:
            view.ask("stop")


class _Standing:
    """The standing picture below the widget. It is hidden while the widget works.

    If the notebook is opened again without a kernel, the widget's output is an error, and is hidden instead.
    """

    def __init__(self, view: ExploreView) -> None:
        self._view = view

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        name, rules = self._view.name, _rules(self._view.name, self._view.widget is not None)
        snapshot = self._view.snapshot()
        html = Html(f'<div data-xpu-standing="{name}"><style>{rules}</style>{snapshot.html()}</div>')
        return {"text/html": html, "text/plain": str(snapshot)}


def _rules(name: str, had_widget: bool) -> str:
    """Return the style sheet that shows the widget of an explorer if it works, or else the standing picture."""
    here = f'[data-xpu-standing="{name}"]'
    live, output = f".xpu-live-{name}", ".jp-OutputArea-child"
    # The outputs of a cell are neighbours. The rules are per page: a copy of the notebook in another tab may have a
    # working widget while this one has none.
    rules = f"{live} {here}:not({output} *),{output}:has({live})+{output} {here}{{display:none}}"
    if had_widget:
        rules += f"{output}:not(:has({live})):has(+{output} {here}){{display:none}}"
    return rules


def _message(explorer: Explorer, seconds: float) -> str:
    kernels = format_seconds(explorer.seconds["kernel"])
    return f"{format_seconds(seconds)} to the answer of the engines, whose devices computed for {kernels}"


def _round_numbers(most: int, present: int) -> list[int]:
    """Return 1, 2 and 5 times the powers of ten from 100 to `most`, and `most` and `present` themselves."""
    steps = {digit * 10**power for power in range(2, 12) for digit in (1, 2, 5)}
    return sorted({step for step in steps if step < most} | {most, present})
