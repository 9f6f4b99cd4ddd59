"""The two ways of a task to the engines: the bell, if all engines are on this host, or ipyparallel's controller."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import pickle
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from xpulab.exceptions import ClusterError
from xpulab.sharing.answers import Reply
from xpulab.sharing.bell.mailbox import Mailbox
from xpulab.sharing.bell.names import LOCK, About, bell_of
from xpulab.sharing.bell.ring import ROOM, SLOTS
from xpulab.sharing.board import Board
from xpulab.sharing.memory import SharedBlock
from xpulab.sharing.owner import lock_holder

__all__ = ["Bell", "Controller", "Pending", "Way", "forget"]

_libc = ctypes.CDLL(None)
_AGAIN = 1e-4  # seconds between two looks at the lock of the ring, or at its room


class Pending(Protocol):
    """A task that was sent."""

    def ready(self) -> bool:
        """Return whether all ranks have replied."""

    def wait(self, seconds: float) -> None:
        """Wait for at most so long until all ranks have replied."""

    def get(self) -> list[Reply]:
        """Return the reply of each rank, if it is ready."""

    def forget(self) -> None:
        """Drop the replies, also those that are still to come."""


class Way(Protocol):
    """A way of a task to all engines."""

    def send(self, about: About, payload: dict[str, Any]) -> Pending:
        """Send a task to all engines."""


class Controller:
    """The way through ipyparallel's controller.

    Parameters
    ----------
    client : ipyparallel.Client
    """

    def __init__(self, client: Any) -> None:
        self._client = client

    def send(self, about: About, payload: dict[str, Any]) -> Pending:
        """Send a task to all engines."""
        # Each further argument would be a message of its own, which takes 10 µs on both sides.
        from ipyparallel import Reference

        run = Reference("xpulab_run")  # the function of each engine that runs a task
        return _Controlled(self._client, self._client.broadcast_view().apply(run, about, payload))


class _Controlled:
    def __init__(self, client: Any, result: Any) -> None:
        self._client, self._result = client, result

    def ready(self) -> bool:
        return bool(self._result.ready())

    def wait(self, seconds: float) -> None:
        self._result.wait(seconds)

    def get(self) -> list[Reply]:
        return list(self._result.get())

    def forget(self) -> None:
        if self._result.ready():
            forget(self._client, self._result)
        else:
            self._result.add_done_callback(lambda result: forget(self._client, result))


def forget(client: Any, result: Any) -> None:
    """Delete the data that ipyparallel keeps about every task, so that memory does not grow in a long session."""
    with contextlib.suppress(Exception):  # the client may be closed
        client.purge_local_results(result)
        client.history.clear()
        whole = {sent.rpartition("_")[0] for sent in result.msg_ids}  # IDs of broadcasts, which never end
        client.outstanding.difference_update(whole)
        for known in (client._futures, client._output_futures, client.metadata):
            for sent in (*whole, *result.msg_ids):
                known.pop(sent, None)
    for name in ("__len__", "_count_chunks", "split"):  # each has a functools cache of 128 results
        getattr(getattr(type(result), name, None), "cache_clear", lambda: None)()


class Bell:
    """The way through shared memory of this host, which wakes the engines by a byte in a named pipe of each.

    Parameters
    ----------
    folder : pathlib.Path
        The cluster's folder.
    board : Board
        The board of the engines, which has the ring of tasks.
    longest : float, optional
        Seconds to wait for another process that rings, or for room in the ring.
    """

    def __init__(self, folder: Path, board: Board, longest: float = 10.0) -> None:
        self._folder, self._ring, self.longest = folder, board.ring, longest
        self._mine = threading.local()
        self._held: deque[tuple[int, SharedBlock]] = deque()  # payloads, and numbers of their tasks in the ring
        self._descriptors: list[int] = []
        try:
            self._lock = self._opened(folder / LOCK, os.O_RDWR | os.O_CREAT)
            self._bells = [
                self._opened(bell_of(folder, rank), os.O_WRONLY | os.O_NONBLOCK) for rank in range(len(board.ranks))
            ]
            self._cores = {bell: _cores_of(int(pid)) for bell, pid in zip(self._bells, board.ranks["pid"], strict=True)}
        except BaseException:
            self.close()
            raise

    def _opened(self, path: Path, flags: int) -> int:
        self._descriptors.append(os.open(path, flags | os.O_CLOEXEC, 0o600))
        return self._descriptors[-1]

    def send(self, about: About, payload: dict[str, Any]) -> Pending:
        """Send a task to all engines.

        Raises
        ------
        ClusterError
            If another process holds the bell, or if the engines do not take the tasks before this one.
        """
        if (mailbox := getattr(self._mine, "mailbox", None)) is None:
            mailbox = self._mine.mailbox = Mailbox(self._folder)
        deadline = time.monotonic() + self.longest
        block, sent = None, pickle.dumps(payload, protocol=pickle.HIGHEST_PROTOCOL)
        message = pickle.dumps((about, mailbox.path, sent))
        if len(message) > ROOM:
            block = SharedBlock.create(len(sent))
            block.write(np.frombuffer(sent, np.uint8), 0)
            message = pickle.dumps((about, mailbox.path, block.path))
        mailbox.expect(about[1])
        self._claim(deadline)
        try:
            while (number := self._ring.put(message)) is None:
                if time.monotonic() > deadline:
                    raise ClusterError(
                        f"{SLOTS} calls wait for the engines, and there is no room for another one; call again when "
                        "some have ended, or type: %xpu_cluster restart"
                    )
                time.sleep(_AGAIN)
        finally:
            fcntl.flock(self._lock, fcntl.LOCK_UN)
        for bell in self._in_order():
            with contextlib.suppress(BlockingIOError, BrokenPipeError):  # it rings already, or the engine has ended
                os.write(bell, b"!")
        taken = self._ring.taken_by_all
        while self._held and self._held[0][0] <= taken:
            self._held.popleft()[1].close()
        if block is not None:
            self._held.append((number, block))
        return _Rung(mailbox, about[1], len(self._bells))

    def _in_order(self) -> list[int]:
        """Return the bells, those of engines on the present core last: Linux lets these run before the write returns.

        An engine that runs waits for the others, which could not be rung meanwhile.
        """
        here = _libc.sched_getcpu()
        return sorted(self._bells, key=lambda bell: here in self._cores[bell])

    def _claim(self, deadline: float) -> None:
        """Take the lock, which excludes all other writers of this host."""
        while True:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() > deadline:
                    holder = f"process {pid}" if (pid := lock_holder(self._lock)) else "another process"
                    raise ClusterError(
                        f"{holder} has been sending a task for {self.longest:.0f} s, and may be stopped; "
                        f"continue or end it (kill -CONT {pid or 'PID'}, kill {pid or 'PID'}), and call again"
                    ) from None
                time.sleep(_AGAIN)

    def close(self) -> None:
        """Close the pipes. May be called twice."""
        while self._descriptors:
            os.close(self._descriptors.pop())
        while self._held:
            self._held.popleft()[1].close()


def _cores_of(pid: int) -> set[int]:
    """Return the cores of a process; none if it has ended."""
    try:
        return os.sched_getaffinity(pid)
    except OSError:
        return set()


class _Rung:
    def __init__(self, mailbox: Mailbox, task: int, size: int) -> None:
        self._mailbox, self._task, self._size = mailbox, task, size

    def ready(self) -> bool:
        return len(self._mailbox.replies(self._task)) == self._size

    def wait(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not self.ready() and (left := deadline - time.monotonic()) > 0:
            self._mailbox.wait(left)

    def get(self) -> list[Reply]:
        replies = self._mailbox.replies(self._task)
        return [pickle.loads(replies[rank]) for rank in range(self._size)]

    def forget(self) -> None:
        self._mailbox.forget(self._task)
