"""The function `explore`: the k-means explorer with its controls, or without them if no front end can show them."""

from __future__ import annotations

import signal
import time
import uuid
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from xpulab.calls import public_call
from xpulab.data import ShardedArray
from xpulab.exceptions import NoClusterError
from xpulab.explorer.density import DensityExplorer, DensitySnapshot
from xpulab.explorer.latest import Latest
from xpulab.explorer.mixture import MixtureExplorer
from xpulab.explorer.plane import Plane
from xpulab.explorer.session import ELBOW, Explorer
from xpulab.explorer.snapshot import Snapshot
from xpulab.explorer.trails import Trails
from xpulab.report.rendering import (
    Html,
    Text,
    counted,
    format_number,
    format_seconds,
    in_notebook,
    plain,
    style,
    widget_view,
)

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

__all__ = ["ExploreView", "explore"]

MOST_CLUSTERS = 20
#: Features of a row that are shown beside the pointer.
MOST_VALUES = 8
#: Iterations per second of automatic play: the values that the control offers, and the default.
PACES = (0.5, 1, 2, 4, 8, 16)
PACE = 4.0
#: Seconds between two updates of the standing picture during play and other work.
STANDING = 2.0
#: Most seconds that a cell waits at its end until the changes that it made are shown.
_PATIENCE = 5.0
#: Limit for updates, because Jupyter's server drops output beyond a megabyte per second.
_BYTES_PER_SECOND = 700_000


