"""Which line of the user's code runs, and what it calls: ``"line 2 (recv)"``.

A frame of Python knows its line, but not the function in C or C++ that it calls: such a function has no frame. Two
sources tell it:

- The text of the line, if there is one, as for a cell or a file. Since Python 3.11 a frame also knows which columns of
  the line it executes, so that of ``f(g(x))`` the call that runs is found. Nothing is parsed, because this runs in a
  thread: on CPython 3.11, `ast.parse` in two threads at a time may raise SystemError in either of them.
- The instructions of the function, if there is no text, as for a function that the notebook has sent, which `dis`
  lists.
"""

from __future__ import annotations

import dis
import itertools
import keyword
import linecache
import re
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

__all__ = ["called_module", "is_users", "outward", "place"]

_LIBRARIES = (str(Path(__file__).parents[1]), sysconfig.get_path("stdlib"), "<frozen")
_INSTALLED = re.compile("(site|dist)-packages")
_CALL = re.compile(r"([\w.]+)\s*\(")
_TEXT = re.compile(r"""(['"])(?:(?!\1)[^\\]|\\.)*\1""")
_LAST = re.compile(r"\w*$")
_BESIDE = ("EXTENDED_ARG", "PUSH_NULL", "PRECALL", "KW_NAMES")  # instructions between a call and its parts
_JUMPS = {*dis.hasjrel, *dis.hasjabs}
#: Instructions of Python 3.10 for which what is called is one entry of the stack; those of others have two.
_CALLS_OF_ONE = ("CALL_FUNCTION", "CALL_FUNCTION_KW", "CALL_FUNCTION_EX") if sys.version_info < (3, 11) else ()


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
    called = _called(frames[0])
    name = _LAST.search(called)[0] or "a call" if called else _loaded(frames[0])  # type: ignore[index]
    return f"line {frames[0].f_lineno}{within}" + (f" ({name})" if name else "")


def is_users(file: str) -> bool:
    """Return whether a file of code is the user's, and of no library. PyTorch may be where it was built."""
    of_torch = getattr(sys.modules.get("torch"), "__path__", ())
    return not file.startswith((*_LIBRARIES, *of_torch)) and not _INSTALLED.search(file)


def _called(frame: FrameType) -> str:
    """Return the expression that a frame calls, such as ``"comm.recv"``; empty if it cannot be told."""
    line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
    with_places = getattr(frame.f_code, "co_positions", None)  # since Python 3.11
    if with_places is not None:
        first, last, begin, end = next(itertools.islice(with_places(), frame.f_lasti // 2, None))
        if first is not None and first == last:
            whole = linecache.getline(frame.f_code.co_filename, first).encode()
            part = whole[begin:end].decode(errors="replace")
            if part.endswith(")"):
                return _before_arguments(part)
            line = part
    names = [name for name in _CALL.findall(line) if not keyword.iskeyword(name)]
    return names[0] if names else ""


def _before_arguments(call: str) -> str:
    """Return the part of the text of a call that comes before its arguments."""
    call, depth = _TEXT.sub("''", call), 0  # parentheses in strings do not count
    for at in reversed(range(len(call))):
        depth += (call[at] == ")") - (call[at] == "(")
        if depth == 0:
            return call[:at].rstrip()
    return ""


def _loaded(frame: FrameType) -> str:
    """Return the name of what a frame without a source calls; empty if it cannot be told.

    Before a call, the instructions put what is called on the stack, and then its arguments. So what is called is what
    comes, from the call backwards, before all that the call takes away has been put there, but one entry.
    """
    before = [step for step in dis.get_instructions(frame.f_code) if step.offset <= frame.f_lasti]
    if not before or not before[-1].opname.startswith("CALL"):
        return ""
    call = before.pop()
    depth = dis.stack_effect(call.opcode, call.arg) - (call.opname in _CALLS_OF_ONE)
    for step in reversed(before):
        if step.opcode in _JUMPS:
            return ""
        if depth == -1 and step.opname not in _BESIDE:
            return str(step.argval) if step.opname.startswith("LOAD_") else ""
        if depth < -1 or step.opname != "PUSH_NULL":
            depth += dis.stack_effect(step.opcode, step.arg)
    return ""


def called_module(frame: FrameType) -> str:
    """Return the module of the object whose method a frame calls, such as ``"mpi4py.MPI"``; empty if unknown.

    The object is that of a name, or of attributes of a name: the user's ``comm`` in ``comm.recv()``, or
    ``self.world`` in ``self.world.recv()``. The frame's variables have it. No code of the user runs for it, apart from
    a property. An object that a call has just returned is taken for one of the function's module, as in
    ``dist.irecv(rows).wait()``, and one of a list for what its first one is.
    """
    text, _, _ = _called(frame).rpartition(".")
    text, _, _ = text.partition("(")
    text, item, _ = text.partition("[")
    names = text.split(".")
    if not all(map(str.isidentifier, names)):
        return ""
    owner: Any = frame.f_locals.get(names[0], frame.f_globals.get(names[0]))
    for name in names[1:]:
        owner = getattr(owner, name, None)
    if item and isinstance(owner, list | tuple):
        owner = next(iter(owner), None)
    if type(owner).__module__ in ("builtins", "type"):
        return str(getattr(owner, "__module__", None) or getattr(owner, "__name__", ""))
    return type(owner).__module__
