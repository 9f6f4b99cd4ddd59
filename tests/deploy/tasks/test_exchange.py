"""`Exchange`, if the engines do not end a task. The tests need no engines."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from xpulab.deploy.tasks import exchange
from xpulab.deploy.tasks.exchange import Exchange
from xpulab.exceptions import EngineStuckError
from xpulab.sharing.board import Board
from xpulab.sharing.signals import Pressed


class Never:
    """A way to engines that never reply, and a task on it."""

    def send(self, *_: Any) -> Never:
        return self

    def ready(self) -> bool:
        return False

    def wait(self, seconds: float) -> None:
        time.sleep(seconds)

    def get(self) -> list[Any]:
        raise AssertionError("it is not ready")

    def forget(self) -> None:
        pass


@pytest.fixture
def board() -> Iterator[Board]:
    board = Board.create(2)
    yield board
    board.close()


@pytest.fixture
def sent(board: Board, monkeypatch: pytest.MonkeyPatch) -> Exchange:
    monkeypatch.setattr(exchange, "_INTERRUPT_GRACE", 0.2)
    task = Exchange(Never(), board, "KMeans.fit", {})
    board.ranks["task"] = task.number
    return task


def after_ctrl_c() -> Pressed:
    pressed = Pressed()
    pressed.note()
    return pressed


def waited(task: Exchange, watch: Any) -> list[Any]:
    """Wait for the task, at most two minutes."""
    deadline = time.monotonic() + 120

    def require_well() -> None:
        assert time.monotonic() < deadline, "it waits for ever"

    return task.wait(require_well, watch, Pressed())


def test_a_callback_that_fails_does_not_wait_for_ever(sent: Exchange, board: Board) -> None:
    def fail(*_: Any) -> None:
        raise LookupError("a callback of mine")

    words = r"rank 0, 1 did not end the task 'KMeans.fit' within 0 s of a failed callback; type: %xpu_cluster"
    with pytest.raises(EngineStuckError, match=words) as caught:
        waited(sent, fail)
    assert isinstance(caught.value.__cause__, LookupError)
    assert board.cancelled(sent.number)


def test_an_interrupt_does_not_wait_for_ever(sent: Exchange) -> None:
    with pytest.raises(EngineStuckError, match="within 0 s of the interrupt"):
        sent.wait(lambda: None, lambda *_: None, after_ctrl_c())


def test_a_users_code_is_given_up_by_the_second_interrupt_only(
    sent: Exchange, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(exchange, "_USERS_GRACE", 0.1)
    sent.name = "run"
    pressed, waited_for = after_ctrl_c(), 0.0

    def look(*_: Any) -> None:
        nonlocal waited_for
        waited_for = waited_for or time.monotonic() * bool(capsys.readouterr().err)
        if waited_for and time.monotonic() - waited_for > 0.5:
            pressed.note()
            raise KeyboardInterrupt

    with pytest.raises(EngineStuckError, match=r"rank 0, 1 was in a call .* at your second interrupt"):
        sent.wait(lambda: None, look, pressed)
    assert time.monotonic() - waited_for > 0.5
