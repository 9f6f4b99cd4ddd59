"""Errors of xpulab's calls in IPython: the place and the cause in five lines, and everything else folded.

Only what IPython shows is shorter. What is raised is the same as in a program, with the same type and message.
"""

from __future__ import annotations

import linecache
import re
import sys
import sysconfig
import traceback
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, TypeGuard

from xpulab.exceptions import XpulabError
from xpulab.names import Listed, Named, meant
from xpulab.report.rendering import Html, escape, in_notebook

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

__all__ = ["LINES", "brief", "install", "uninstall"]

#: Most lines of an error.
LINES = 5
_WIDTH = 240  # most characters of a line: three lines of a terminal

#: Errors of everyday. Any other type is an error in xpulab itself, whose traceback is worth reading.
_KINDS = (XpulabError, ValueError, TypeError, SyntaxError, ImportError, OSError)
_SHOWN = (*_KINDS, AttributeError)

_PACKAGE = str(Path(__file__).parents[1])
_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")} | {_PACKAGE})
_NOT_FINITE = re.compile(r"\nThe first such value is in (.*)\.$")
_ON_RANK = re.compile(r'^rank ([\d, -]+) on .*:\n|^  File "<(%%xpu cell \d+)>", line (\d+).*\n(?:    (.*)\n)?', re.M)


def install(shell: InteractiveShell) -> None:
    """Have a shell show errors of xpulab's calls in few lines, unless its user shows exceptions in their own way."""
    if not shell.custom_exceptions:
        shell.set_custom_exc(_SHOWN, _show)


def uninstall(shell: InteractiveShell) -> None:
    """Undo `install`."""
    if shell.custom_exceptions is _SHOWN:
        shell.set_custom_exc((), None)


def brief(error: BaseException, most: int = LINES) -> list[str] | None:
    """Return an error of a call of xpulab in at most `most` lines, its place first; None for any other error."""
    frames = list(traceback.walk_tb(error.__traceback__))
    users = max((i for i, (frame, _) in enumerate(frames) if _is_users(frame)), default=-1)
    inner = [frame for frame, _ in frames[users + 1 :]]
    what = str(error)
    if _is_wrong_name(error, inner):
        what += _name_meant(error)
    elif not isinstance(error, _KINDS) or not any(map(_is_ours, inner)):
        return None
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        at = max(0, (error.offset or 1) - 1)
        place = [f"line {error.lineno}, column {at + 1} of {error.filename.strip('<>')}:"]
        if text := (error.text or "").rstrip("\n"):
            place += [f"    {text}", f"    {' ' * at}^"]
        what = error.msg
    elif found := _NOT_FINITE.search(what):
        place, what = [found[1]], what[: found.start()].partition("\n")[0]
    else:
        place = _on_rank(what)
    if users >= 0 and not isinstance(error, SyntaxError):
        place += _line_of(*frames[users])
    first, *others = f"{type(error).__name__}: {what}".rstrip().split("\n")
    room = most - 1 - len(place)
    if len(others) > room:  # the last line says what to type, or which error a rank has raised
        told = [line for line in others[:-1] if line and not line.startswith((" ", "Traceback"))]
        others = [*told[: room - 1], others[-1]] if room > 0 else []
    return [_cut(line) for line in [*place, first, *others]]


def _is_wrong_name(error: BaseException, inner: list[FrameType]) -> TypeGuard[AttributeError]:
    """Return whether a user's line asks an object of xpulab for an attribute that it does not have."""
    if not isinstance(error, AttributeError):
        return False
    if inner:  # these objects name what was meant themselves
        return [frame.f_code for frame in inner] == [vars(Named)["__getattr__"].__code__]
    return isinstance(error.obj, Listed)


def _name_meant(error: AttributeError) -> str:
    """Return what to add to a message of Python's: the public name of the object that is the most similar.

    A name that ends in an underscore is that of a fitted attribute, as in scikit-learn.
    """
    wrong = error.name
    if error.obj is None or wrong is None or wrong.startswith("_"):
        return ""
    known = (name for name in dir(error.obj) if not name.startswith("_"))
    return meant(wrong, [name for name in known if name.endswith("_") == wrong.endswith("_")])


def _cut(line: str) -> str:
    return line if len(line) <= _WIDTH else f"{line[: _WIDTH - 1]}…"


def _is_ours(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith(_PACKAGE)


def _is_users(frame: FrameType) -> bool:
    """Return whether a frame is of a notebook's cell, or of a module that belongs to no library."""
    file = frame.f_code.co_filename
    if frame.f_globals.get("__name__") == "__main__":
        return True
    return not file.startswith(("<", *_LIBRARIES)) and "-packages" not in file


def _line_of(frame: FrameType, number: int) -> list[str]:
    """Return the user's line; nothing for a magic, whose line is IPython's call of it."""
    text = linecache.getline(frame.f_code.co_filename, number).strip()
    return [] if not text or text.startswith("get_ipython()") else [f"line {number}: {text}"]


def _on_rank(message: str) -> list[str]:
    """Return where the first rank was in a user's cell, if the message has the traceback of ranks."""
    rank, place = "", list[str]()
    for found in _ON_RANK.finditer(message):
        if found[1] is not None:
            if place:
                break
            rank = found[1]
        elif rank:
            place = [f"rank {rank}, line {found[3]} of {found[2]}" + (f": {found[4]}" if found[4] else "")]
    return place


def _show(
    shell: Any, kind: type[BaseException], error: BaseException, trace: TracebackType, tb_offset: int | None = None
) -> None:
    """Show an error in IPython; this is called in place of its own function."""
    lines = brief(error)
    if lines is None:
        shell.showtraceback((kind, error, trace), tb_offset=tb_offset, running_compiled_code=True)
        return
    sys.last_type, sys.last_value, sys.last_traceback = kind, error, trace  # for %tb and %debug
    if sys.version_info >= (3, 12):
        sys.last_exc = error
    if isinstance(error, XpulabError):
        whole = f"{kind.__name__}: {error}"  # as %tb shows it
        folded = not {*whole.rstrip().split("\n")} <= {*lines}
    else:
        whole, folded = "".join(traceback.format_exception(error)), True
    if folded and not in_notebook(shell):
        lines = [*(brief(error, LINES - 1) or ()), "%tb shows all"]
    shell._showtraceback(kind, error, lines)
    if folded and in_notebook(shell):
        from IPython.display import display  # a notebook has imported it

        summary = "<summary>The whole error</summary>"
        html = Html(f"<details>{summary}<pre>{escape(whole)}</pre></details>")
        display({"text/html": html, "text/plain": "%tb shows the whole error"}, raw=True)
    if shell.call_pdb:  # after %pdb on
        shell.debugger(force=True)
