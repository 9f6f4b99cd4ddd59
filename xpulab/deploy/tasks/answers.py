"""The answers of all ranks to a task, and one error for all their errors."""

from __future__ import annotations

from collections import Counter
from typing import Any

from xpulab import exceptions
from xpulab.exceptions import EngineError

__all__ = ["Answer", "raise_errors"]


class Answer:
    """The answers of all ranks to a task.

    Attributes
    ----------
    results : list of dict
        The result of each rank, by rank.
    engines : list of dict
        Rank, host, pid, device and cores of each engine.
    seconds : list of dict
        Seconds in each phase, for each engine.
    totals : list of float
        Seconds from the task's arrival to its end, for each engine.
    interrupted : bool
        Whether the user interrupted the task.
    """

    def __init__(self, replies: list[dict[str, Any]]) -> None:
        self.results = [reply["result"] for reply in replies]
        self.engines = [reply["engine"] for reply in replies]
        self.seconds = [reply["seconds"] for reply in replies]
        self.totals = [reply["total"] for reply in replies]
        self.interrupted = any(reply["status"] == "interrupted" for reply in replies)


def raise_errors(
    replies: list[dict[str, Any]], *, users: bool, kinds: tuple[type[Exception], ...] = (ValueError, MemoryError)
) -> None:
    """Raise one error for all ranks that failed. It has each distinct traceback once, with its ranks.

    Parameters
    ----------
    replies : list of dict
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
    failed = [reply for reply in replies if reply["status"] == "error"]
    if not failed:
        return
    by_text: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for reply in failed:
        by_text.setdefault((reply["error"]["type"], reply["error"]["message"]), []).append(reply)
    first = failed[0]["error"]
    parts = []
    for replies_ in by_text.values():
        ranks = ", ".join(str(r["engine"]["rank"]) for r in replies_)
        where = replies_[0]["engine"]
        parts.append(f"rank {ranks} on {where['host']} ({where['device']}):\n{replies_[0]['error']['traceback']}")
    counts = Counter(reply["error"]["type"] for reply in failed)
    others = "".join(f", {count} raised {kind}" for kind, count in list(counts.items())[1:])
    every = EngineError(
        f"{counts[first['type']]} of {len(replies)} engines raised {first['type']}{others}\n" + "\n".join(parts)
    )
    known = None if users or len(counts) > 1 else _same_error(first, failed, len(replies), kinds)
    if known is None:
        raise every
    raise known from every


def _same_error(
    error: dict[str, str], failed: list[dict[str, Any]], size: int, kinds: tuple[type[Exception], ...]
) -> Exception | None:
    """An error of xpulab, or of one of the kinds, with its ranks unless all ranks raised it; None for others."""
    same = [reply for reply in failed if reply["error"]["message"] == error["message"]]
    if error["module"] == "xpulab.exceptions":
        kind = getattr(exceptions, error["type"])
    else:
        kind = next((kind for kind in kinds if kind.__name__ == error["type"]), None)
    if kind is None or (kind in kinds and len(same) < len(failed)):
        return None
    where = "; ".join(f"rank {e['rank']} on {e['host']} ({e['device']})" for e in (r["engine"] for r in same))
    return kind(error["message"] if len(same) == size else f"{error['message']} [{where}]")