@public_call
def explore(
    X: npt.ArrayLike | ShardedArray, k: int | None = None, *, algorithm: str = "kmeans", **parameters: Any
) -> ExploreView:
    """Explore clusterings in a notebook: with sliders, single iterations, and centres that can be moved.

    Parameters
    ----------
    X : array-like or ShardedArray of shape (n_samples, n_features)
        An array is sent to the engines of the active cluster once, and stays there as long as the explorer exists.
    k : int, optional
        Initial number of clusters, 8 by default; DBSCAN has none.
    algorithm : {"kmeans", "mixture", "dbscan"}, default="kmeans"
        The iterations of `xpulab.cluster.KMeans`, those of `xpulab.mixture.GaussianMixture`, or the clusters of
        `xpulab.cluster.DBSCAN` for an `eps` that a slider changes.
    **parameters
        ``points``, ``features``, ``random_state`` and ``shape`` of `xpulab.explorer.session.Explorer`; for a mixture
        also ``covariance_type``, ``reg_covar`` and ``init_params`` of `xpulab.explorer.mixture.MixtureExplorer`; for
        DBSCAN ``eps``, ``min_samples``, ``points``, ``features`` and ``shape`` of
        `xpulab.explorer.density.DensityExplorer`.

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
    if algorithm not in _EXPLORERS:
        raise ValueError(f"algorithm={algorithm!r} was given; expected one of {', '.join(map(repr, _EXPLORERS))}")
    if k is not None:
        if algorithm == "dbscan":
            raise ValueError(f"k={k!r} was given; DBSCAN finds the number of clusters: set eps and min_samples")
        parameters["k"] = k
    return ExploreView(_EXPLORERS[algorithm](X, **parameters))


AnyExplorer = Explorer | MixtureExplorer | DensityExplorer
_EXPLORERS: dict[str, Callable[..., AnyExplorer]] = {
    "kmeans": Explorer, "mixture": MixtureExplorer, "dbscan": DensityExplorer
}  # fmt: skip


class ExploreView:
    """An explorer in a notebook.

    It has two outputs: the widget, and below it the same picture as static HTML (the standing picture), which the
    widget hides. The widget needs the kernel. A notebook that is converted, or opened without a kernel, shows the
    standing picture.

    Attributes
    ----------
    explorer : Explorer, MixtureExplorer or DensityExplorer
        The state. The view also shows changes that are made from Python.
    pace : float
        Iterations per second of play.
    """

    def __init__(self, explorer: AnyExplorer) -> None:
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
        self._pointer = Latest(self._point)  # apart, because a row is shown without another picture
        follow = weakref.WeakMethod(self._follow)
        explorer.changed = lambda: (follow() or (lambda: None))()

    def snapshot(self) -> Snapshot | DensitySnapshot:
        """Return the present picture as an object that does not change, with text, HTML and a figure.

        This needs no front end.
        """
        return self.explorer.snapshot()

    def ask(self, name: str, value: object = None) -> None:
        """Do the same as a control. The method returns at once.

        Parameters
        ----------
        name : str
            Name of the control: ``"k"``, ``"eps"``, ``"min_samples"``, ``"points"``, ``"x"``, ``"y"`` (with a value),
            ``"move"`` (with centre, x, y), ``"zoom"`` (with the limits of x and of y, or None for the whole plane),
            ``"select"`` (with the corners of a shape, or None), ``"row"`` (with x and y: the widget shows the row that
            is nearest to this place), ``"restart"``, ``"step"``, ``"reset"``, ``"elbow"``, ``"play"`` (with a bool),
            ``"pace"`` (with iterations per second), ``"stop"`` (ends play and elbow), ``"start"`` (starts the cluster)
            or ``"refresh"``.
        value : Any
            Value of the control.
        """
        (self._pointer if name == "row" else self._latest).ask(name, value)

    def refresh(self) -> None:
        """Show the present state of the explorer."""
        self.ask("refresh")

    def wait(self, timeout: float = 60.0) -> bool:
        """Wait until all results are shown. Return False if this takes longer than `timeout` seconds."""
        return self._latest.wait(timeout) and self._pointer.wait(timeout)

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
            _settle_after_cells(shell)
            self.widget = self.widget or self._make_widget()
            if self.widget is not None:
                # Without this HTML, a front end that shows no widgets would show the widget's repr.
                nothing = {
                    "text/html": '<div hidden="hidden"></div>',
                    "text/plain": f"{self.snapshot().method} explorer",
                }
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

    def _work(self, asked: dict[str, object]) -> float | None:
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

    def _point(self, asked: dict[str, object]) -> None:
        """Send the row that is nearest to the pointer to the widget."""
        try:
            found: dict[str, object] | None = self._row(*asked["row"])  # type: ignore[misc]
        except Exception as error:  # as in `_work`
            found = {"title": str(error), "values": [], "more": ""}
        if self.widget is not None:
            self.widget.send({"row": found})

    def _row(self, x: float, y: float) -> dict[str, object] | None:
        """Return the row that is nearest to a place, in words; None if no row is near."""
        row = self.explorer.row_at(x, y)
        if row is None:
            return None
        shown = [self.explorer.names[feature] for feature in dict.fromkeys(self.explorer.features)]
        shown += [name for name in row.values if name not in shown][: MOST_VALUES - len(shown)]
        hidden = len(row.values) - len(shown)
        more = [f"and {counted(hidden, 'more feature')}"] if hidden else []
        more += [f"the first of {row.n_rows:,} rows at this pixel"] if row.n_rows > 1 else []
        return {
            "title": f"Row {row.number:,} of " + (f"cluster {row.cluster}" if row.cluster >= 0 else "noise"),
            "hue": self.explorer.colour_of(row.cluster),
            "values": [[plain(name), format_number(row.values[name])] for name in shown],
            "more": "; ".join(more),
            "x": row.x,
            "y": row.y,
        }

    def _turn(self) -> None:
        """Do one step of automatic work: the next number of clusters of the elbow curve, or the next iteration."""
        if self._elbow and isinstance(self.explorer, Explorer):
            self.explorer.extend_elbow(self._elbow.pop(0))
        elif self.playing:
            self._trails.step()
            self.playing = not self._trails.converged

    @property
    def _trails(self) -> Trails:
        """The explorer, if it has iterations."""
        if not isinstance(self.explorer, Trails):
            raise ValueError("DBSCAN has no iterations; to see some, type: xpulab.explore(X, algorithm='kmeans')")
        return self.explorer

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

    def _state(self, snapshot: Snapshot | DensitySnapshot) -> dict[str, object]:
        x, y = self.explorer.features
        return {
            "html": snapshot.body(image="") + snapshot.table(),
            "line": "\n".join([snapshot.line(), *([str(snapshot.selection)] if snapshot.selection else [])]),
            "centers": snapshot.trails[-1].tolist() if isinstance(snapshot, Snapshot) else [],
            **self._parameters(),
            "points": snapshot.points,
            "x": x,
            "y": y,
            "pace": self.pace,
            "playing": self.playing,
            "busy": self.busy,
            "stopped": self.stopped,
            "message": self.message,
            "selected": snapshot.selection is not None,
        }

    def _parameters(self) -> dict[str, float]:
        """Return the parameters that have a slider."""
        if isinstance(self.explorer, DensityExplorer):
            return {"eps": self.explorer.eps, "min_samples": self.explorer.min_samples}
        return {"k": self.explorer.k}

    def _make_widget(self) -> Any:
        """Return the widget, or None if ipywidgets or anywidget is missing."""
        try:
            from xpulab.explorer.widget import ExploreWidget
        except ImportError:
            return None
        snapshot = self.snapshot()
        choices = {
            "title": f"{snapshot.method} explorer",
            "elbow": isinstance(self.explorer, Explorer),
            "iterates": isinstance(self.explorer, Trails),
            "names": self.explorer.names,
            "points": _round_numbers(self.explorer.rows.shape[0], self.explorer.points),
            "paces": sorted({*PACES, self.pace}),
        }
        if isinstance(self.explorer, DensityExplorer):
            present = self.explorer.eps
            choices["eps"] = [present * 2 ** (step / 4) for step in range(-16, 17)]
            choices["min_samples"] = sorted({*range(1, 21), self.explorer.min_samples})
        else:
            most = min(max(MOST_CLUSTERS, self.explorer.k), snapshot.n_samples)
            choices["clusters"] = list(range(1, most + 1))
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

    def _set(self, name: str, value: float) -> None:
        if value != getattr(self.explorer, name):
            setattr(self.explorer, name, value)

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
        if not isinstance(self.explorer, Explorer):
            raise ValueError("only k-means has an elbow curve; to see it, type: xpulab.explore(X, algorithm='kmeans')")
        self._elbow = [k for k in ELBOW if k not in self.explorer.elbows and k <= self.explorer.points]


_CONTROLS: dict[str, Callable[[ExploreView, Any], object]] = {
    "k": lambda view, k: view._set("k", k),
    "points": lambda view, points: view._set("points", points),
    "eps": lambda view, eps: view._set("eps", eps),
    "min_samples": lambda view, n: view._set("min_samples", n),
    "x": lambda view, feature: view._set_feature(0, feature),
    "y": lambda view, feature: view._set_feature(1, feature),
    "move": lambda view, to: view._trails.move_center(*to),
    "zoom": lambda view, part: view.explorer.zoom(*(part or ())),
    "select": lambda view, shape: view.explorer.select(shape),
    "restart": lambda view, _: view._trails.restart(),
    "step": lambda view, _: view._trails.step(),
    "reset": lambda view, _: view._trails.reset(),
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


def _hear_interrupts(shell: InteractiveShell | None) -> None:
    """Make an interrupt of the kernel end play while no cell runs. Without this, ipykernel would ignore it."""
    kernel: Any = getattr(shell, "kernel", None)
    # ipykernel restores this handler at the end of a cell.
    if getattr(kernel, "saved_sigint_handler", None) is signal.SIG_IGN:
        kernel.saved_sigint_handler = _interrupted


def _settle_after_cells(shell: InteractiveShell | None) -> None:
    """Have each cell wait until changes that it made are shown: front ends take a cell's outputs until it ends."""
    if shell is not None and _settle not in shell.events.callbacks["post_run_cell"]:
        shell.events.register("post_run_cell", _settle)


def _settle(*_: object) -> None:
    for view in list(_shown):
        if not view.busy:
            view.wait(_PATIENCE)


def _interrupted(*_: object) -> None:
    for view in list(_shown):
        if view.busy:
            view.ask("stop")


class _Standing:
    """The standing picture below the widget. It is hidden while the widget works.

    If the notebook is opened again without a kernel, the widget's output is an error, and is hidden instead.
    """

    def __init__(self, view: ExploreView) -> None:
        self._view = view

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
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


def _message(explorer: Plane, seconds: float) -> str:
    kernels = format_seconds(explorer.seconds["kernel"])
    return f"{format_seconds(seconds)} to the answer of the engines, whose devices computed for {kernels}"


def _round_numbers(most: int, present: int) -> list[int]:
    """Return 1, 2 and 5 times the powers of ten from 100 to `most`, and `most` and `present` themselves."""
    steps = {digit * 10**power for power in range(2, 12) for digit in (1, 2, 5)}
    return sorted({step for step in steps if step < most} | {most, present})
