"""The thread that gives signs of life of a rank."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator

import pytest
from waiting import until

from xpulab.engine.heartbeat import Heartbeat
from xpulab.sharing.board import Board


class Code:
    """A user's code that is not over."""

    number, hopeless, freed = 7, "", ""

    def is_over(self) -> bool:
        return False


@pytest.fixture
def board() -> Iterator[Board]:
    board = Board.create(2)
    yield board
    with contextlib.suppress(FileNotFoundError):
        os.unlink(board.path)


@pytest.fixture
def heartbeat(board: Board) -> Iterator[Heartbeat]:
    """Yield the thread of rank 1, which ends with the test."""
    before = set(threading.enumerate())
    heartbeat = Heartbeat(board, 1)
    yield heartbeat
    heartbeat.end()
    for thread in set(threading.enumerate()) - before:
        thread.join()


def test_it_writes_on_the_board_and_calls_what_is_asked_for_at_each_heartbeat(
    board: Board, heartbeat: Heartbeat
) -> None:
    began, calls = time.time(), list[float]()
    heartbeat.at_each = lambda: calls.append(board.ranks["heartbeat"][1])
    until(lambda: len(calls) > 1)
    assert began < calls[1]
    assert board.ranks["heartbeat"][0] == 0


def test_code_that_does_not_wait_is_not_said_to_wait(board: Board, heartbeat: Heartbeat) -> None:
    code, calls = Code(), list[str]()
    heartbeat.at_each = lambda: calls.append(code.hopeless)
    with heartbeat.watching(code):
        until(lambda: len(calls) > 1)
    assert set(calls) == {""}
    assert board.ranks["waits"][1] == 0
