"""An engine takes tasks from the ring, replies to their sender, and says what it cannot read. It is alone here."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import pickle
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from xpulab.deploy.tasks.ways import Bell
from xpulab.engine.engine import Engine
from xpulab.engine.listening import Listener
from xpulab.engine.registry import TASKS
from xpulab.exceptions import ClusterError
from xpulab.sharing.bell.mailbox import Mailbox
from xpulab.sharing.bell.names import LOCK
from xpulab.sharing.bell.ring import SLOTS
from xpulab.sharing.board import new_task_number


@pytest.fixture
def bell(engine: Engine, tmp_path: Path) -> Iterator[Bell]:
    listener = Listener(engine, tmp_path)
    bell = Bell(tmp_path, engine.board)
    TASKS["echo"] = lambda task, **payload: payload

    async def listen() -> None:
        listener.start()

    bell.loop = asyncio.new_event_loop()  # type: ignore[attr-defined]
    bell.loop.run_until_complete(listen())  # type: ignore[attr-defined]
    yield bell
    bell.loop.close()  # type: ignore[attr-defined]
    bell.close()
    engine.heartbeat.at_each = lambda: None
    signal.signal(signal.SIGINT, signal.default_int_handler)  # engines ignore it between tasks
    del TASKS["echo"]


def reply_to(bell: Any, name: str, payload: dict[str, Any]) -> Any:
    sent = bell.send((name, new_task_number(), 0, []), payload)
    assert not sent.ready()
    while not sent.ready():
        bell.loop.run_until_complete(asyncio.sleep(0.01))
    (reply,) = sent.get()
    sent.forget()
    return reply


@pytest.mark.parametrize("n", [0, 10, 5_000, 400_000])
def test_a_task_and_its_reply_of_any_length(bell: Bell, n: int) -> None:
    values = np.arange(n)
    reply = reply_to(bell, "echo", {"values": values})
    assert reply["status"] == "ok"
    np.testing.assert_array_equal(reply["result"]["values"], values)


def test_tasks_are_taken_in_their_order(bell: Any) -> None:
    sent = [bell.send(("echo", new_task_number(), 0, []), {"n": n}) for n in range(50)]
    while not all(each.ready() for each in sent):
        bell.loop.run_until_complete(asyncio.sleep(0.01))
    assert [each.get()[0]["result"]["n"] for each in sent] == list(range(50))


def test_what_cannot_be_read_or_sent_is_an_error_and_the_next_task_runs(bell: Bell) -> None:
    class Broken:
        def __reduce__(self) -> Any:
            return int, ("no number",)

    reply = reply_to(bell, "echo", {"value": Broken()})
    assert reply["status"] == "error"
    assert "rank 0 cannot read a task that was sent to it: ValueError" in str(reply["error"])
    TASKS["echo"] = lambda task, **payload: {"value": lambda: 1}
    assert reply_to(bell, "echo", {})["status"] == "error"
    TASKS["echo"] = lambda task, **payload: payload
    assert reply_to(bell, "echo", {"value": 1})["result"] == {"value": 1}


def test_a_task_that_nobody_has_rung_for_runs_after_a_heartbeat(bell: Any, engine: Engine, tmp_path: Path) -> None:
    mailbox, number = Mailbox(tmp_path), new_task_number()
    mailbox.expect(number)
    engine.board.ring.put(pickle.dumps((("echo", number, 0, []), mailbox.path, pickle.dumps({"n": 3}))))
    deadline = time.monotonic() + 60  # the sender was killed before it could ring
    while not mailbox.replies(number) and time.monotonic() < deadline:
        bell.loop.run_until_complete(asyncio.sleep(0.05))
    assert pickle.loads(mailbox.replies(number)[0])["result"] == {"n": 3}
    mailbox.close()


def test_a_process_that_stands_still_while_it_sends_is_named(bell: Bell, tmp_path: Path) -> None:
    bell.longest = 0.2
    with (tmp_path / LOCK).open() as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(ClusterError, match=rf"^process {os.getpid()} has been sending a task .* may be stopped"):
            bell.send(("echo", new_task_number(), 0, []), {})
    assert reply_to(bell, "echo", {"value": 1})["result"] == {"value": 1}


def test_more_calls_than_the_ring_has_room_for_are_refused_and_the_others_run(bell: Any) -> None:
    bell.longest = 0.2
    sent = [bell.send(("echo", new_task_number(), 0, []), {"n": n}) for n in range(SLOTS)]
    with pytest.raises(ClusterError, match=rf"{SLOTS} calls wait for the engines, .* call again when some have ended"):
        bell.send(("echo", new_task_number(), 0, []), {})
    while not all(each.ready() for each in sent):
        bell.loop.run_until_complete(asyncio.sleep(0.01))
    assert [each.get()[0]["result"]["n"] for each in sent] == list(range(SLOTS))
    assert reply_to(bell, "echo", {"value": 1})["result"] == {"value": 1}


def opened() -> set[int]:
    """Return the inodes of shared memory that this process has open. What other tests have left may go meanwhile."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{name}").startswith(("/dev/shm", "/memfd")):
                found.add(os.stat(int(name)).st_ino)
    return found


def test_payloads_in_shared_memory_go_when_the_engine_has_read_them(bell: Any) -> None:
    reply_to(bell, "echo", {})
    before = opened()
    for _ in range(20):
        reply_to(bell, "echo", {"value": bytes(100_000)})
        assert len(opened() - before) == 1
    reply_to(bell, "echo", {})
    assert opened() <= before
