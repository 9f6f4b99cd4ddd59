"""The names that ``%%xpu`` cells can use, as rank 0 has them: asked when a user types, for completion."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

from xpulab.deploy.processes.processes import Processes
from xpulab.deploy.tasks.engines import Engines
from xpulab.deploy.tasks.ways import forget
from xpulab.sharing.signals import postponed
from xpulab.sharing.variables import GIVEN

__all__ = ["NamesOnEngines"]

_LIMIT = 0.4  # seconds for an answer; a user who types does not wait longer


class NamesOnEngines:
    """Asks rank 0 for the names of cells. Answers come in a fraction of a second, or are those that were known last.

    It never waits for a running task, and starts none: rank 0 alone is asked, and only while it is idle.

    Parameters
    ----------
    engines : Engines
    """

    def __init__(self, engines: Engines) -> None:
        self._engines = engines
        self._known: dict[tuple[object, ...], Any] = {}
        self._of: Processes | None = None  # whose answers are known

    def after(self, expression: str) -> dict[str, str]:
        """Return what completes after an expression and a dot, or the variables of cells if it is empty.

        Returns
        -------
        dict of str to str
            Name -> kind of its value: "function", "class", "module", "property" or "instance".
        """
        known = self._answer("xpulab_names", expression) or {}
        return known if expression else {**GIVEN, **known}

    def explained(self, name: str, detail: int = 0) -> dict[str, str] | None:
        """Return what IPython on rank 0 says of a name, by MIME type; None if nothing is known.

        Parameters
        ----------
        name : str
            A variable, or an attribute: ``"np.linalg.solve"``.
        detail : int
            1 for the source, too.
        """
        found: dict[str, str] | None = self._answer("xpulab_explained", name, detail)
        return found

    def _answer(self, function: str, *question: object) -> Any:
        """Return the answer of a function of rank 0, or the last one that is known; None if there is none."""
        from ipyparallel import Reference

        engines, key = self._engines, (function, *question)
        processes, board = engines.processes, engines.board
        if processes is None or board is None or engines.is_forked:
            return None
        if self._of is not processes:
            self._known, self._of = {}, processes
        if not board.ranks["task"][0] and engines.sending.acquire(timeout=_LIMIT):
            answered = threading.Event()
            with postponed():  # Ctrl-C could leave a lock of ipyparallel that nobody ever releases
                try:
                    pending = processes.client.broadcast_view([0]).apply_async(Reference(function), *question)
                finally:
                    engines.sending.release()
                pending.add_done_callback(_into(self._known, key, processes.client, answered))
                answered.wait(_LIMIT)
        return self._known.get(key)


def _into(
    known: dict[tuple[object, ...], Any], key: tuple[object, ...], client: Any, answered: threading.Event
) -> Callable[[Any], None]:
    """Return what keeps an answer when it comes, however late."""

    def keep(pending: Any) -> None:
        with contextlib.suppress(Exception):  # the engines may have ended
            (known[key],) = pending.get()
        answered.set()
        forget(client, pending)

    return keep
