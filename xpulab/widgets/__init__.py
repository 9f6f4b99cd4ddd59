"""Views over the public state of clusters and reports. They own nothing, and nothing below them knows of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from xpulab import progress
from xpulab.widgets.fit_view import NotebookView, NotebookViews, TextView

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

__all__ = [
    "NotebookView",
    "NotebookViews",
    "TextView",
    "install",
    "uninstall",
]

_unsubscribe: Callable[[], None] | None = None


def install(shell: InteractiveShell | None = None) -> None:
    """Show the progress of fits and clusters from now on, in the form that suits the shell. Harmless when repeated.

    Parameters
    ----------
    shell : IPython's InteractiveShell, optional
        A notebook's kernel gets HTML outputs; a terminal, or no shell at all, gets text.
    """
    global _unsubscribe
    uninstall()
    # By name, so that a terminal need not have ipykernel; other front ends (Colab's) derive from its class.
    in_notebook = any(parent.__name__ == "ZMQInteractiveShell" for parent in type(shell).__mro__)
    factory: progress.Factory = NotebookViews(shell) if in_notebook and shell is not None else TextView
    _unsubscribe = progress.subscribe(factory)


def uninstall() -> None:
    """End what `install` began. Harmless when repeated."""
    global _unsubscribe
    if _unsubscribe is not None:
        _unsubscribe()
        _unsubscribe = None
