"""The output of a user's code on a rank, in a file that outlives the engine, however the engine ends.

The file holds what was printed, and after it the traceback if the code raised. The notebook reads it while the code
runs.
"""

from __future__ import annotations

import codecs
import contextlib
import io
import os
import uuid
from pathlib import Path

__all__ = ["RAISED", "Transcripts", "Writer"]

_KEPT = 1_000_000  # characters; a loop that prints must not fill the disk
#: Stands between the printed text and the traceback: ASCII's record separator.
RAISED = "\x1e"
_CRASHED = "Fatal Python error: "  # Python's last words, with a stack whose older part is the engine's own
_ENGINES_FRAME = f'  File "{Path(__file__).parents[1] / "engine"}'


class Writer(io.TextIOBase):
    """A text stream into a file, which keeps the beginning of the text.

    Nothing waits in a buffer of this process.

    Parameters
    ----------
    path : str
    most : int
        Characters to keep.

    Attributes
    ----------
    omitted : int
        Characters that were not kept.
    """

    encoding = "utf-8"

    def __init__(self, path: str, most: int = _KEPT) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._room = most
        self.omitted = 0

    def fileno(self) -> int:
        """The file's descriptor, for processes that write to it."""
        return self._file

    def writable(self) -> bool:
        """True."""
        return True

    def write(self, text: str) -> int:
        """Keep `text`, or its beginning if the file has less room."""
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
    """The files of all ranks, which the notebook makes before it sends the code.

    Its descriptors stay valid when the files are removed together with a cluster that was lost.

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
        # A log's name is shown up to its first dot.
        self.paths = [str(folder / f"rank-{rank}.{token}.log") for rank in range(size)]
        self._files: list[int] = []
        for path in self.paths:
            self._files.append(os.open(path, os.O_RDONLY | os.O_CREAT, 0o600))
        self._decoders = [codecs.getincrementaldecoder("utf-8")("replace") for _ in self.paths]
        self._texts = [""] * size

    def read(self) -> list[str]:
        """The text that each rank has printed since the last call."""
        return [self._read(rank) for rank in range(len(self._files))]

    def _read(self, rank: int) -> str:
        new = ""
        while found := os.read(self._files[rank], 1 << 20):
            new += self._decoders[rank].decode(found)
        before = len(self.printed(rank))
        self._texts[rank] += new
        return self.printed(rank)[before:] if new else ""

    def printed(self, rank: int) -> str:
        """Everything that a rank has printed, as far as it was read."""
        text = self._texts[rank].partition(RAISED)[0]
        said, crashed, stack = text.partition(_CRASHED)
        return said + crashed + stack.partition(_ENGINES_FRAME)[0]

    def raised(self, rank: int) -> str:
        """The traceback of a rank whose code has raised, or ""."""
        return self._texts[rank].partition(RAISED)[2]

    def close(self) -> None:
        """Close the files, and remove the empty ones."""
        for path in reversed(self.paths if self._files else []):
            file = self._files.pop()
            if not os.fstat(file).st_size:
                Path(path).unlink(missing_ok=True)
            os.close(file)
