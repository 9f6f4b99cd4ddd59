"""matplotlib's backend on the engines, which have no display: what a cell shows becomes PNG, for the notebook.

Imported when a cell has imported matplotlib, and not before.
"""

from __future__ import annotations

import io

from matplotlib._pylab_helpers import Gcf
from matplotlib.backends.backend_agg import FigureCanvasAgg as FigureCanvas
from matplotlib.figure import Figure

__all__ = ["FigureCanvas", "draw", "show", "taken"]

_drawn: list[bytes] = []


def draw(figure: Figure) -> None:
    """Draw a figure now, and close it."""
    file = io.BytesIO()
    figure.savefig(file, format="png", bbox_inches="tight")
    _drawn.append(file.getvalue())
    Gcf.destroy_fig(figure)


def show(*_: object, **__: object) -> None:
    """Draw all open figures, and close them: `matplotlib.pyplot.show`."""
    for manager in Gcf.get_all_fig_managers():
        draw(manager.canvas.figure)


def taken() -> list[bytes]:
    """The figures that were drawn since the last call, as PNG; those still open are closed."""
    Gcf.destroy_all()
    drawn = list(_drawn)
    _drawn.clear()
    return drawn
