"""The output of a user's code on a rank, in a file that remains after the engine has ended or crashed.

The file has the printed text, followed by the traceback if the code raised an exception. A mark that holds the file's
own name is between them: no program prints it by chance. An object that a notebook shows, such as a table, is a line of
JSON after the same name, and so is a request to clear the output. The notebook reads the file while the code runs.
"""

from __future__ import annotations

import base64
import codecs
import contextlib
import io
import json
import os
import struct
import sys
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypedDict

__all__ = [
    "CLEARS",
    "LIMIT",
    "SHOWN",
    "Shown",
    "Transcripts",
    "Writer",
    "between",
    "figure_of",
    "mark_of",
    "plain",
    "shown",
]

#: Bytes of a file's printed text, after which nothing more is kept: a loop that prints must not fill the disk.
LIMIT = 64 << 20
_LAST_LINE = 64 << 10  # further bytes that the last line may have

_RECORD = "\x1e"  # ASCII's record separator, which begins the mark

#: Begins a line that is an object in the text that `Transcripts.read` returns. The rest is a `Shown` in JSON.
SHOWN = f"{_RECORD}shown "
_CLEAR = {False: '"clear"', True: '"clear and wait"'}
#: Lines of the same text that clear the rank's output -> whether they wait until there is new output.
CLEARS = {f"{SHOWN}{line}": wait for wait, line in _CLEAR.items()}
_CRASHED = "Fatal Python error: "  # begins Python's message of a crash, whose oldest stack frames are the engine's own
_ENGINES_FRAME = f'  File "{Path(__file__).parents[1] / "engine"}'


def between(folder: Path, rank: int) -> Path:
    """Return the file in the folder of a cluster's logs for what a rank prints while no code of the user runs."""
    return folder / f"rank-{rank}.between.log"


def mark_of(path: str | Path) -> str:
    """Return what separates the printed text of a file from the traceback."""
    return f"{_RECORD}{Path(path).name}\n"


def plain(said: str) -> str:
    """Return what a rank has said with the texts of its objects in their places."""
    first, *others = said.split(SHOWN)
    lines = (each.partition("\n") for each in others)
    return first + "".join(f"{_text_of(line)}{rest}" for line, _, rest in lines)


def _text_of(line: str) -> str:
    return "" if f"{SHOWN}{line}" in CLEARS else f"{shown(line)['data'].get('text/plain', '')}\n"


class _Object(TypedDict):
    data: Mapping[str, Any]
    metadata: Mapping[str, Any]
    id: str | None
    update: bool


class Shown(_Object, total=False):
    """An object by MIME type, its id for later versions, and whether it is such a version.

    A figure of matplotlib has a number, ``figure``, counted from 0 in the call of its rank.
    """

    figure: int


def figure_of(png: bytes, number: int) -> Shown:
    """Return a figure of matplotlib as an object."""
    width, height = struct.unpack_from(">II", png, 16)
    data = {"text/plain": f"figure of {width} × {height} pixels", "image/png": base64.b64encode(png).decode()}
    return {"data": data, "metadata": {}, "id": None, "update": False, "figure": number}


def shown(line: str) -> Shown:
    """Return the object of a line after `SHOWN`."""
    try:
        thing = json.loads(line)
        found: Shown = {name: thing[name] for name in ("data", "metadata", "id", "update")}  # type: ignore[assignment]
        return found if "figure" not in thing else {**found, "figure": int(thing["figure"])}
    except (ValueError, LookupError, TypeError):  # a program has printed these words
        return {"data": {"text/plain": line}, "metadata": {}, "id": None, "update": False}


class _Bytes(io.RawIOBase):
    """The stream of bytes below the text, as that of `sys.stdout`, without a buffer."""

    mode = "wb"

    def __init__(self, writer: Writer) -> None:
        self._writer = writer

    def writable(self) -> bool:
        """Return True, as `io.RawIOBase` requires of a stream that can be written."""
        return True

    def fileno(self) -> int:
        """Return the file's descriptor."""
        return self._writer.fileno()

    def write(self, data: Any) -> int:
        """Write bytes, as `Writer.write` does text."""
        self._writer.put(given := bytes(data))
        return len(given)


