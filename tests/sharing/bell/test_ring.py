"""A ring of messages: every rank gets every message, in one order, whatever happens to the writers."""

from __future__ import annotations

import fcntl
import hashlib
import multiprocessing
import os
import random
import time
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xpulab.sharing.bell.ring import ROOM, SLOTS, Ring
from xpulab.sharing.memory import SharedBlock

FORKS = multiprocessing.get_context("fork")  # a new Python would take longer to begin than all that is written


def write(ring: Ring, lock: Path, seed: int, begun: Connection) -> None:
    """Write messages until this process is killed."""
    drawn, free = random.Random(seed), os.open(lock, os.O_RDWR)
    begun.send("writes")
    while True:
        content = drawn.randbytes(drawn.randrange(ROOM - 16))
        fcntl.flock(free, fcntl.LOCK_EX)
        ring.put(hashlib.md5(content).digest() + content)
        fcntl.flock(free, fcntl.LOCK_UN)


def ring_of(size: int) -> Ring:
    return Ring(memoryview(bytearray(Ring.nbytes(size))), size)


@given(st.integers(1, 4), st.lists(st.one_of(st.binary(max_size=50), st.integers(0, 3)), max_size=300))
def test_every_rank_takes_every_message_in_one_order(size: int, steps: list[bytes | int]) -> None:
    """A step is a message that is put, or a rank that takes one."""
    ring = ring_of(size)
    put: list[bytes] = []
    taken: list[list[bytes]] = [[] for _ in range(size)]
    for step in steps:
        if isinstance(step, bytes):
            put.append(step)
            assert ring.put(step) == len(put)
        elif step < size and (message := ring.next_of(step)) is not None:
            ring.take(step)
            taken[step].append(message)
        assert ring.taken_by_all == min(map(len, taken))
    for rank in range(size):
        assert taken[rank] == put[: len(taken[rank])]
        assert (ring.next_of(rank) is None) == (len(taken[rank]) == len(put))


def test_a_full_ring_takes_a_message_when_the_slowest_rank_has_taken_one() -> None:
    ring = ring_of(2)
    for number in range(3 * SLOTS):
        if number >= SLOTS:
            assert ring.put(b"too much") is None
            for rank in (0, 1):
                assert ring.next_of(rank) == b"%d" % (number - SLOTS)
                ring.take(rank)
                if rank == 0:
                    assert ring.put(b"too much") is None
        assert ring.put(b"%d" % number) == number + 1


def test_the_longest_message_leaves_its_neighbours_alone() -> None:
    ring = ring_of(1)
    messages = [bytes([number]) * ROOM for number in range(5)]
    for message in messages:
        ring.put(message)
    for message in messages:
        assert ring.next_of(0) == message
        ring.take(0)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")
def test_writers_that_are_killed_leave_whole_messages_in_one_order(tmp_path: Path) -> None:
    """Processes write and are killed at any moment; each of three ranks reads the same whole messages."""
    block = SharedBlock.create(Ring.nbytes(3))
    ring = Ring(block.array((block.nbytes,), "u1").data, 3)
    lock = tmp_path / "lock"
    lock.touch()
    drawn = random.Random(0)
    digests: list[list[bytes]] = [[], [], []]

    def read(rank: int) -> bool:
        if (message := ring.next_of(rank)) is None:
            return False
        assert hashlib.md5(message[16:]).digest() == message[:16]
        digests[rank].append(message[:16])
        ring.take(rank)
        return True

    for seed in range(12):
        begun, said = FORKS.Pipe(duplex=False)
        writers = [FORKS.Process(target=write, args=(ring, lock, seed, said)) for _ in range(1 + seed % 2)]
        for writer in writers:
            writer.start()
            assert begun.recv() == "writes"
        end = time.monotonic() + drawn.uniform(0.001, 0.1)
        while time.monotonic() < end:
            read(drawn.randrange(3))
        for writer in writers:
            writer.kill()
            writer.join()
        begun.close()
        said.close()
        while any(read(rank) for rank in range(3)):
            pass
    assert digests[0] == digests[1] == digests[2]
    assert len(digests[0]) == ring.written > 12
    with lock.open() as free:
        fcntl.flock(free, fcntl.LOCK_EX | fcntl.LOCK_NB)
    block.close()
