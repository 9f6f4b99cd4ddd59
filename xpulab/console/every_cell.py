"""``%autoxpu``: every cell runs on the ranks, until this is turned off."""

from __future__ import annotations

import re

from IPython.core.interactiveshell import InteractiveShell

from xpulab.console.commands import Parser
from xpulab.console.first_use import NAMES

__all__ = ["OFF", "EveryCell", "auto_parser"]

#: What to type to turn it off.
OFF = "%autoxpu off"
_MAGICS = (
    *(*NAMES["line"], "load_ext", "unload_ext", "reload_ext", "config", "matplotlib", "debug", "history"),
    *("pip", "conda", "mamba", "micromamba", "uv"),
)
#: What IPython makes of a cell magic, and of the line magics that belong to the notebook.
_STAYS = re.compile(rf"^get_ipython\(\)\.run_cell_magic\(|get_ipython\(\)\.run_line_magic\('({'|'.join(_MAGICS)})'")


def auto_parser() -> Parser:
    """Return the parser of the argument of ``%autoxpu``."""
    parser = Parser(
        prog="%autoxpu",
        description=(
            "Run every cell on the engines, as if it began with %%xpu; without an argument, say whether this is so. "
            "Cells that begin with another cell magic keep it. Cells with %xpu_cluster, or a magic that belongs "
            "to the notebook, such as %pip or %config, run in the notebook, and so does what the front end sends by "
            f"itself, such as the list of variables. To turn it off, type: {OFF}"
        ),
    )
    parser.add_argument("what", nargs="?", choices=("on", "off"), help="by default, say which")
    return parser


class EveryCell:
    """The part of IPython's input transformation that begins every cell with ``%%xpu``.

    Attributes
    ----------
    on : bool
        Whether it does.
    """

    on = False
    _shell: InteractiveShell

    def turn(self, shell: InteractiveShell, on: bool) -> None:
        """Turn it on or off. Repeated calls do nothing."""
        self._shell, transformers = shell, shell.input_transformers_post
        if on and not self.on:
            transformers.append(self)
        elif self.on and not on:
            transformers.remove(self)
        self.on = on

    def __call__(self, lines: list[str]) -> list[str]:
        source = "".join(lines)
        if not source.strip() or _STAYS.search(source) or _of_front_end(self._shell):
            return lines
        return [f"get_ipython().run_cell_magic('xpu', '', {source!r})\n"]


def _of_front_end(shell: InteractiveShell) -> bool:
    """Return whether the present request is not a user's cell: VS Code and JupyterLab inspect variables by such code.

    A front end asks for it silently, or leaves it out of the history. A terminal has no requests.
    """
    request = shell.get_parent() if hasattr(shell, "get_parent") else {}
    content = request.get("content", {})
    return bool(content.get("silent")) or not content.get("store_history", True)
