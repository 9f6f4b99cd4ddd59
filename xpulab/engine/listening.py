"""Wait for tasks in the ring of this host's board, and reply to the processes that have sent them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
from pathlib import Path
from typing import TYPE_CHECKING

from xpulab.engine.registry import task
from xpulab.exceptions import error_fields
from xpulab.sharing.answers import Reply
from xpulab.sharing.bell.mailbox import Post
from xpulab.sharing.bell.names import bell_of
from xpulab.sharing.memory import SharedBlock

if TYPE_CHECKING:
    from xpulab.engine.engine import Engine, Task

__all__ = ["Listener"]


class Listener:
    """Runs the tasks that clients write into the ring of the board, for an engine on the host of all engines.

    Parameters
    ----------
    engine : Engine
    folder : pathlib.Path
        The cluster's folder.
    """

    def __init__(self, engine: Engine, folder: Path) -> None:
        self._engine, self._ring, self._post = engine, engine.board.ring, Post(engine.rank)
        path = bell_of(folder, engine.rank)
        os.mkfifo(path, 0o600)
        # It is open for writing, too: a pipe without a writer is at its end.
        self._bell = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)

    def start(self) -> None:
        """Answer from now on, in the running event loop."""
        self._engine.heartbeat.at_each = self._look
        asyncio.get_running_loop().add_reader(self._bell, self._answer)

    def _look(self) -> None:
        """Ring, if there is a task that nobody has rung for: its writer may have been killed before."""
        if self._ring.taken(self._engine.rank) < self._ring.written:
            with contextlib.suppress(BlockingIOError):
                os.write(self._bell, b"!")

    def _answer(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while os.read(self._bell, 4096):
                pass
        rank = self._engine.rank
        while (message := self._ring.next_of(rank)) is not None:
            about, mailbox, sent = pickle.loads(message)
            name, number, client, unread = about
            try:
                payload = pickle.loads(_payload(sent))
            except Exception as error:  # the other ranks then learn of this error
                name, payload = "unreadable", {"why": f"{type(error).__name__}: {error}"}
            self._ring.take(rank)
            reply = self._engine.run(name, number, payload, client, unread)
            self._post.send(mailbox, client, number, _pickled(reply))


def _pickled(reply: Reply) -> bytes:
    try:
        return pickle.dumps(reply, protocol=pickle.HIGHEST_PROTOCOL)
    except Exception as error:  # a result that cannot be sent
        return pickle.dumps({**reply, "status": "error", "result": {}, "error": error_fields(error)})


def _payload(sent: bytes | str) -> bytes:
    """Return the payload of a message, which is in it, or in a block of shared memory of the sender."""
    if isinstance(sent, bytes):
        return sent
    with SharedBlock.open(sent) as block:
        return block.array((block.nbytes,), "u1").tobytes()


@task("unreadable")
def _unreadable(task: Task, why: str) -> dict[str, object]:
    raise RuntimeError(f"rank {task.comm.rank} cannot read a task that was sent to it: {why}")
