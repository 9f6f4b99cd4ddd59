"""Which of several processes, on one host or on several, ends first."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from xpulab.deploy.watch.first import FirstOfHosts, FirstToEnd


def test_the_first_is_known_when_all_have_ended() -> None:
    waiting = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    processes = [subprocess.Popen(waiting, stdin=subprocess.PIPE) for _ in range(3)]
    descriptors = [os.pidfd_open(process.pid) for process in processes]
    first = FirstToEnd(descriptors)
    begun = time.perf_counter()
    for number in (1, 0, 2):
        processes[number].communicate()
        assert first() == [descriptors[1]]
        assert begun < first.moment < time.perf_counter()
    for descriptor in descriptors:
        os.close(descriptor)


def test_the_first_of_all_hosts_is_known_when_all_have_said_theirs_in_whatever_order() -> None:
    first = FirstOfHosts(patience=float("inf"))
    assert not first
    assert first.ranks(2) == ()
    first.add(5.0, [1, 0])  # ended with rank 2, of which the message comes later
    assert first
    assert first.ranks(2) == ()
    first.add(4.9, [2])
    assert first.ranks(2) == (2,)


def test_hosts_that_say_nothing_are_not_waited_for_any_longer() -> None:
    first = FirstOfHosts(patience=0.0)
    first.add(5.0, [1, 0])
    assert first.ranks(2) == (0, 1)
