"""The widget without a view by which a page and the kernel exchange messages about reports; see `xpulab.widgets.pages`.

A front end makes the models of all widgets of a kernel again when a page is loaded, also of those that it does not
show, and anywidget then runs the function `initialize` of the script.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anywidget
import traitlets

__all__ = ["Messenger"]


class Messenger(anywidget.AnyWidget):
    """The data of `messenger.js`.

    The script sends ``{"ask": [[id, drawn], ...]}``, the outputs of which it has not heard for a while. The kernel
    sends ``{"outputs": [{"id", "over", "drawn" and "html" (only if the page lacks them)}, ...]}``, without any output
    as a sign of life.

    Attributes
    ----------
    kernel : str
        The name of this kernel in the outputs' classes.
    fresh : bool
        Whether a page that gets this value was open when the widget was made. It then has all later updates.
    """

    _esm = Path(__file__).with_name("messenger.js")

    kernel = traitlets.Unicode().tag(sync=True)
    fresh: Any = traitlets.Bool(True).tag(sync=True, to_json=lambda value, widget: widget.comm is None)
