"""The board's widget in the browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anywidget
import traitlets

__all__ = ["BoardWidget"]

_FOLDER = Path(__file__).parent


class BoardWidget(anywidget.AnyWidget):
    """What `board.js` and `timeline.js` show. They send requests as messages ``{"name": ..., "value": ...}``.

    Attributes
    ----------
    name : str
        Name of the board. Its views in a page find each other by it.
    css : str
        Style sheet.
    running, engines, history, overlay, names : str
        HTML of the parts.
    busy : bool
        Whether a call runs, so that Stop can be pressed.
    message : str
        Text below the parts: what went wrong.
    advice : str
        What to install for a panel beside the notebook; empty if it is installed.
    opens : bool
        Whether the first view that is shown in JupyterLab opens the panel.
    panel : int
        Number of the panel, counted from 1. A page that is loaded again leaves the panel closed that its user closed.
    calls : list of (int, str)
        Number and title of the calls that have a timeline.
    spans : bytes
        The timeline: rows of float32 with rank, run, iteration, start, and the seconds of each phase. Set it before
        `about`.
    about : dict
        ``number`` of the call, ``title``, and of each phase its name (``phases``), its kind (``kinds``) and its colour
        (``colours``); ``cell``, whether it is a cell on the engines.
    """

    _esm = "\n".join((_FOLDER / name).read_text() for name in ("board.js", "timeline.js"))

    name = traitlets.Unicode().tag(sync=True)
    css = traitlets.Unicode().tag(sync=True)
    running = traitlets.Unicode().tag(sync=True)
    engines = traitlets.Unicode().tag(sync=True)
    history = traitlets.Unicode().tag(sync=True)
    overlay = traitlets.Unicode().tag(sync=True)
    names = traitlets.Unicode().tag(sync=True)
    busy = traitlets.Bool().tag(sync=True)
    message = traitlets.Unicode().tag(sync=True)
    advice = traitlets.Unicode().tag(sync=True)
    opens = traitlets.Bool().tag(sync=True)
    panel = traitlets.Int().tag(sync=True)
    calls: Any = traitlets.List().tag(sync=True)
    spans = traitlets.Bytes().tag(sync=True)
    about: Any = traitlets.Dict().tag(sync=True)
