"""Show what ranks print while no code of the user runs there: threads and children after their cell, and callbacks."""

from __future__ import annotations

import codecs
import contextlib
import contextvars
import os
import threading
from pathlib import Path

from xpulab.deploy.tasks.merging import Merging
from xpulab.sharing.transcript import Transcripts, between, plain

__all__ = ["Between"]

_LOOK = 0.25  # seconds between two looks at the files


class Between:
    """Follows the files into which the ranks print between two cells, in a thread, until it is closed.

    Parameters
    ----------
    folder : pathlib.Path
        Folder of the cluster's logs.
    size : int
        Number of ranks.
    earlier : bool
        Whether to show also what was printed before.
    """

    def __init__(self, folder: Path, size: int, earlier: bool) -> None:
        self._paths = [between(folder, rank) for rank in range(size)]
        self._files: dict[int, int] = {}
        self._ended: Transcripts | None = None  # of the latest call: its child processes may still write there
        self._decoders = [codecs.getincrementaldecoder("utf-8")("replace") for _ in self._paths]
        self._merging = Merging(print)
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._context = contextvars.copy_context()
        if not earlier:
            self._open()
            for file in self._files.values():
                os.lseek(file, 0, os.SEEK_END)
        threading.Thread(target=self._follow, name="xpulab-between", daemon=True).start()

    def begin(self) -> None:
        """Note that a call begins in this context: IPython shows what comes from now on below its cell."""
        self._context = contextvars.copy_context()

    def go_on(self, ended: Transcripts) -> None:
        """Show what child processes of a call that has ended still print into its files, until another call ends."""
        with self._lock:
            before, self._ended = self._ended, ended
            if before is not None and before is not ended:
                self._take(before)
                before.close()
            if self._closed.is_set():
                ended.close()

    def show(self) -> None:
        """Show at once what the ranks have printed. Ranks that have printed nothing cost microseconds."""
        with self._lock:
            if self._read() or self._merging.waiting:
                self._context.copy().run(self._merging.show, last=True)

    def close(self) -> None:
        """Show the rest, and end the thread. Repeated calls do nothing."""
        if self._closed.is_set():
            return
        self._closed.set()
        self.show()
        with self._lock:
            for file in self._files.values():
                os.close(file)
            self._files.clear()
            if self._ended is not None:
                self._ended.close()

    def _follow(self) -> None:
        while not self._closed.wait(_LOOK):
            with self._lock:
                if self._closed.is_set():
                    return
                self._read()
                if self._merging.waiting:
                    self._context.copy().run(self._merging.show, range(len(self._paths)))

    def _open(self) -> None:
        for rank, path in enumerate(self._paths):
            if rank not in self._files:
                with contextlib.suppress(OSError):
                    self._files[rank] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def _read(self) -> bool:
        """Read what is new; returns whether there is any."""
        if len(self._files) < len(self._paths):
            self._open()
        found = self._ended is not None and self._take(self._ended)
        for rank, file in self._files.items():
            while data := os.read(file, 1 << 20):
                self._merging.add(rank, self._decoders[rank].decode(data))
                found = True
        return found

    def _take(self, ended: Transcripts) -> bool:
        """Take what is new in the files of a call that has ended; returns whether there is any."""
        texts = ended.read()
        for rank, text in enumerate(texts):
            self._merging.add(rank, plain(text))
        return any(texts)
