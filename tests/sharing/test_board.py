from __future__ import annotations

import threading

from xpulab.sharing.board import PHASES, Board, new_task_number


def test_what_one_side_writes_the_other_reads() -> None:
    board = Board.create(3)
    other = Board.open(board.path)
    other.ranks[1]["iteration"] = 5
    other.ranks[1]["seconds"] = range(len(PHASES))
    assert board.ranks[1]["iteration"] == 5
    assert board.ranks[1]["seconds"].tolist() == list(range(len(PHASES)))
    assert board.ranks[[0, 2]]["iteration"].tolist() == [0, 0]


def test_a_task_is_cancelled_until_it_is_forgotten() -> None:
    board = Board.create(1)
    task, other = new_task_number(), new_task_number()
    board.cancel(task)
    assert board.cancelled(task)
    assert not board.cancelled(other)
    board.forget(task)
    assert not board.cancelled(task)


def test_more_requests_than_slots_still_reach_the_last_task() -> None:
    board = Board.create(1)
    for _ in range(100):
        board.cancel(new_task_number())
    task = new_task_number()
    board.cancel(task)
    assert board.cancelled(task)


def test_two_clients_that_cancel_at_once_take_two_slots() -> None:
    board = Board.create(1)
    other = Board.open(board.path)
    with board._block.claimed():  # it has seen that the first slot is free, and is about to write there
        second = threading.Thread(target=other.cancel, args=(22,))
        second.start()
        second.join(0.02)
        board._cancelled[0] = 11
    second.join()
    assert board.cancelled(11)
    assert board.cancelled(22)


def test_a_client_that_stands_still_while_it_cancels_does_not_block_others() -> None:
    board = Board.create(1)
    with board._block.claimed():
        Board.open(board.path).cancel(22)
        assert board.cancelled(22)


def test_a_failure_is_of_one_task() -> None:
    board = Board.create(2)
    board.ranks[1]["failed"] = 12
    assert board.failed(12)
    assert not board.failed(13)
