"""Views of the public state of clusters and reports. No lower layer depends on them."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from xpulab.report import progress
from xpulab.report.rendering import in_notebook
from xpulab.report.terminal import TextView
from xpulab.widgets.cluster_view import ClusterView
from xpulab.widgets.fit_view import CellViews, NotebookViews, TaskView, TerminalViews

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from xpulab.deploy.cluster import XPUCluster
    from xpulab.deploy.status import ClusterStatus
    from xpulab.widgets.board import ClusterBoard
    from xpulab.widgets.board_view import BoardView

__all__ = ["ClusterView", "NotebookViews", "TaskView", "TerminalViews", "install", "uninstall"]

_undo: list[Callable[[], None]] = []
_views: weakref.WeakKeyDictionary[XPUCluster, ClusterView] = weakref.WeakKeyDictionary()
_boards: weakref.WeakKeyDictionary[XPUCluster, BoardView] = weakref.WeakKeyDictionary()


def install(shell: InteractiveShell | None = None) -> None:
    """Show the progress of fits and clusters from now on, in a form for this shell. Repeated calls do nothing.

    Parameters
    ----------
    shell : IPython's InteractiveShell, optional
        A notebook's kernel gets HTML outputs and widgets; a terminal, or no shell at all, gets text.
    """
    uninstall()
    if not hasattr(shell, "events"):
        _undo.append(progress.subscribe(TextView))
        return
    assert shell is not None
    from xpulab.widgets.accel_view import AccelView  # imports ipyparallel

    views: CellViews = NotebookViews(shell) if in_notebook(shell) else TerminalViews(shell)
    _undo.extend([progress.subscribe(views), views.close, AccelView(shell).close])
    if not in_notebook(shell):
        return
    assert shell.display_formatter is not None
    displays = shell.display_formatter.ipython_display_formatter
    # The classes are given by name, because importing their modules would import ipyparallel.
    for module, name, show in (
        ("xpulab.deploy.cluster", "XPUCluster", _show_cluster),
        ("xpulab.deploy.status", "ClusterStatus", _show_status),
        ("xpulab.widgets.board", "ClusterBoard", _show_board),
    ):
        displays.for_type_by_name(module, name, show)
        _undo.append(lambda name=f"{module}.{name}": displays.pop(name, None))  # type: ignore[misc]


def uninstall() -> None:
    """Undo `install`. Repeated calls do nothing."""
    while _undo:
        _undo.pop()()
    for view in list(_views.values()):
        view.close()
    for board in list(_boards.values()):
        board.close()
    _views.clear()
    _boards.clear()


def _show_cluster(cluster: XPUCluster) -> None:
    if cluster not in _views:
        if not cluster.running:
            raise NotImplementedError  # IPython then shows the object as if there were no view
        _views[cluster] = ClusterView(cluster, lambda: _board_of(cluster).widget)
    _views[cluster].show()


def _show_status(status: ClusterStatus) -> Any:
    if status.cluster is None:
        raise NotImplementedError
    _show_cluster(cast("XPUCluster", status.cluster))


def _show_board(board: ClusterBoard) -> None:
    _board_of(board.cluster).show()


def _board_of(cluster: XPUCluster) -> BoardView:
    """Return the view of a cluster's board. It follows the cluster from its first use on."""
    if cluster not in _boards:
        from xpulab.widgets.board import ClusterBoard
        from xpulab.widgets.board_view import BoardView

        _boards[cluster] = BoardView(ClusterBoard(cluster))
    return _boards[cluster]
