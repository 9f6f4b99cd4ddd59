"""Which report tells of a wait: that of the call that runs, and none that Ctrl-C has left behind."""

from __future__ import annotations

import contextvars
import os

import pytest

from xpulab.deploy.tasks.waiting import told_by, told_of_waiting
from xpulab.sharing.board import Board, awaited


@pytest.mark.parametrize("runs", [True, False])
def test_a_call_that_has_ended_is_not_told_of_the_waits_of_the_next(runs: bool) -> None:
    told: list[str] = []
    board = Board.create(1)
    board.ranks[0]["task"], board.ranks[0]["name"], board.ranks[0]["client"] = 5, b"run", os.getppid()

    def call() -> None:
        left = told_by(lambda records, number: told.append(awaited(records, number)), lambda: runs)
        left.__enter__()  # as after an interrupt at the end of the block
        with told_of_waiting("xpulab: handles", "none") as watch:
            watch(board.ranks, 6)
        left.__exit__(None, None, None)

    contextvars.copy_context().run(call)
    assert [text.endswith(f"process {os.getppid()}") for text in told] == [True] * runs
