"""matplotlib's backend on the engines, which have no display. It draws the figures of a cell as PNG for the notebook.

An engine imports this module only after a cell has imported matplotlib.
"""

from __future__ import annotations

import io

from matplotlib._pylab_helpers import Gcf
from matplotlib.backends.backend_agg import FigureCanvasAgg as FigureCanvas
from matplotlib.figure import Figure

__all__ = ["FigureCanvas", "draw", "png", "show", "taken"]

_drawn: list[bytes] = []


def draw(figure: Figure) -> None:
    """Draw a figure at the end of the cell; see `png`."""
    _drawn.append(png(figure))


def png(figure: Figure) -> bytes:
    """Draw a figure as PNG, and close it."""
    file = io.BytesIO()
    figure.savefig(file, format="png", bbox_inches="tight")
    Gcf.destroy_fig(figure)
    return file.getvalue()


def show(*_: object, **__: object) -> None:
    """Draw all open figures, and close them; this implements `matplotlib.pyplot.show`."""
    for manager in Gcf.get_all_fig_managers():
        draw(manager.canvas.figure)


def taken() -> list[bytes]:
    """Return the figures since the last call, as PNG. Figures that are still open are drawn and closed."""
    Gcf.destroy_all()
    drawn = list(_drawn)
    _drawn.clear()
    return drawn
