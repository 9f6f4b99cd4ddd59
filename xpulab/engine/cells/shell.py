"""IPython on a rank: its magics and ``!commands`` in cells, and what completes there, and explains names."""

from __future__ import annotations

import base64
import inspect
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from IPython.core.displaypub import DisplayPublisher
from IPython.core.guarded_eval import EvaluationContext, guarded_eval
from IPython.core.interactiveshell import InteractiveShell
from IPython.display import display
from IPython.utils.dir2 import dir2
from traitlets.config import Config

from xpulab.engine.cells.users_code import output_of_a_call
from xpulab.engine.engine import this_engine

__all__ = ["Shell", "display", "explained", "get_ipython", "names"]

_CONFIG = Config({"HistoryManager": {"enabled": False}, "InteractiveShell": {"colors": "nocolor"}})


class _Publisher(DisplayPublisher):
    """Shows what a cell displays with its output: in a notebook as a table or a picture, elsewhere as text."""

    def publish(
        self,
        data: Mapping[str, Any],
        metadata: Mapping[str, Any] | None = None,
        *_: object,
        transient: Mapping[str, Any] | None = None,
        update: bool = False,
        **__: object,
    ) -> None:
        """As IPython's. A widget is shown as text, because its code on the rank cannot answer a browser."""
        name, cell = (transient or {}).get("display_id"), output_of_a_call()
        forms = {kind: form for kind, form in data.items() if kind != "application/vnd.jupyter.widget-view+json"}
        if cell is None or (set(forms) <= {"text/plain"} and name is None):
            print(forms.get("text/plain", ""))
            return
        encoded = {
            kind: base64.b64encode(form).decode() if isinstance(form, bytes) else form for kind, form in forms.items()
        }
        name = None if name is None else f"{os.getpid()}-{name}"  # of this rank
        cell.show({"data": encoded, "metadata": metadata or {}, "id": name, "update": update})

    def clear_output(self, wait: bool = False) -> None:
        """Clear what the notebook shows of this rank. In a terminal it stays."""
        if (cell := output_of_a_call()) is not None:
            cell.clear(wait)


def _png(figure: Any) -> bytes:
    """Draw a figure of matplotlib, and close it: what is still open is drawn at the end of the cell."""
    from xpulab.engine.cells import figures

    return figures.png(figure)


class Shell(InteractiveShell):
    """A shell of IPython whose variables are those of the cells on this rank."""

    def __init__(self, namespace: dict[str, object]) -> None:
        main = sys.modules["__main__"]
        super().__init__(config=_CONFIG, user_ns={}, display_pub_class=_Publisher)
        sys.modules["__main__"] = main  # which IPython has replaced
        self.user_ns = namespace
        formatter: Any = self.display_formatter
        formatter.formatters["image/png"].for_type_by_name("matplotlib.figure", "Figure", _png)

    @property
    def user_global_ns(self) -> dict[str, object]:
        """The variables of the cells, which are those of a module, too."""
        return self.user_ns

    def init_virtualenv(self) -> None:
        """Leave `sys.path` as it is."""

    def system(self, cmd: str) -> None:
        """Run a command, whose output is that of the cell. Ctrl-C ends the command and the cell."""
        self.user_ns["_exit_code"] = subprocess.run(self.var_expand(cmd, depth=1), shell=True, check=False).returncode

    def run_line_magic(self, magic_name: str, line: str, _stack_depth: int = 1) -> Any:
        """Run a magic. ``name?`` prints its text with the output of the cell, and not in a pager."""
        if magic_name in ("pinfo", "pinfo2"):
            print(self.object_inspect_mime(line.strip(), detail_level=int(magic_name == "pinfo2"))["text/plain"])
            return None
        return super().run_line_magic(magic_name, line, _stack_depth + 1)


_shells: list[Shell] = []


def get_ipython() -> Shell:
    """Return the shell of this rank, for cells with magics and commands."""
    engine = this_engine()
    assert engine is not None
    if not _shells:
        _shells.append(Shell(engine.namespace))
    return _shells[0]


def names(namespace: Mapping[str, object], expression: str) -> dict[str, str] | None:
    """Return what completes after an expression and a dot, without running a user's code.

    Parameters
    ----------
    namespace : mapping of str to object
        The variables of the cells.
    expression : str
        Empty for the variables themselves.

    Returns
    -------
    dict of str to str or None
        Name -> kind of its value, in jedi's words; None if the expression cannot be evaluated in this way.
    """
    if not expression:
        return {name: _kind(value) for name, value in namespace.items() if not name.startswith("_")}
    try:
        context = EvaluationContext(locals={}, globals=dict(namespace), evaluation="limited")
        thing = guarded_eval(expression, context)
        return {name: _kind(inspect.getattr_static(thing, name, None)) for name in dir2(thing)}
    except Exception:  # whatever an object of the user does: then nothing completes
        return None


def _kind(value: object) -> str:
    if inspect.ismodule(value):
        return "module"
    if inspect.isclass(value):
        return "class"
    if isinstance(value, property):
        return "property"
    return "function" if callable(value) or isinstance(value, (staticmethod, classmethod)) else "instance"


def explained(name: str, detail: int) -> dict[str, str] | None:
    """Return what IPython says of a name, by MIME type; None if there is no such name.

    Parameters
    ----------
    name : str
        A variable, or an attribute: ``"np.linalg.solve"``.
    detail : int
        1 for the source, too.
    """
    try:
        return dict(get_ipython().object_inspect_mime(name, detail_level=detail))
    except Exception:  # there is no such name, or its object raises an error
        return None
