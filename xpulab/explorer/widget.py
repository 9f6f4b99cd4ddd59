"""The explorer's part in the browser: one widget, which uses only functions that every browser has.

Its controls are the browser's own, so that each has its label and takes keys, and the centres can be dragged and moved
by keys too. For this a widget needs JavaScript of its own; anywidget brings it to JupyterLab, Notebook and VS Code
without a build.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anywidget
import traitlets

__all__ = ["ExploreWidget"]


class ExploreWidget(anywidget.AnyWidget):
    """The data that `explore.js` shows. The script sends requests, messages ``{"name": ..., "value": ...}``.

    Attributes
    ----------
    name : str
        Of the explorer; the standing picture of the same name is hidden.
    css : str
    choices : dict
        ``names`` of the features; ``points``, ``clusters`` and ``paces`` (iterations a second) to choose from.
    png : bytes
        The rows. Set it before `state`.
    state : dict
        ``html`` with an empty image, ``centers`` (k, 2), ``k``, ``points``, ``x``, ``y``, ``pace``, ``playing``,
        ``busy`` (plays or looks for the elbow), ``stopped`` (the cluster), ``line`` (a summary), ``message``.
    """

    _esm = Path(__file__).with_name("explore.js")

    name = traitlets.Unicode().tag(sync=True)
    css = traitlets.Unicode().tag(sync=True)
    choices: Any = traitlets.Dict().tag(sync=True)
    png = traitlets.Bytes().tag(sync=True)
    state: Any = traitlets.Dict().tag(sync=True)
