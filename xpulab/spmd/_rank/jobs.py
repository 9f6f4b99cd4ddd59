"""Jobs of joblib on the ranks: each group takes the next one, and the estimators in it compute on the group alone."""

from __future__ import annotations

import contextlib
import functools
import pickle
import pkgutil
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from xpulab.deploy.side_by_side.outcomes import ENDED, Outcome, Warned, claim, keep
from xpulab.sharing.sources import SharedArray
from xpulab.spmd._rank.group import group_of, groups_of
from xpulab.spmd._rank.ranks import RankAlone, ranks

__all__ = ["work"]


def work(
    calls: bytes,
    arrays: Sequence[SharedArray],
    numbers: Sequence[int],
    folder: str,
    n_groups: int,
    around: Sequence[tuple[str, Sequence[Any]]],
) -> None:
    """Take calls that no other group of ranks has taken, until none is left; all ranks call this together.

    Parameters
    ----------
    calls : bytes
        The pickled list of functions, each with its argument.
    arrays : sequence of SharedArray
        The large arrays of the pickle.
    numbers : sequence of int
        Which of the calls are wanted.
    folder : str
        Where ranks note what they take, and leave the outcomes.
    n_groups : int
        Number of groups into which the ranks are divided. The first rank of each makes the calls.
    around : sequence of tuple
        Names of context managers that are open during the calls, and their arguments.
    """
    here, place = ranks(), Path(folder)
    members = next(group for group in groups_of(here.size, n_groups) if here.rank in group)
    if here.rank != members[0]:
        group_of(members).serve()
        return
    jobs: list[Any] = pickle.loads(calls, buffers=[array.open() for array in arrays])
    group = here.alone if len(members) == 1 else group_of(members)
    with contextlib.ExitStack() as open_ones:
        if not isinstance(group, RankAlone):
            open_ones.enter_context(group.leading())
        for name, given in around:
            open_ones.enter_context(pkgutil.resolve_name(name)(*given))
        for number in _taken(place, numbers, here.rank):
            job, jobs[number] = jobs[number], None  # it has what it fits, which may be large
            keep(place, number, group.together("a job", functools.partial(_outcome, *job)))


def _taken(folder: Path, numbers: Sequence[int], rank: int) -> Iterator[int]:
    for number in numbers:
        if (folder / ENDED).exists():
            return
        if claim(folder, number, rank):
            yield number


def _outcome(call: Callable[[Any], object], argument: object) -> Outcome:
    """Call a function, and return its value or its exception, and its warnings."""
    value = error = None
    told = ""
    with warnings.catch_warnings(record=True) as said:
        try:
            value = call(argument)
        except Exception as raised:
            error, told = raised, "".join(traceback.format_exception(raised))
    return Outcome(value, error, told, [Warned(w.message, w.category, w.filename, w.lineno) for w in said])
