"""Meetings of ranks in shared memory: in one process, and in more processes than there are cores."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xpulab.sharing.bell.meeting import Meeting
from xpulab.sharing.memory import SharedBlock


def memory_for(size: int) -> memoryview:
    return memoryview(bytearray(Meeting.nbytes(size)))


def of_ranks(memory: memoryview, size: int, ranks: Sequence[int], generation: int = 0) -> list[Meeting]:
    return [Meeting(memory, size, rank, ranks, generation) for rank in ranks]


@given(
    size=st.integers(1, 6),
    data=st.data(),
    lengths=st.lists(st.integers(0, 200) | st.just(10**9), min_size=1, max_size=5),
)
def test_all_get_the_messages_of_all(size: int, data: st.DataObject, lengths: list[int]) -> None:
    members = data.draw(st.sets(st.integers(0, size - 1), min_size=1).map(sorted))
    meetings = of_ranks(memory_for(size), size, members, data.draw(st.integers(0, 10**9)))
    random = np.random.default_rng(0)
    for length in lengths:
        sent = [random.integers(0, 256, min(length + i, each.room), np.uint8) for i, each in enumerate(meetings)]
        for i, each in enumerate(meetings):
            each.come(float(i), sent[i])
            assert [other.is_complete() for other in meetings[: i + 1]] == [i == len(members) - 1] * (i + 1)
        for each in meetings:
            assert each.heads() == [(float(i), len(message)) for i, message in enumerate(sent)]
            n = min(map(len, sent))
            np.testing.assert_array_equal(each.messages(n), [message[:n] for message in sent], strict=True)


def test_a_message_stays_until_its_reader_comes_to_the_next_meeting() -> None:
    first, second = of_ranks(memory_for(2), 2, [0, 1])
    first.come(1.0, np.array([1], np.uint8))
    second.come(2.0, np.array([2], np.uint8))
    assert second.is_complete()
    second.come(3.0, np.array([3], np.uint8))  # the first has not yet read the second message
    assert first.is_complete()
    assert first.messages(1).tolist() == [[1], [2]]
    assert not second.is_complete()


def test_a_length_is_told_without_a_message() -> None:
    first, second = of_ranks(memory_for(2), 2, [0, 1])
    first.come(length=first.room + 1)
    second.come(message=np.zeros(3, np.uint8))
    assert first.is_complete()
    assert [length for _, length in first.heads()] == [first.room + 1, 3]


def test_groups_of_ranks_meet_beside_each_other() -> None:
    memory = memory_for(5)
    (first, third), (second, fourth, fifth) = of_ranks(memory, 5, [0, 2]), of_ranks(memory, 5, [1, 3, 4])
    for each in (second, first, fourth, third):
        each.come(message=np.frombuffer(b"abc", np.uint8))
    assert first.is_complete()
    assert not second.is_complete()
    fifth.come(message=np.frombuffer(b"xyz", np.uint8))
    assert second.is_complete()
    assert first.messages(3).tobytes() == b"abcabc"
    assert second.messages(3).tobytes() == b"abcabcxyz"


def test_what_another_generation_has_left_counts_for_nothing() -> None:
    memory = memory_for(2)
    for generation, other in ((1, 2), (3, 2), ((1 << 20) - 1, 1 << 20)):
        for each in of_ranks(memory, 2, [0, 1], other):
            each.come()
            each.come()
        first, second = of_ranks(memory, 2, [0, 1], generation)
        first.come()
        assert not first.is_complete()
        second.come()
        assert first.is_complete()


def test_who_has_come_since_the_last_look_ends_the_sleep() -> None:
    first, second = of_ranks(memory_for(2), 2, [0, 1])
    first.come()
    assert not first.is_complete()

    def sleep() -> None:
        while not first.is_complete():
            first.sleep(0.9)

    sleeper = threading.Thread(target=sleep)
    sleeper.start()
    second.come()
    sleeper.join()
    assert first.is_complete()
    second.sleep(0.9)  # nobody comes: it ends by itself
    assert second.is_complete()


_RANK = """
import sys
import numpy as np
from xpulab.sharing.bell.meeting import Meeting
from xpulab.sharing.memory import SharedBlock

path, size, rank, times = sys.argv[1], *map(int, sys.argv[2:])
block = SharedBlock.open(path, writable=True)
meeting = Meeting(block.array((block.nbytes,), np.uint8).data, size, rank, range(size))
total = np.zeros(3)
for i in range(times):
    meeting.come(float(i), (total + rank + i).view(np.uint8))
    while not meeting.is_complete():
        meeting.sleep(0.9)
    assert meeting.heads() == [(float(i), 24)] * size
    total = meeting.messages(24).view(np.float64).sum(axis=0) % 1e6
print(total.tolist())
"""


@pytest.mark.parametrize("size", [2, 2 * len(os.sched_getaffinity(0)) + 1])
def test_processes_meet_thousands_of_times(size: int) -> None:
    times = 3000
    block = SharedBlock.create(Meeting.nbytes(size))
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", _RANK, block.path, str(size), str(rank), str(times)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]
    said = [rank.communicate()[0] for rank in ranks]
    total = 0.0
    for i in range(times):
        total = sum(total + rank + i for rank in range(size)) % 1e6
    assert said == [f"{[total] * 3}\n"] * size
    block.close()
