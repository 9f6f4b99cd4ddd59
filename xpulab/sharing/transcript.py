"""The output of a user's code on a rank, in a file that remains after the engine has ended or crashed.

The file has the printed text, followed by the traceback if the code raised an exception. The notebook reads it while
the code runs.
"""

from __future__ import annotations

import codecs
import contextlib
import io
import os
import uuid
from pathlib import Path

__all__ = ["RAISED", "Transcripts", "Writer"]

_KEPT = 1_000_000  # largest number of characters, so that a loop that prints does not fill the disk
#: Separates the printed text from the traceback: ASCII's record separator.
RAISED = "\x1e"
_CRASHED = "Fatal Python error: "  # begins Python's message of a crash, whose oldest stack frames are the engine's own
_ENGINES_FRAME = f'  File "{Path(__file__).parents[1] / "engine"}'


class Writer(io.TextIOBase):
    """A text stream without a buffer into a file, which keeps only the beginning of a long text.

    Parameters
    ----------
    path : str
    most : int, default=1_000_000
        Largest number of characters to keep.

    Attributes
    ----------
    omitted : int
        Number of characters that were not kept.
    """

    encoding = "utf-8"

    def __init__(self, path: str, most: int = _KEPT) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._room = most
        self.omitted = 0

    def fileno(self) -> int:
        """Return the file's descriptor, for child processes that write to the file."""
        return self._file

    def writable(self) -> bool:
        """Return True, as `io.TextIOBase` requires of a stream that can be written."""
        return True

    def write(self, text: str) -> int:
        """Write `text`, or only its beginning if the file would become too long."""
        kept = text[: self._room]
        with contextlib.suppress(OSError):  # the disk is full
            if kept:
                os.write(self._file, kept.replace(RAISED, "").encode(errors="replace"))
                self._room -= len(kept)
                self.omitted -= len(kept)
        self.omitted += len(text)
        return len(text)

    def raised(self, traceback: str) -> None:
        """Add the traceback of the exception that ended the code."""
        with contextlib.suppress(OSError):
            os.write(self._file, (RAISED + traceback).encode(errors="replace"))

    def close(self) -> None:
        """Close the file."""
        descriptor, self._file = self._file, -1
        if descriptor >= 0:
            os.close(descriptor)
        super().close()


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
        self._decoders = [codecs.getincrementaldecoder("utf-8")("replace") for _ in self.paths]
        self._texts = [""] * size

    def read(self) -> list[str]:
        """Return the text that each rank has printed since the last call."""
        return [self._read(rank) for rank in range(len(self._files))]

    def _read(self, rank: int) -> str:
        new = ""
        while found := os.read(self._files[rank], 1 << 20):
            new += self._decoders[rank].decode(found)
        before = len(self.printed(rank))
        self._texts[rank] += new
        return self.printed(rank)[before:] if new else ""

    def printed(self, rank: int) -> str:
        """Return all text that a rank has printed up to the last `read`."""
        text = self._texts[rank].partition(RAISED)[0]
        said, crashed, stack = text.partition(_CRASHED)
        return said + crashed + stack.partition(_ENGINES_FRAME)[0]

    def raised(self, rank: int) -> str:
        """Return the traceback of a rank whose code has raised an exception; an empty string otherwise."""
        return self._texts[rank].partition(RAISED)[2]

    def close(self) -> None:
        """Close the files, and remove the empty ones."""
        for path in reversed(self.paths if self._files else []):
            file = self._files.pop()
            if not os.fstat(file).st_size:
                Path(path).unlink(missing_ok=True)
            os.close(file)
