"""Replies of the ranks to a task: a named pipe for each thread that waits for some.

A pipe passes on up to 4,096 bytes as a whole, so that the ranks can write into the same pipe. A reply that is longer
comes in several parts.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import select
import struct
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path

from xpulab.sharing.owner import lives

__all__ = ["Mailbox", "Post"]

_PART = struct.Struct("QIII")  # number of the task, rank, bytes of the whole reply, bytes of this part
_LONGEST = select.PIPE_BUF - _PART.size
_PIPE = 1 << 20  # bytes that a pipe holds, if the system allows it
_OPEN = 64  # pipes that a rank keeps open
_LOOK = 0.2  # seconds between two looks whether a process that does not read its replies still runs
_counter = itertools.count()


class Mailbox:
    """The replies for one thread of this process.

    Parameters
    ----------
    folder : pathlib.Path
        The cluster's folder.

    Attributes
    ----------
    path : str
        Where the ranks write.
    """

    def __init__(self, folder: Path) -> None:
        self._descriptor = -1
        for other in folder.glob("replies-*"):
            if not lives(int(other.name.split("-")[1])):  # it was killed, and has not removed its pipe
                other.unlink(missing_ok=True)
        self._owner = os.getpid()
        self.path = str(folder / f"replies-{self._owner}-{next(_counter)}")
        os.mkfifo(self.path, 0o600)
        # It is open for writing, too: a pipe without a writer is at its end.
        self._descriptor = os.open(self.path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        with contextlib.suppress(OSError):
            fcntl.fcntl(self._descriptor, fcntl.F_SETPIPE_SZ, _PIPE)
        self._poll = select.poll()
        self._poll.register(self._descriptor, select.POLLIN)
        self._rest = b""
        self._replies: dict[int, dict[int, bytearray]] = {}
        self._lengths: dict[tuple[int, int], int] = {}

    def expect(self, task: int) -> None:
        """Keep the replies to this task from now on."""
        self._replies[task] = {}

    def forget(self, task: int) -> None:
        """Drop the replies to this task, also those that are still to come."""
        for rank in self._replies.pop(task, {}):
            self._lengths.pop((task, rank), None)

    def replies(self, task: int) -> dict[int, bytearray]:
        """Return the replies to a task that have come as a whole, by rank."""
        self._read()
        whole = self._replies.get(task, {})
        return {rank: reply for rank, reply in whole.items() if len(reply) == self._lengths[task, rank]}

    def wait(self, seconds: float) -> None:
        """Wait for the next part of a reply."""
        self._poll.poll(1000 * seconds)

    def _read(self) -> None:
        """Read all that has come, of which the last part may not be whole yet."""
        with contextlib.suppress(BlockingIOError):
            while some := os.read(self._descriptor, _PIPE):
                self._rest += some
        come, at = memoryview(self._rest), 0
        while at + _PART.size <= len(come):
            task, rank, whole, length = _PART.unpack_from(come, at)
            end = at + _PART.size + length
            if end > len(come):
                break
            if task in self._replies:
                self._lengths[task, rank] = whole
                self._replies[task].setdefault(rank, bytearray()).extend(come[at + _PART.size : end])
            at = end
        self._rest = self._rest[at:]

    def close(self) -> None:
        """Remove the pipe; a child that was forked only closes it."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)
            if os.getpid() == self._owner:
                with contextlib.suppress(OSError):
                    os.unlink(self.path)

    def __del__(self) -> None:
        self.close()


class Post:
    """Sends the replies of one rank."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._open: OrderedDict[str, int] = OrderedDict()

    def send(self, path: str, client: int, task: int, reply: bytes) -> None:
        """Send a reply to a mailbox, whose process has the pid `client`; if that has ended, nothing is sent.

        If the process does not read, another thread sends the rest.
        """
        parts = self._parts(task, reply)
        try:
            descriptor = self._pipe(path)
            for part in parts:
                try:
                    os.write(descriptor, part)
                except BlockingIOError:
                    rest = itertools.chain([part], parts)
                    threading.Thread(target=self._go_on, args=(os.dup(descriptor), client, rest), daemon=True).start()
                    return
        except OSError:  # nobody reads any more
            if path in self._open:
                os.close(self._open.pop(path))

    def close(self) -> None:
        """Close the pipes."""
        while self._open:
            os.close(self._open.popitem()[1])

    def _parts(self, task: int, reply: bytes) -> Iterator[bytes]:
        for first in range(0, max(len(reply), 1), _LONGEST):
            part = reply[first : first + _LONGEST]
            yield _PART.pack(task, self._rank, len(reply), len(part)) + part

    def _pipe(self, path: str) -> int:
        if path in self._open:
            self._open.move_to_end(path)
            return self._open[path]
        self._open[path] = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        if len(self._open) > _OPEN:
            os.close(self._open.popitem(last=False)[1])
        return self._open[path]

    @staticmethod
    def _go_on(descriptor: int, client: int, parts: Iterator[bytes]) -> None:
        poll = select.poll()
        poll.register(descriptor, select.POLLOUT)
        try:
            for part in parts:
                while True:
                    poll.poll(1000 * _LOOK)
                    try:
                        os.write(descriptor, part)
                        break
                    except BlockingIOError:
                        if not lives(client):
                            return
                        time.sleep(1e-3)  # there may be room, but not for a whole part
        except OSError:
            pass
        finally:
            os.close(descriptor)
