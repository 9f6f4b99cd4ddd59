"""The answers of all ranks to a task, and one error for all their errors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from xpulab import exceptions
from xpulab.calls import of_interrupt
from xpulab.exceptions import CallInterrupted, EngineError
from xpulab.sharing.answers import EngineOfReply, Reply
from xpulab.sharing.sources import SharedArray

__all__ = ["Answer", "Failed", "answer_of", "array_sent", "raise_errors", "raise_failed"]


#: A rank that has raised an exception, and the fields of the exception.
Failed = tuple[EngineOfReply, dict[str, str]]


class Answer:
    """The answers of all ranks to a task.

    Attributes
    ----------
    results : list of dict
        The result of each rank, by rank.
    engines : list of EngineOfReply
        Rank, host, pid, device and cores of each engine.
    seconds : list of dict
        Seconds in each phase, for each engine.
    totals : list of float
        Seconds from the task's arrival to its end, for each engine.
    interrupted : bool
        Whether the user interrupted the task.
    """

    def __init__(self, replies: Sequence[Reply]) -> None:
        self.results: list[Any] = [reply["result"] for reply in replies]
        self.engines = [reply["engine"] for reply in replies]
        self.seconds = [reply["seconds"] for reply in replies]
        self.totals = [reply["total"] for reply in replies]
        self.interrupted = any(reply["status"] == "interrupted" for reply in replies)


def array_sent(sent: bytes | SharedArray, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return an array that a rank has sent, see `Task.arrays_for_client`."""
    return np.frombuffer(bytearray(sent), dtype) if isinstance(sent, bytes) else sent.open().view(dtype)


def answer_of(name: str, replies: Sequence[Reply]) -> Answer:
    """Return the answer of all ranks to the task of this name, or raise the error of their replies.

    Raises
    ------
    CallInterrupted
        If the user interrupted the task, after all ranks have stopped at the same point. Its `answer` has their results
        so far.
    """
    raise_errors(replies, users=False)
    answer = Answer(replies)
    if answer.interrupted:
        raise CallInterrupted(of_interrupt(name), answer)
    return answer


def raise_errors(
    replies: Sequence[Reply], *, users: bool, kinds: tuple[type[Exception], ...] = (ValueError, MemoryError)
) -> None:
    """Raise one error for all ranks that failed. It has each distinct traceback once, with its ranks.

    Parameters
    ----------
    replies : sequence of Reply
        The replies by rank, as `XPUCluster.replies` returns them.
    users : bool
        Whether the task ran a user's code. If not, and all ranks raised the same error of one of the `kinds`, or an
        error of xpulab, of which each rank may name its own rows, this error is raised instead, because it is about the
        input.
    kinds : tuple of type
        Builtin exceptions.

    Raises
    ------
    EngineError
        If a rank raised any other exception.
    """
    failed = [(reply["engine"], reply["error"]) for reply in replies if reply["status"] == "error" and reply["error"]]
    raise_failed(failed, len(replies), users=users, kinds=kinds)


def raise_failed(failed: Sequence[Failed], size: int, *, users: bool, kinds: tuple[type[Exception], ...] = ()) -> None:
    """Raise one error for these of `size` ranks, as `raise_errors`."""
    if not failed:
        return
    by_text: dict[tuple[str, str], list[Failed]] = {}
    for engine, error in failed:
        by_text.setdefault((error["type"], error["message"]), []).append((engine, error))
    first = failed[0][1]
    parts = []
    for alike in by_text.values():
        ranks = ", ".join(str(engine["rank"]) for engine, _ in alike)
        where, error = alike[0]
        parts.append(f"rank {ranks} on {where['host']} ({where['device']}):\n{error['traceback']}")
    counts = Counter(error["type"] for _, error in failed)
    others = "".join(f", {count} raised {kind}" for kind, count in list(counts.items())[1:])
    every = EngineError(
        f"{counts[first['type']]} of {size} engines raised {first['type']}{others}\n" + "\n".join(parts)
    )
    known = None if users or len(counts) > 1 else _same_error(first, failed, size, kinds)
    if known is None:
        raise every
    raise known from every


def _same_error(
    error: dict[str, str], failed: Sequence[Failed], size: int, kinds: tuple[type[Exception], ...]
) -> Exception | None:
    """Return an error of xpulab, or of one of the kinds, with its ranks unless all ranks raised it; None for others."""
    same = [engine for engine, each in failed if each["message"] == error["message"]]
    if error["module"] == "xpulab.exceptions":
        kind: type[Exception] | None = getattr(exceptions, error["type"])
    else:
        kind = next((kind for kind in kinds if kind.__name__ == error["type"]), None)
    if kind is None or (kind in kinds and len(same) < len(failed)):
        return None
    where = "; ".join(f"rank {e['rank']} on {e['host']} ({e['device']})" for e in same)
    return kind(error["message"] if len(same) == size else f"{error['message']} [{where}]")
