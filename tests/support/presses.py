"""Presses Ctrl-C at each moment of a call at which it sends something."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from xpulab import XPUCluster
from xpulab.data import Outgoing
from xpulab.deploy.tasks import conversation
from xpulab.deploy.tasks.exchange import Exchange
from xpulab.exceptions import CallInterrupted

__all__ = ["Presses", "interrupted_calls"]


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
