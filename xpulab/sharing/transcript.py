"""The output of a user's code on a rank, in a file that remains after the engine has ended or crashed.

The file has the printed text, followed by the traceback if the code raised an exception. The notebook reads it while
the code runs.
"""

from __future__ import annotations

import codecs
import contextlib
import io
import os
import sys
import uuid
from pathlib import Path

__all__ = ["LIMIT", "RAISED", "Transcripts", "Writer", "between"]

#: Bytes of a file's printed text, after which nothing more is kept: a loop that prints must not fill the disk.
LIMIT = 64 << 20
_LAST_LINE = 64 << 10  # further bytes that the last line may have

#: Separates the printed text from the traceback: ASCII's record separator.
RAISED = "\x1e"
_CRASHED = "Fatal Python error: "  # begins Python's message of a crash, whose oldest stack frames are the engine's own
_ENGINES_FRAME = f'  File "{Path(__file__).parents[1] / "engine"}'


def between(folder: Path, rank: int) -> Path:
    """Return the file in the folder of a cluster's logs for what a rank prints while no code of the user runs."""
    return folder / f"rank-{rank}.between.log"


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

    encoding = "utf-8"

    def __init__(self, path: str, limit: int | None = None) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._room = LIMIT if limit is None else limit
        self.omitted = 0

    def fileno(self) -> int:
        """Return the file's descriptor, for child processes that write to the file."""
        return self._present()._file

    def writable(self) -> bool:
        """Return True, as `io.TextIOBase` requires of a stream that can be written."""
        return True

    def write(self, text: str) -> int:
        """Write `text`, or what ends the last line if the file is too long; after that, nothing."""
        if (present := self._present()) is not self:
            return present.write(text)
        data = text.replace(RAISED, "").encode(errors="replace")
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
        self.omitted += len(text) - len(data.decode(errors="replace"))
        return len(text)

    def raised(self, traceback: str) -> None:
        """Add the traceback of the exception that ended the code."""
        with contextlib.suppress(OSError):
            os.write(self._file, (RAISED + traceback).encode(errors="replace"))

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
        self._texts: list[list[str]] = [[] for _ in self.paths]
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
        last = (self._texts[rank][-1:] or [""])[0][-len(_CRASHED) :] + new
        if not self._ends[rank] and RAISED not in new and _CRASHED not in last:
            self._texts[rank].append(new)
            return new
        before = len(self.printed(rank))
        self._ends[rank] = True
        self._texts[rank] = ["".join(self._texts[rank]) + new]
        return self.printed(rank)[before:]

    @property
    def full(self) -> list[int]:
        """Ranks that have printed more than is kept."""
        return [rank for rank, size in enumerate(self._sizes) if size >= LIMIT]

    def printed(self, rank: int) -> str:
        """Return all text that a rank has printed up to the last `read`."""
        text = "".join(self._texts[rank]).partition(RAISED)[0]
        said, crashed, stack = text.partition(_CRASHED)
        return said + crashed + stack.partition(_ENGINES_FRAME)[0]

    def raised(self, rank: int) -> str:
        """Return the traceback of a rank whose code has raised an exception; an empty string otherwise."""
        return "".join(self._texts[rank]).partition(RAISED)[2] if self._ends[rank] else ""

    def close(self) -> None:
        """Close the files, and remove the empty ones. A call goes on with what an interrupt of another one has left."""
        while self._files:
            file, path = self._files.pop(), self.paths[len(self._files)]
            if not os.fstat(file).st_size:
                Path(path).unlink(missing_ok=True)
            os.close(file)
