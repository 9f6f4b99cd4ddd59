from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np

from xpulab.sharing.board import ITERATIONS, PHASES, Board, awaited, awaited_client, new_task_number
from xpulab.sharing.memory import SharedBlock


def test_what_one_side_writes_the_other_reads() -> None:
    board = Board.create(3)
    other = Board.open(board.path)
    other.ranks[1]["iteration"] = 5
    other.ranks[1]["seconds"] = range(len(PHASES))
    assert board.ranks[1]["iteration"] == 5
    assert board.ranks[1]["seconds"].tolist() == list(range(len(PHASES)))
    assert board.ranks[[0, 2]]["iteration"].tolist() == [0, 0]


def test_the_client_of_a_task_that_others_wait_for_is_named(tmp_path: Path) -> None:
    board, script = Board.create(2), tmp_path / "train.py"
    script.write_text("print('runs', flush=True)\ninput()")

    def started(*arguments: str) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        client = subprocess.Popen([sys.executable, *arguments], stdin=pipe, stdout=pipe, text=True)
        assert client.stdout is not None
        assert client.stdout.readline() == "runs\n"
        board.ranks[1]["task"], board.ranks[1]["name"], board.ranks[1]["client"] = 5, b"run", client.pid
        return client

    client = started("-u", str(script))
    pid, by = client.pid, f"run of train.py, process {client.pid}"
    assert (awaited(board.ranks, 6), awaited_client(board.ranks, 6)) == (by, pid)
    assert (awaited(board.ranks, 5), awaited_client(board.ranks, 5)) == ("", 0)
    client.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, pid, os.WSTOPPED)
    assert awaited(board.ranks, 6) == f"{by}, which is stopped (kill -CONT {pid} has it go on)"
    client.kill()
    client.communicate()
    assert awaited(board.ranks, 6).startswith(f"run of process {pid}, which has ended, while its call goes on, 0 s")

    client = started("-c", script.read_text(), "train.py")
    assert awaited(board.ranks, 6) == f"run of process {client.pid}"
    client.communicate("")


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
    # One client has seen that the first slot is free, and is about to write there.
    with SharedBlock.open(board.path).claimed():
        second = threading.Thread(target=other.cancel, args=(22,))
        second.start()
        second.join(0.02)
        board._cancelled[0] = 11
    second.join()
    assert board.cancelled(11)
    assert board.cancelled(22)


def test_a_client_that_stands_still_while_it_cancels_does_not_block_others() -> None:
    board = Board.create(1)
    with SharedBlock.open(board.path).claimed():
        Board.open(board.path).cancel(22)
        assert board.cancelled(22)


def test_a_failure_belongs_to_one_task() -> None:
    board = Board.create(2)
    board.ranks[1]["failed"] = 12
    assert board.failed(12)
    assert not board.failed(13)


def noted(board: Board, rank: int, *iterations: int, task: int = 7) -> None:
    for iteration in iterations:
        board.note(rank, task, 99, 1, iteration, 10.0 + iteration, float(iteration), *range(len(PHASES)))


def test_a_ring_has_the_last_iterations_of_its_rank() -> None:
    board = Board.create(2)
    other = Board.open(board.path)
    noted(board, 1, *range(1, 6))
    assert len(other.iterations(0)) == 0
    assert other.iterations(1)["iteration"].tolist() == [1, 2, 3, 4, 5]
    entry = other.iterations(1)[2]
    assert (entry["task"], entry["client"], entry["run"], entry["ended"], entry["total"]) == (7, 99, 1, 13.0, 3.0)
    assert entry["seconds"].tolist() == list(range(len(PHASES)))
    noted(board, 1, *range(6, 2 * ITERATIONS), task=8)
    assert other.iterations(1)["iteration"].tolist() == list(range(ITERATIONS, 2 * ITERATIONS))
    assert set(other.iterations(1)["task"]) == {8}
    assert len(other.iterations(0)) == 0


def test_a_ring_is_read_while_its_rank_writes() -> None:
    board = Board.create(1)
    other = Board.open(board.path)
    enough = threading.Event()

    def write() -> None:
        for first in itertools.count(1, 100):
            noted(board, 0, *range(first, first + 100))
            if enough.is_set():
                return

    writer = threading.Thread(target=write)
    writer.start()
    entire: list[int] = []
    last = 0
    try:
        until_ = time.monotonic() + 120
        while len(entire) < 20:  # looks between which the rank has written
            assert time.monotonic() < until_
            found = other.iterations(0)["iteration"]
            assert (np.diff(found) == 1).all()
            if len(found) > 1 and found[-1] > last:
                entire.append(last := int(found[-1]))
    finally:
        enough.set()
        writer.join()


def test_what_is_new_in_a_ring_comes_in_parts_and_another_board_has_it_then() -> None:
    engines, notebooks = Board.create(2), Board.create(2)
    known = 0

    def pass_on(most: int) -> list[int]:
        nonlocal known
        first, entries = engines.iterations_since(1, known, most)
        entries["ended"] -= 5.0
        notebooks.add_iterations(1, first, entries)
        known = first + len(entries)
        return [int(iteration) for iteration in entries["iteration"]]

    noted(engines, 1, *range(1, 6))
    assert pass_on(3) == [1, 2, 3]
    assert pass_on(3) == [4, 5]
    assert pass_on(3) == []
    assert notebooks.iterations(1)["iteration"].tolist() == [1, 2, 3, 4, 5]
    assert notebooks.iterations(1)["ended"].tolist() == [6.0, 7.0, 8.0, 9.0, 10.0]
    assert len(notebooks.iterations(0)) == 0
    noted(engines, 1, *range(6, 3000))  # too many: those that were replaced meanwhile never come
    first = 3000 - ITERATIONS
    assert pass_on(10) == list(range(first, first + 10))
    assert notebooks.iterations(1)["iteration"].tolist() == list(range(first, first + 10))
    while pass_on(400):
        pass
    np.testing.assert_array_equal(notebooks.iterations(1)["iteration"], engines.iterations(1)["iteration"])


def test_a_ring_is_read_while_iterations_of_another_host_come() -> None:
    engines, notebooks = Board.create(1), Board.create(1)
    other = Board.open(notebooks.path)

    def pass_on() -> None:
        known = 0
        for begin in range(1, 60_000, 300):
            noted(engines, 0, *range(begin, begin + 300))
            first, entries = engines.iterations_since(0, known, ITERATIONS)
            notebooks.add_iterations(0, first, entries)
            known = first + len(entries)

    writer = threading.Thread(target=pass_on)
    writer.start()
    seen = 0
    while writer.is_alive():
        found = other.iterations(0)["iteration"]
        seen = max(seen, len(found))
        assert (np.diff(found) == 1).all()
    writer.join()
    assert seen > 300
