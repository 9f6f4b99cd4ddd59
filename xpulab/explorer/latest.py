"""A thread that handles the latest of the requests of a front end."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable

__all__ = ["Latest"]


class Latest:
    """Handles requests in another thread. If several requests of one name wait, it handles only the latest of them.

    Therefore the requests of a slider that is dragged do not queue: at most one value of each control waits.

    Parameters
    ----------
    work : callable
        A function of a dict of the requests, name -> value, in the order of the first request of each name. It returns
        the seconds after which it has to be called again without a request, or None.
    """

    def __init__(self, work: Callable[[dict[str, object]], float | None]) -> None:
        self._work = work
        self._asked: dict[str, object] = {}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def ask(self, name: str, value: object = None) -> None:
        """Add a request, and return at once."""
        with self._changed:
            self._asked[name] = value
            if self._thread is None:
                # The context tells IPython which cell an output belongs to. A new thread does not inherit it.
                run = contextvars.copy_context().run
                self._thread = threading.Thread(target=run, args=(self._run,), name="xpulab-explore", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    @property
    def working(self) -> bool:
        """Whether the caller runs in this object's thread."""
        return threading.current_thread() is self._thread

    def wait(self, timeout: float = 60.0) -> bool:
        """Wait until all requests are handled. Return False if this takes longer than `timeout` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: self._thread is None, timeout)

    def _run(self) -> None:
        while True:
            with self._changed:
                asked, self._asked = self._asked, {}
            pause = self._work(asked)
            with self._changed:
                if pause is not None:
                    self._changed.wait_for(lambda: bool(self._asked), pause)
                elif not self._asked:
                    self._thread = None
                    self._changed.notify_all()
                    return
