"""What is said about other running clusters: which of them use the same devices, and what their engines do."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from xpulab._version import __version__
from xpulab.deploy.plan.plan import Plan
from xpulab.deploy.plan.probe import core_ranges
from xpulab.deploy.processes.record import Record, find
from xpulab.report.rendering import counted, format_seconds
from xpulab.sharing.board import Board
from xpulab.sharing.memory import SharedBlock

__all__ = ["call_of", "in_use"]

_NAMED = 3  # clusters that a sentence about other clusters names
_DAY = 86_400


def in_use(plan: Plan, own: str = "") -> tuple[str, ...]:
    """Return what to say about other running clusters of this user: which of them use a plan's cores and GPUs.

    Parameters
    ----------
    plan : Plan
    own : str
        Folder of the cluster that has this plan, if it runs; this cluster is left out.

    Returns
    -------
    tuple of str
    """
    told, used = [], []
    for record in find():
        if record.folder == own:
            continue
        if not record.is_known:
            told.append(
                f"the cluster {record.name}, of another version of xpulab, runs too, and may use the same cores"
            )
        elif record.plan is not None and any(shared := _shared(plan, record.plan)):
            used.append((record, shared))
    if used:
        told.insert(0, _in_use(plan, used))
    return tuple(told)


def _shared(plan: Plan, other: Plan) -> tuple[set[int], set[str]]:
    """Return the cores and the selectors of GPUs that two plans share."""
    pairs = [(one, theirs) for one, theirs in itertools.product(plan.ranks, other.ranks) if one.host == theirs.host]
    on_cpu = any(rank.device.kind == "cpu" for rank in (*plan.ranks, *other.ranks))  # GPUs' engines hardly use cores
    cores = {core for one, theirs in pairs if on_cpu for core in {*one.cores} & {*theirs.cores}}
    gpus = {one.selector for one, theirs in pairs if one.selector == theirs.selector and one.device.kind != "cpu"}
    return cores, gpus


def _in_use(plan: Plan, used: list[tuple[Record, tuple[set[int], set[str]]]]) -> str:
    """Return the sentence about clusters that share cores or GPUs with a plan: those that compute come first."""
    cores = set[int]().union(*(cores for _, (cores, _) in used))
    gpus = set[str]().union(*(gpus for _, (_, gpus) in used))
    parts = [f"the {'core' if len(cores) == 1 else 'cores'} {core_ranges(cores)}"] if cores else []
    parts += [f"{gpu} ({next(r.device.name for r in plan.ranks if r.selector == gpu)})" for gpu in sorted(gpus)]
    what = f"{counted(len(used), 'other cluster')} {'uses' if len(used) == 1 else 'use'} {' and '.join(parts)}"
    states = sorted([(_state(record), record) for record, _ in used], key=lambda each: each[0][0])
    idle = states[0][0][0] == _IDLE
    whose = [
        record.whose(*([since if idle or not state else f"{state} {since}"] if since else []))
        for (_, state, since), record in states[:_NAMED]
    ]
    if rest := len(used) - len(whose):
        whose.append(counted(rest, "other"))
    by = f"{', '.join(whose[:-1])} and {whose[-1]}" if len(whose) > 1 else whose[0]
    if idle:
        return f"{what}, idle: {by}"
    return f"{what}: {by}; calls take longer while {'it computes' if len(used) == 1 else 'they compute'}"


_BUSY, _UNKNOWN, _IDLE = range(3)


def _state(record: Record) -> tuple[int, str, str]:
    """Return whether a cluster computes, in a word, too, and since when."""
    with _ranks_of(record) as ranks:
        if ranks is None:
            return _UNKNOWN, "", ""
        busy = ranks[ranks["task"] != 0]
        if len(busy):
            return _BUSY, "busy", _since(float(busy["since"].min()))
        ended = float(ranks["since"].max()) or record.processes.get("controller", record.owner)[1]
        return _IDLE, "idle", _since(ended)


def _since(moment: float) -> str:
    """Return a moment of the last day by its time, and any other with its date."""
    form = "%H:%M" if time.time() - moment < _DAY else "%Y-%m-%d %H:%M"
    return f"since {time.strftime(form, time.localtime(moment))}"


def call_of(record: Record) -> str:
    """Return the call that the engines of a cluster on this host compute: "idle", or "" if it is not known."""
    with _ranks_of(record) as ranks:
        if ranks is None:
            return ""
        busy = ranks[ranks["task"] != 0]
        if not len(busy):
            return "idle"
        iteration = int(busy["iteration"][0])
        where = f", iteration {iteration}" if iteration else ""
        return f"{bytes(busy['name'][0]).decode()} for {format_seconds(float(busy['total'][0]))}{where}"


@contextlib.contextmanager
def _ranks_of(record: Record) -> Iterator[Any]:
    """Copy what the board of a cluster on this host has of its ranks; None if it is not known. Nothing is written."""
    here = [fact for fact in record.facts if fact.here and Path(fact.board.partition("?")[0]).parts[1:2] == ("proc",)]
    if not here or record.version != __version__:  # whose board may have other fields
        yield None
        return
    try:
        board = Board(SharedBlock.open(here[0].board))
    except (OSError, ValueError):  # it has ended, or a user's record names something else
        yield None
        return
    try:
        yield board.ranks.copy()
    finally:
        board.close()
