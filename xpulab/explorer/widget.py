"""The explorer's widget in the browser.

Its controls are standard HTML controls, so that each has a label and can be used with the keyboard. Centres can be
dragged, or moved with keys, rows are shown beside the pointer, or beside a cross that keys move, and shapes can be
drawn. This needs JavaScript: anywidget loads it in JupyterLab, Notebook and VS Code without a build step.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anywidget
import traitlets

__all__ = ["ExploreWidget"]


class ExploreWidget(anywidget.AnyWidget):
    """The data that `explore.js` shows. The script sends requests as messages ``{"name": ..., "value": ...}``.

    The answer to a request for a row is the message ``{"row": ...}``: None, or a dict with ``title``, ``hue``,
    ``values`` (pairs of words), ``more``, and its place ``x`` and ``y``.

    Attributes
    ----------
    name : str
        Name of the explorer. The standing picture of this name is hidden.
    css : str
        Style sheet.
    choices : dict
        ``title`` (the name of the explorer), ``elbow`` and ``iterates`` (whether there is an elbow curve, and whether
        there are iterations), ``names`` of the features, and the values of controls: ``points``, ``clusters`` or
        ``eps`` and ``min_samples``, and ``paces`` (iterations per second).
    png : bytes
        The image of the rows. Set it before `state`.
    state : dict
        ``html`` with an empty image, ``centers`` (k, 2), ``k``, ``points``, ``x``, ``y``, ``pace``, ``playing``,
        ``busy`` (whether it plays or computes the elbow curve), ``stopped`` (whether the cluster is stopped),
        ``selected`` (whether a shape was drawn), ``line`` (a summary) and ``message``.
    """

    _esm = Path(__file__).with_name("explore.js")

    name = traitlets.Unicode().tag(sync=True)
    css = traitlets.Unicode().tag(sync=True)
    choices: Any = traitlets.Dict().tag(sync=True)
    png = traitlets.Bytes().tag(sync=True)
    state: Any = traitlets.Dict().tag(sync=True)
