"""Which line of the user's code runs, and what it calls: ``"line 2 (recv)"``.

A frame of Python knows its line, but not the function in C or C++ that it calls: such a function has no frame. Two
sources tell it:

- The text of the line, if there is one, as for a cell or a file. `ast` finds the calls in the text. Since Python 3.11 a
  frame also knows which columns of the line it executes, so that of ``f(g(x))`` the call that runs is found.
- The instructions of the function, if there is no text, as for a function that the notebook has sent. `dis` lists
  them; the last method that was loaded before the present instruction is the one that is called.
"""

from __future__ import annotations

import ast
import dis
import itertools
import linecache
import re
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

__all__ = ["called_module", "is_users", "outward", "place"]

_LIBRARIES = (str(Path(__file__).parents[1]), sysconfig.get_path("stdlib"), "<frozen")
_CALL = re.compile(r"(\w+)\s*\(")


def outward(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield a frame, the frame that has called it, and so on."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def place(frame: FrameType) -> str:
    """Return the line of the user's code in which the main thread is, and what it calls there: ``"line 2 (recv)"``."""
    frames = [each for each in outward(frame) if is_users(each.f_code.co_filename)]
    if not frames:
        return "a library"
    file, outermost = frames[0].f_code.co_filename, frames[-1].f_code
    of_script = file == outermost.co_filename and outermost.co_name == "<module>"
    within = "" if of_script or file.startswith("<%%xpu") else f" of {Path(file).name}"
    if file.startswith("<") and within:  # a function without a file, which the notebook has sent
        within = f" of {frames[0].f_code.co_name}"
    call = _call(frames[0])
    name = _loaded(frames[0]) if call is None else _name(call)
    return f"line {frames[0].f_lineno}{within}" + (f" ({name})" if name else "")


def is_users(file: str) -> bool:
    """Return whether a file of code is the user's, and of no library."""
    return not file.startswith(_LIBRARIES) and "site-packages" not in file


def _call(frame: FrameType) -> ast.Call | None:
    """Return the call that a frame makes; None if it cannot be told."""
    line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
    with_places = getattr(frame.f_code, "co_positions", None)  # since Python 3.11
    if with_places is not None:
        first, last, begin, end = next(itertools.islice(with_places(), frame.f_lasti // 2, None))
        if first is not None and first == last:
            whole = linecache.getline(frame.f_code.co_filename, first).encode()
            line = whole[begin:end].decode(errors="replace")
    try:
        found = [node for node in ast.walk(ast.parse(line)) if isinstance(node, ast.Call)]
    except SyntaxError:  # such as the first line of a loop
        names = _CALL.findall(line)
        return ast.Call(ast.Name(names[-1]), [], []) if names else None
    return found[0] if found else None


def _name(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "a call")


def _loaded(frame: FrameType) -> str:
    """Return the name of the method that a frame without a source calls; empty if there is none."""
    name = ""
    for step in dis.get_instructions(frame.f_code):
        if step.offset > frame.f_lasti:
            break
        if step.opname == "LOAD_METHOD" or (step.opname == "LOAD_ATTR" and "NULL" in step.argrepr):
            name = str(step.argval)
    return name


def called_module(frame: FrameType) -> str:
    """Return the module of the object whose method a frame calls, such as ``"mpi4py.MPI"``; empty if unknown.

    The object is that of a name, or of attributes of a name: the user's ``comm`` in ``comm.recv()``, or
    ``self.world`` in ``self.world.recv()``. The frame's variables have it. No code of the user runs for it, apart from
    a property.
    """
    call = _call(frame)
    if call is None or not isinstance(call.func, ast.Attribute):
        return ""
    owner = _value(call.func.value, frame)
    if type(owner).__module__ in ("builtins", "type"):
        return str(getattr(owner, "__module__", None) or getattr(owner, "__name__", ""))
    return type(owner).__module__


def _value(node: ast.expr, frame: FrameType) -> Any:
    """Return the object that a name, or an attribute of one, has in a frame; None for other expressions."""
    if isinstance(node, ast.Name):
        return frame.f_locals.get(node.id, frame.f_globals.get(node.id))
    if isinstance(node, ast.Attribute):
        return getattr(_value(node.value, frame), node.attr, None)
    return None