class Writer(io.TextIOBase):
    """A text stream without a buffer into a file, which keeps only the first whole lines of a very long text.

    A thread, or a handler of logs, may keep the stream of a call that has ended. The stream of the present call, which
    is then `sys.stdout`, takes what is written to it.

    Parameters
    ----------
    path : str
    limit : int, optional
        Largest number of bytes to keep; `LIMIT` at the time of the call by default.

    Attributes
    ----------
    omitted : int
        Number of characters that were not kept.
    """

    encoding, errors, newlines = "utf-8", "replace", None
    mode, name = "w", "<stdout>"
    line_buffering = write_through = True

    def __init__(self, path: str, limit: int | None = None) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._mark = mark_of(path)
        self._room = LIMIT if limit is None else limit
        self._at_start = True
        self.omitted = 0

    @property
    def buffer(self) -> io.RawIOBase:
        """The stream of bytes below the text, for programs that write both."""
        return _Bytes(self)

    def reconfigure(self, **_: object) -> None:
        """Change nothing, as no setting of `sys.stdout` is another here: each write reaches the file, in UTF-8."""

    def fileno(self) -> int:
        """Return the file's descriptor, for child processes that write to the file."""
        return self._present()._file

    def writable(self) -> bool:
        """Return True, as `io.TextIOBase` requires of a stream that can be written."""
        return True

    def write(self, text: str) -> int:
        """Write `text`, or what ends the last line if the file is too long; after that, nothing."""
        self.put(text.encode(errors=self.errors))
        return len(text)

    def show(self, thing: Shown) -> None:
        """Write an object that a notebook shows; see `SHOWN`."""
        self._tell(json.dumps(thing, default=str))

    def clear(self, wait: bool = False) -> None:
        """Have the notebook clear what it shows of this rank, or have it wait with that for new output."""
        self._tell(_CLEAR[wait])

    def _tell(self, line: str) -> None:
        present = self._present()
        line = f"{present._mark[:-1]} {line}\n"
        present.write(line if present._at_start else f"\n{line}")

    def put(self, given: bytes) -> None:
        """Write bytes of text, see `write`."""
        if (present := self._present()) is not self:
            present.put(given)
            return
        data, self._at_start = given, given.endswith(b"\n") if given else self._at_start
        if self._room + _LAST_LINE <= 0:
            data = b""
        elif len(data) > self._room and (end := data.find(b"\n", max(0, self._room - 1))) >= 0:
            data, self._room = data[: end + 1], -_LAST_LINE
        self._room -= len(data)
        try:
            left = data
            while left:
                left = left[os.write(self._file, left) :]
        except OSError:  # the disk is full
            data = b""
        self.omitted += len(given[len(data) :].decode(errors="replace"))

    def raised(self, traceback: str) -> None:
        """Add the traceback of the exception that ended the code."""
        with contextlib.suppress(OSError):
            os.write(self._file, (self._mark + traceback).encode(errors="replace"))

    def close(self) -> None:
        """Close the file. The stream is not closed: handlers of logs would fail in each later call."""
        descriptor, self._file = self._file, -1
        if descriptor >= 0:
            os.close(descriptor)

    def _present(self) -> Writer:
        """Return the stream that takes what is written to this one."""
        return sys.stdout if self._file < 0 and isinstance(sys.stdout, Writer) else self


class Transcripts:
    """The files of all ranks, which the notebook creates and opens before it sends the code.

    The open descriptors stay valid if the files are removed together with a lost cluster.

    Parameters
    ----------
    folder : pathlib.Path
        Folder of the cluster's logs.
    size : int
        Number of ranks.

    Attributes
    ----------
    paths : list of str
        Path of the file of each rank.
    """

    def __init__(self, folder: Path, size: int) -> None:
        token = uuid.uuid4().hex
        # `Processes.logs` shows the part of a file's name before the first dot.
        self.paths = [str(folder / f"rank-{rank}.{token}.log") for rank in range(size)]
        self._files: list[int] = []
        for path in self.paths:
            self._files.append(os.open(path, os.O_RDONLY | os.O_CREAT, 0o600))
        self._sizes = [0] * size
        self._decoders = [codecs.getincrementaldecoder("utf-8")("replace") for _ in self.paths]
        self._marks = [mark_of(path) for path in self.paths]
        self._texts: list[list[str]] = [[] for _ in self.paths]
        self._begun = [""] * size  # what may be the beginning of a mark, or of an object
        self._ends = [False] * size  # whether the text has more than what the code has printed

    def read(self) -> list[str]:
        """Return the text that each rank has printed since the last call."""
        return [self._read(rank) for rank in range(len(self._files))]

    def _read(self, rank: int) -> str:
        new = ""
        while found := os.read(self._files[rank], 1 << 20):
            self._sizes[rank] += len(found)
            new += self._decoders[rank].decode(found)
        if not new:
            return ""
        new, name = self._begun[rank] + new, self._marks[rank][:-1]
        at = new.rfind(_RECORD)
        begun = new[at:] if at >= 0 else "\n"
        waits = "\n" not in begun and (name.startswith(begun) or begun.startswith(name))
        new, self._begun[rank] = (new[:at], begun) if waits else (new, "")
        new = new.replace(f"{name} ", SHOWN)
        last = (self._texts[rank][-1:] or [""])[0][-len(_CRASHED) :] + new
        if not self._ends[rank] and self._marks[rank] not in new and _CRASHED not in last:
            self._texts[rank].append(new)
            return new
        before = len(self._said(rank))
        self._ends[rank] = True
        self._texts[rank] = ["".join(self._texts[rank]) + new]
        return self._said(rank)[before:]

    @property
    def full(self) -> list[int]:
        """Ranks that have printed more than is kept."""
        return [rank for rank, size in enumerate(self._sizes) if size >= LIMIT]

    def printed(self, rank: int) -> str:
        """Return all text that a rank has printed up to the last `read`, and the texts of objects."""
        return plain(self._said(rank))

    def _said(self, rank: int) -> str:
        text = "".join(self._texts[rank]).partition(self._marks[rank])[0]
        said, crashed, stack = text.partition(_CRASHED)
        return said + crashed + stack.partition(_ENGINES_FRAME)[0]

    def raised(self, rank: int) -> str:
        """Return the traceback of a rank whose code has raised an exception; an empty string otherwise."""
        return "".join(self._texts[rank]).partition(self._marks[rank])[2] if self._ends[rank] else ""

    def close(self) -> None:
        """Close the files, and remove the empty ones. A call goes on with what an interrupt of another one has left."""
        while self._files:
            file, path = self._files.pop(), self.paths[len(self._files)]
            if not os.fstat(file).st_size:
                Path(path).unlink(missing_ok=True)
            os.close(file)
