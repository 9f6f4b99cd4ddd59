"""What is told of jobs while they run: how many have ended, which run, and of a search the best score so far."""

from __future__ import annotations

import math
from collections.abc import Sequence

from xpulab.deploy.plan.probe import core_ranges
from xpulab.deploy.side_by_side.job import Job
from xpulab.deploy.side_by_side.searches import running_search, score_in
from xpulab.report.progress import TaskReport
from xpulab.report.rendering import counted, format_seconds, summaries

__all__ = ["Progress"]


class Progress:
    """The report of jobs.

    Parameters
    ----------
    jobs : sequence of Job
    size, n_groups : int
        Number of engines, and of groups of them.

    Attributes
    ----------
    title : str
        The call of which they are the jobs, such as ``"GridSearchCV.fit"``.
    report : TaskReport
    names : mapping of str to object
        The variables of the function of scikit-learn that calls; empty without one.
    """

    def __init__(self, jobs: Sequence[Job], size: int, n_groups: int) -> None:
        self._jobs = {place: job for place, job in enumerate(jobs) if job.outcome is None}
        self._search, self.names = running_search()
        self.title = "joblib.Parallel" if self._search is None else self._search.title
        what = "job" if self._search is None else "fit"
        n = len(self._jobs)
        groups = f" in {n_groups} groups" if n_groups < size else ""
        self.report = TaskReport(f"{self.title}, {counted(n, what)} on {counted(size, 'engine')}{groups}", n)
        self._told: set[int] = set()
        self._began: float | None = None  # seconds after which the first job ran

    def tell(self, running: set[int]) -> None:
        """Bring the report up to date. `running` has the places of the jobs that run."""
        if running and self._began is None:
            self._began = self.report.elapsed
        for place, job in self._jobs.items():
            if place not in self._told and job.outcome is not None:
                self._told.add(place)
                self._note(job)
        self.report.done = len(self._told)
        if self._search is not None:
            self._search.reach(self.report.done, len(self._jobs))
        parts = [_parts([self._jobs[place] for place in running]), self._best, self._remaining]
        if not running and not self._told:
            parts.insert(0, "the engines import what the jobs need")
        self.report.message = "; ".join(filter(None, parts))

    def _note(self, job: Job) -> None:
        """Tell the search of the score of a fit that has ended."""
        if self._search is None or job.outcome is None or not isinstance(job.outcome.value, list):
            return
        for (_, _, named), value in zip(job.calls, job.outcome.value, strict=True):
            score, at = score_in(value, self.names), named.get("candidate_progress")
            if score is not None:
                folds = named["split_progress"][1] if at else 1
                self._search.score(score, at[0] if at else None, folds, summaries(named.get("parameters") or {}))

    @property
    def _best(self) -> str:
        if self._search is None or not self._search.result:
            return ""
        return f"best {self._search.result}" if self._search.best and self._search.best[1] else self._search.result

    @property
    def _remaining(self) -> str:
        ended, left = len(self._told), len(self._jobs) - len(self._told)
        if ended < 2 or not left or self._began is None:
            return ""
        return f"about {format_seconds(math.ceil((self.report.elapsed - self._began) / ended * left))} left"


def _parts(jobs: Sequence[Job]) -> str:
    """Return which candidates, or which folds, these jobs are; empty if they are none."""
    for what, name in (("candidate", "candidate_progress"), ("fold", "split_progress")):
        places = [place for job in jobs if (place := job.calls[0][2].get(name))]
        if places:
            numbers = sorted({place[0] + 1 for place in places})
            return f"{what if len(numbers) == 1 else f'{what}s'} {core_ranges(numbers)} of {places[0][1]:,}"
    return ""
