"""matplotlib's backend on the engines, which have no display. It draws the figures of a call as PNG for the notebook.

An engine imports this module only after a cell has imported matplotlib. A program that a cell starts may import it,
too; it has no MPI.
"""

from __future__ import annotations

import io
import sys

from matplotlib._pylab_helpers import Gcf
from matplotlib.backends.backend_agg import FigureCanvasAgg as FigureCanvas
from matplotlib.figure import Figure

from xpulab.sharing.transcript import figure_of

__all__ = ["FigureCanvas", "draw", "draw_open", "png", "show", "taken"]

_drawn: list[bytes] = []
_shown: list[int] = []


def draw(figure: Figure) -> None:
    """Draw a figure, and show it with the output of the code; see `png`."""
    _drawn.append(drawn := png(figure))
    users_code = sys.modules.get("xpulab.engine.cells.users_code")  # only an engine has it
    if users_code is not None and (output := users_code.output_of_a_call()) is not None:
        _shown.append(len(_drawn) - 1)
        output.show(figure_of(drawn, _shown[-1]))


def png(figure: Figure) -> bytes:
    """Draw a figure as PNG, and close it."""
    file = io.BytesIO()
    figure.savefig(file, format="png", bbox_inches="tight")
    Gcf.destroy_fig(figure)
    return file.getvalue()


def show(*_: object, **__: object) -> None:
    """Draw and show all open figures, and close them; this implements `matplotlib.pyplot.show`."""
    for manager in Gcf.get_all_fig_managers():
        draw(manager.canvas.figure)


def draw_open() -> None:
    """Draw all open figures, and close them. The notebook shows them after the output and the value of the cell."""
    _drawn.extend(png(manager.canvas.figure) for manager in Gcf.get_all_fig_managers())


def taken() -> tuple[list[bytes], list[int]]:
    """Return the figures since the last call, as PNG, and the numbers of those that were shown.

    Figures that are still open are closed.
    """
    Gcf.destroy_all()
    drawn, shown = list(_drawn), list(_shown)
    _drawn.clear()
    _shown.clear()
    return drawn, shown
