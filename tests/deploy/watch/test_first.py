"""Which of several processes ends first."""

from __future__ import annotations

import os
import subprocess
import sys

from xpulab.deploy.watch.first import FirstToEnd


def test_the_first_is_known_when_all_have_ended() -> None:
    waiting = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    processes = [subprocess.Popen(waiting, stdin=subprocess.PIPE) for _ in range(3)]
    descriptors = [os.pidfd_open(process.pid) for process in processes]
    first = FirstToEnd(descriptors)
    for number in (1, 0, 2):
        processes[number].communicate()
        assert first() == [descriptors[1]]
    for descriptor in descriptors:
        os.close(descriptor)
