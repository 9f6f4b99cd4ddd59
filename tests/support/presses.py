"""Presses Ctrl-C: at each moment of a call at which it sends something, and in a script of `xpulab run`."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from waiting import until

from xpulab import XPUCluster
from xpulab.data import Outgoing
from xpulab.deploy.tasks import conversation
from xpulab.deploy.tasks.exchange import Exchange
from xpulab.exceptions import CallInterrupted

__all__ = ["Presses", "interrupted_calls", "require_time_after_ctrl_c"]

# A shell starts what runs in its background with SIGINT ignored.
_RUN = "import signal, sys, xpulab.cli; signal.signal(2, signal.default_int_handler); sys.exit(xpulab.cli.main())"
_SAVES = """import os, sys, time
from mpi4py import MPI
world = MPI.COMM_WORLD
try:
    print("begun", flush=True)
    if world.rank:
        time.sleep(600)
    world.recv(source=1)  # which nothing interrupts
finally:
    print("saves", world.rank, flush=True)
    while not os.path.exists(sys.argv[1]):
        time.sleep(0.01)
    print("saved", world.rank, flush=True)
"""


@contextlib.contextmanager
def interrupted_calls() -> Iterator[None]:
    """Interrupt each task of an estimator before it is sent."""

    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(XPUCluster, "call", interrupted)
        yield


class Presses:
    """Presses Ctrl-C at one of the moments of a call: when it prepares to send, and when a task has been sent."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.moment = self.seen = 0
        enter, presses = Outgoing.__enter__, self

        class Sent(Exchange):
            def __init__(self, *arguments: Any) -> None:
                super().__init__(*arguments)
                presses.reach_moment()

        def entered(outgoing: Outgoing) -> Outgoing:
            presses.reach_moment()
            return enter(outgoing)

        monkeypatch.setattr(conversation, "Exchange", Sent)
        monkeypatch.setattr(Outgoing, "__enter__", entered)

    def reach_moment(self) -> None:
        if threading.current_thread() is threading.main_thread():
            self.seen += 1
            if self.seen == self.moment:
                os.kill(os.getpid(), signal.SIGINT)

    def at_each(self, call: Callable[[], Any]) -> Iterator[str]:
        """Repeat a call, interrupted at each of its moments, and yield what each interrupt says."""
        for moment in range(1, 100):
            self.moment, self.seen = moment, 0
            try:
                call()
            except CallInterrupted as interrupt:
                yield str(interrupt)
            else:
                assert self.seen < moment, "the interrupt had no effect"
                return
            finally:
                self.moment = 0


def require_time_after_ctrl_c(folder: Path, *words: str) -> None:
    """Check that a rank saves its work after Ctrl-C, and that the other one, which waits inside of MPI, is ended then.

    Parameters
    ----------
    folder : pathlib.Path
        For the script, and for what it prints.
    *words : str
        Options of `xpulab run`.
    """
    (folder / "script.py").write_text(_SAVES)
    command = [sys.executable, "-c", _RUN, "run", *words, "-n", "2", str(folder / "script.py"), str(folder / "there")]
    with (folder / "said").open("w") as said:
        process = subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT)

    def lines() -> set[str]:
        return set((folder / "said").read_text().splitlines())

    try:
        until(lambda: "[0-1] begun" in lines() or {"[0] begun", "[1] begun"} <= lines())
        process.send_signal(signal.SIGINT)
        until(lambda: any("still run; Ctrl-C once more ends the ranks" in line for line in lines()))
        assert "[1] saves 1" in lines()
        (folder / "there").touch()
        assert process.wait(timeout=120) == 130
        assert "[1] saved 1" in lines()
    finally:
        process.terminate()
        process.wait()
