"""What is left of a search that was interrupted: the candidates that have ended, with which it can go on."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Protocol

import joblib
import numpy as np
from joblib.parallel import ParallelBackendBase

from xpulab._sklearn import folds_of_search, is_search, keep_candidates
from xpulab.advice import to_repeat, to_resume
from xpulab.deploy.side_by_side.job import Job
from xpulab.deploy.side_by_side.outcomes import Outcome, run
from xpulab.deploy.side_by_side.searches import fits_in_turn, running_search
from xpulab.exceptions import CallInterrupted
from xpulab.report.rendering import counted

__all__ = ["InterruptedSearch", "Keeper", "end_known", "interrupted", "search_interrupted"]

_LOG = logging.getLogger("xpulab")

#: What names a fit of a search: the parameters of its candidate, and the numbers of its rows.
_KEY = ("parameters", "train", "test")
#: The fits that had ended in a search that goes on.
_known: ContextVar[Sequence[Job]] = ContextVar("xpulab_known", default=())


class Keeper(Protocol):
    """What keeps an interrupted search: a cluster."""

    interrupted: Any

    def keep_interrupted(self, estimator: Any, said: str = "") -> None:
        """Keep what was interrupted, and can go on."""


class InterruptedSearch:
    """A search of scikit-learn's that was interrupted.

    Attributes
    ----------
    search : BaseSearchCV
        It has `cv_results_` and `best_params_` of the candidates that had ended.
    """

    def __init__(self, cluster: Keeper, names: Mapping[str, Any], ended: Sequence[Job], n_groups: int) -> None:
        self._cluster, self.search = cluster, names["self"]
        self._X, self._y, self._params = names["X"], names["y"], names["params"]
        self._ended, self._n_groups = ended, n_groups

    def resume(self) -> Any:
        """Go on with the fits that had not ended, side by side if they were; return the fitted search.

        A fit counts as ended if its parameters and its rows are the same. Give the search and its splitter a
        `random_state`, so that they are.
        """
        backend = InTurn(self._cluster) if self._n_groups == 1 else "xpulab"
        token = _known.set(self._ended)
        try:
            with joblib.parallel_config(backend, n_jobs=self._n_groups):
                found = self.search.fit(self._X, self._y, **self._params)
        finally:
            _known.reset(token)
        if self._cluster.interrupted is self:
            self._cluster.interrupted = None
        return found

    def __repr__(self) -> str:
        return f"InterruptedSearch({self.search!r}, {counted(len(self._ended), 'fit')} ended)"


def end_known(jobs: Sequence[Job]) -> None:
    """End jobs with the outcomes that they had in the search that goes on."""
    known = list(_known.get())
    for job in jobs if known else ():
        same = next((each for each in known if _is_same(each, job)), None)
        if same is not None and same.outcome is not None and job.outcome is None:
            known.remove(same)
            job.end(same.outcome)


def _is_same(first: Job, second: Job) -> bool:
    if len(first.calls) != len(second.calls):
        return False
    return all(
        _KEY[0] in one[2] and all(_equal(one[2].get(name), other[2].get(name)) for name in _KEY)
        for one, other in zip(first.calls, second.calls, strict=True)
    )


def _equal(one: Any, other: Any) -> bool:
    if one is other:
        return True
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_equal(one[name], other[name]) for name in one)
    with contextlib.suppress(Exception):  # of a parameter that cannot be compared
        return type(one) is type(other) and bool(np.all(one == other)) and np.shape(one) == np.shape(other)
    return False


class InTurn(ParallelBackendBase):  # type: ignore[misc]
    """joblib's backend of a search that goes on: each fit that has not ended is made here, on all engines.

    Parameters
    ----------
    cluster : Keeper
        Keeps the search if it is interrupted again.
    **settings : Any
        As joblib's.
    """

    def __init__(self, cluster: Keeper, **settings: Any) -> None:
        super().__init__(**settings)
        self._cluster = cluster

    def effective_n_jobs(self, n_jobs: int | None) -> int:
        """Return 2: if it were 1, joblib would make all fits itself."""
        return 2

    def configure(self, n_jobs: int = 1, parallel: Any = None, **settings: Any) -> int:
        """Prepare for the fits of a search."""
        if parallel is not None:
            parallel.pre_dispatch = "all"
        self._jobs: list[Job] = []
        return int(super().configure(n_jobs, parallel, **settings))

    def submit(self, func: Any, callback: Callable[[object], object]) -> Job:
        """Add a fit, which may have ended."""
        self._jobs.append(Job(func.items, callback))
        end_known(self._jobs[-1:])
        return self._jobs[-1]

    def retrieve_result(self, out: Job, timeout: float | None = None) -> Any:
        """Make a fit that has not ended, and return its result."""
        if out.outcome is None:
            try:
                out.end(Outcome(run(out.calls), None, "", []))
            except KeyboardInterrupt:
                search, names = running_search()
                title = "the search" if search is None else search.title
                raise CallInterrupted(interrupted(self._cluster, title, names, self._jobs, 1)) from None
        return out.value


def search_interrupted(cluster: Keeper) -> str:
    """Keep what has ended of the search that calls, and fits one after the other; return the sentence about it.

    It is empty if no search calls, or if no fit has ended.
    """
    names, fits = fits_in_turn()
    if not any(fit.outcome for fit in fits):
        return ""
    return interrupted(cluster, f"{type(names['self']).__name__}.fit", names, fits, 1)


def interrupted(cluster: Keeper, title: str, names: Mapping[str, Any], jobs: Sequence[Job], n_groups: int) -> str:
    """Keep what has ended of interrupted jobs, and return the sentence about them.

    Parameters
    ----------
    cluster : Keeper
        Keeps the search, if these are the jobs of one.
    title : str
        The call.
    names : mapping of str to object
        The variables of the function of scikit-learn that has made the jobs; empty without one.
    jobs : sequence of Job
        The fits of all rounds of a search, as far as they are known.
    n_groups : int
        Number of groups of engines that do them.
    """
    ended = [job for job in jobs if job.outcome is not None]
    if not is_search(names.get("self")):
        return f"{title} was interrupted: {len(ended):,} of {counted(len(jobs), 'job')} had ended; {to_repeat()}"
    known = names["all_candidate_params"]
    candidates, more, total = _candidates(names, jobs)
    said = f"{title} was interrupted: {len(ended):,} of {counted(total * folds_of_search(names), 'fit')} had ended"
    if not ended:
        return f"{said}; {to_repeat()}"
    if (candidates or known) and _are_kept(names, candidates, more):
        n = counted(len(known) + len(candidates), "candidate")
        said += f", and cv_results_ and best_params_ are those of {n} of {total}"
    said = f"{said}; to go on with the others, type: {to_resume().replace('model', 'search')}"
    cluster.keep_interrupted(InterruptedSearch(cluster, names, ended, n_groups), said)
    return said


def _are_kept(names: Mapping[str, Any], candidates: list[Any], more: Mapping[str, list[Any]]) -> bool:
    """Give the search its results so far; return False if its class makes other ones, after a warning in the log."""
    try:
        keep_candidates(names["self"], names, candidates, more)
    except Exception:  # an interrupt must remain one
        _LOG.warning("the results of the candidates that had ended could not be kept", exc_info=True)
        return False
    return True


def _candidates(names: Mapping[str, Any], jobs: Sequence[Job]) -> tuple[list[Any], dict[str, list[Any]], int]:
    """Return the candidates of this round that have ended, what the search notes of them, and the number of all."""
    before, folds, total = len(names["all_out"]), folds_of_search(names), len(names["all_candidate_params"])
    of_round: dict[int, dict[int, Job]] = {}
    for job in jobs[before:]:
        named = job.calls[0][2]
        of_round.setdefault(named["candidate_progress"][0], {})[named["split_progress"][0]] = job
        total = len(names["all_candidate_params"]) + named["candidate_progress"][1]
    ended = {
        place: [parts[fold] for fold in range(folds)]
        for place, parts in sorted(of_round.items())
        if len(parts) == folds and all(job.outcome and not job.outcome.error for job in parts.values())
    }
    found = [(part[0].calls[0][2]["parameters"], [job.value[0] for job in part]) for part in ended.values()]
    noted = _noted_beside()
    return found, {name: [values[place] for place in ended] for name, values in noted.items()}, total


def _noted_beside() -> Mapping[str, Any]:
    """Return what the search that calls notes of each candidate beside its results, as a halving search does."""
    frame = sys._getframe().f_back
    while frame is not None and frame.f_code.co_name != "evaluate_candidates":
        frame = frame.f_back
    return (frame.f_locals["more_results"] if frame is not None else None) or {}
