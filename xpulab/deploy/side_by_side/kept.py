"""What is left of a search that was interrupted: the candidates that have ended, with which it can go on."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

import numpy as np

from xpulab._sklearn import BaseSearchCV, keep_candidates
from xpulab.advice import to_repeat, to_resume
from xpulab.deploy.side_by_side.job import Job
from xpulab.exceptions import XpulabWarning
from xpulab.report.rendering import counted

__all__ = ["InterruptedSearch", "end_known", "interrupted"]

#: What names a fit of a search: the parameters of its candidate, and the numbers of its rows.
_KEY = ("parameters", "train", "test")
#: The fits that had ended in a search that goes on.
_known: ContextVar[Sequence[Job]] = ContextVar("xpulab_known", default=())


class InterruptedSearch:
    """A search of scikit-learn's that was interrupted.

    Attributes
    ----------
    search : BaseSearchCV
        It has `cv_results_` and `best_params_` of the candidates that had ended.
    """

    def __init__(self, names: Mapping[str, Any], ended: Sequence[Job]) -> None:
        self.search = names["self"]
        self._X, self._y, self._params = names["X"], names["y"], names["params"]
        self._ended = ended

    def resume(self) -> Any:
        """Go on with the fits that had not ended; return the fitted search.

        A fit counts as ended if its parameters and its rows are the same. Give the search and its splitter a
        `random_state`, so that they are.
        """
        token = _known.set(self._ended)
        try:
            return self.search.fit(self._X, self._y, **self._params)
        finally:
            _known.reset(token)

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


def interrupted(cluster: Any, title: str, names: Mapping[str, Any], jobs: Sequence[Job]) -> str:
    """Keep what has ended of interrupted jobs, and return the sentence about them.

    Parameters
    ----------
    cluster : Cluster
        Keeps the search, if these are the jobs of one.
    title : str
        The call.
    names : mapping of str to object
        The variables of the function that has made the jobs.
    jobs : sequence of Job
    """
    ended = [job for job in jobs if job.outcome is not None]
    said = f"{title} was interrupted: {len(ended):,} of {counted(len(jobs), 'job')} had ended"
    if not ended or not isinstance(names.get("self"), BaseSearchCV):
        return f"{said}; to repeat it, {to_repeat()}"
    candidates, more, total = _candidates(names, jobs)
    if candidates or names["all_out"]:
        keep_candidates(names["self"], names, candidates, more)
        warnings.warn(
            f"{title} was interrupted: cv_results_ and best_params_ are those of the "
            f"{counted(len(names['all_candidate_params']) + len(candidates), 'candidate')} that had ended, of {total}",
            XpulabWarning,
            stacklevel=2,
        )
    said = f"{said}; to go on with the others, type: {to_resume().replace('model', 'search')}"
    cluster.keep_interrupted(InterruptedSearch(names, ended), said)
    return said


def _candidates(names: Mapping[str, Any], jobs: Sequence[Job]) -> tuple[list[Any], dict[str, list[Any]], int]:
    """Return the candidates of this round that have ended, what the search notes of them, and the number of all."""
    before, folds = len(names["all_out"]), names["self"].n_splits_
    parts = [jobs[first : first + folds] for first in range(before, len(jobs), folds)]
    ended = {
        place: part for place, part in enumerate(parts) if all(job.outcome and not job.outcome.error for job in part)
    }
    found = [(part[0].calls[0][2]["parameters"], [job.value[0] for job in part]) for part in ended.values()]
    noted = next((frame["more_results"] for frame in _frames() if "more_results" in frame), None) or {}
    more = {name: [values[place] for place in ended] for name, values in noted.items()}
    return found, more, len(names["all_candidate_params"]) + len(parts)


def _frames() -> Iterator[Mapping[str, Any]]:
    """Yield the variables of the functions in which this thread is."""
    frame = sys._getframe().f_back
    while frame is not None:
        if frame.f_code.co_name == "evaluate_candidates":
            yield frame.f_locals
        frame = frame.f_back
