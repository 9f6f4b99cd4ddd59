"""Mixtures of normal distributions over the rows of all ranks, by the EM algorithm.

Each rank has a block of rows. An iteration is one pass over the rows and one reduction of its sums, which also carries
the request to stop. From these sums all ranks compute the same parameters, and take the same decisions.

References
----------
.. [1] A. P. Dempster, N. M. Laird, D. B. Rubin, "Maximum likelihood from incomplete data via the EM algorithm", Journal
   of the Royal Statistical Society B 39 (1977), 1-38.
.. [2] scikit-learn's ``sklearn/mixture/_base.py``: the steps, their order, and the order of random draws follow it.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from xpulab.engine.algorithms.clustering import kmeans
from xpulab.engine.algorithms.clustering import problem as clustering
from xpulab.engine.algorithms.clustering.starts import start
from xpulab.engine.algorithms.gaussians import Parameters, densities_of, is_full, parameters_of
from xpulab.engine.algorithms.passes import rough_mean
from xpulab.engine.comm import Interrupted
from xpulab.engine.dataset import Data, write_block
from xpulab.engine.engine import Task
from xpulab.engine.registry import task
from xpulab.engine.streaming import expect_passes
from xpulab.kernels.kmeans.choice import kernels_for
from xpulab.kernels.mixture import Sums, expectations, sums_of_densities, sums_of_shares
from xpulab.kernels.products import gram
from xpulab.kernels.rows import Rows
from xpulab.kernels.streamed import StreamedRows, parts_of
from xpulab.sharing.answers import Total
from xpulab.sharing.board import RUNS
from xpulab.sharing.sources import Source, Target

__all__ = ["SHARES", "Block", "Given", "Outcome", "Problem", "first_parameters", "fit"]

_SHOWN = 2e-3  # seconds between two updates of the board; no view reads it more often
_KEEP = 0.05  # seconds between two checkpoints
SHARES = 1 << 16  # rows whose given responsibilities are on the device at a time


@dataclass(frozen=True)
class Given:
    """What the user has given of the first parameters; None for what is computed."""

    weights: np.ndarray | None = None
    means: np.ndarray | None = None
    covariances: np.ndarray | None = None
    factors: np.ndarray | None = None

    def whole(self) -> Parameters | None:
        """Return the first parameters, if nothing has to be computed."""
        if self.weights is None or self.means is None or self.covariances is None or self.factors is None:
            return None
        return Parameters(self.weights, self.means, self.covariances, self.factors)


@dataclass
class Outcome:
    """The result of a run. All values are equal on all ranks."""

    parameters: Parameters
    lower_bounds: list[float]
    converged: bool

    @property
    def lower_bound(self) -> float:
        """The lower bound of the last iteration; minus infinity before the first one."""
        return self.lower_bounds[-1] if self.lower_bounds else -np.inf

    def packed(self) -> dict[str, Any]:
        """Return the values as plain ones, which the notebook can read."""
        return {
            "parameters": vars(self.parameters),
            "lower_bounds": np.array(self.lower_bounds),
            "converged": self.converged,
        }

    @classmethod
    def unpacked(cls, packed: dict[str, Any]) -> Outcome:
        """Return the outcome that was packed."""
        return cls(Parameters(**packed["parameters"]), packed["lower_bounds"].tolist(), packed["converged"])


class Block(Protocol):
    """This rank's rows, where those of all ranks begin, and their number; `Data` is one."""

    bounds: list[int]
    n_samples: int

    @property
    def block(self) -> Rows | StreamedRows:
        """This rank's rows on its device, or their parts."""


class Problem:
    """The rows of all ranks as one data set.

    Parameters
    ----------
    task : Task
    data : Block
    covariance_type : {"full", "tied", "diag", "spherical"}
    reg_covar : float

    Attributes
    ----------
    history : list of tuple
        Run, iteration, lower bound, and seconds since the start, for each iteration.
    tuning : tuple of (int, float)
        As for k-means.
    """

    def __init__(self, task: Task, data: Block, covariance_type: str, reg_covar: float) -> None:
        self.task, self.comm, self.data, self.rows = task, task.comm, data, data.block
        self.covariance_type, self.reg_covar = covariance_type, reg_covar
        self.first = data.bounds[task.comm.rank]
        self.history: list[tuple[int, int, float, float]] = []
        self.tuning = (0, 0.0)
        self._started = time.perf_counter()
        self._shown = 0.0

    def step(self, parameters: Parameters) -> tuple[Parameters, float, bool]:
        """Run both steps; return new parameters, the lower bound of the old ones, and whether to stop."""
        densities = densities_of(parameters, self.covariance_type)
        mine = functools.reduce(_sum, (sums_of_densities(part, densities) for _, part in parts_of(self.rows)))
        sums, cancelled = self._reduced(mine)
        found = self.maximised(sums)
        found = dataclasses.replace(found, weights=found.weights / found.weights.sum())
        return found, sums.likelihood / self.data.n_samples, cancelled

    def maximised(self, sums: Sums, *more: Any) -> Parameters:
        """Compute the parameters from the sums over all rows, as `parameters_of`."""
        return parameters_of(sums, self.covariance_type, self.reg_covar, self.rows.dtype, *more)

    def of_shares(self, parts: Iterator[np.ndarray], centers: np.ndarray) -> Sums:
        """Sum over the rows of all ranks for given responsibilities.

        Parameters
        ----------
        parts : iterator of numpy.ndarray of shape (m, n_components)
            The responsibilities of this rank's next m rows, in the dtype of the rows.
        centers : numpy.ndarray of shape (n_components, n_features)
            Points near the means, from which the sums are computed.
        """
        full, rows, following = is_full(self.covariance_type), self.rows, _pulled(parts)
        mine = _nothing(rows, centers, full)
        for _, some in parts_of(rows):
            for first in range(0, some.n_samples, SHARES):
                part = some.part(first, min(SHARES, some.n_samples - first))
                shares = Rows.upload(rows.device, following(part.n_samples))
                mine = _sum(mine, sums_of_shares(part, shares, centers, full))
        for _ in parts:  # they draw numbers for the rows of later ranks, too
            pass
        sums, cancelled = self._reduced(mine)
        if cancelled:
            raise Interrupted
        return sums

    def of_rows(self, points: np.ndarray) -> tuple[Sums, np.ndarray | None]:
        """Return the sums if each component has one row; and for a tied covariance the products of all other rows."""
        centers = points.astype(np.float64)
        nothing = _nothing(self.rows, points, is_full(self.covariance_type))
        sums = dataclasses.replace(nothing, weight=np.ones(len(points)))
        if self.covariance_type != "tied":
            return sums, None
        shift = rough_mean(self.task, self.rows)
        mine = sum(np.vstack(gram(part, shift)) for _, part in parts_of(self.rows))
        every = self.comm.allreduce(np.asarray(mine))
        shift = shift.astype(np.float64)
        cross = np.outer(shift, every[-1])
        whole = every[:-1] + cross + cross.T + self.data.n_samples * np.outer(shift, shift)
        return sums, whole - centers.T @ centers

    def take(self, index: np.ndarray) -> np.ndarray:
        """Return, on every rank, the rows with these indices among all rows: (n, n_features)."""
        mine = (index >= self.first) & (index < self.first + self.rows.n_samples)
        found = np.zeros((len(index), self.rows.n_features), self.rows.dtype)
        found[mine] = kernels_for(self.rows).take(self.rows, index[mine] - self.first)
        return self.comm.allreduce(found)  # exactly one rank has each row, and the other ranks add zeros

    def note(self, run: int, iteration: int, lower_bound: float) -> None:
        """Add an iteration to the history, and show it on the board."""
        now = time.perf_counter()
        self.history.append((run, iteration, lower_bound, now - self._started))
        self.task.engine.record["lengths"][(run - 1) % RUNS] = iteration
        self.task.note_iteration(run, iteration)
        if iteration == 1 or now - self._shown > _SHOWN:
            self._shown = now
            self.task.show(run=run, iteration=iteration, metrics=(lower_bound,))

    def _reduced(self, mine: Sums) -> tuple[Sums, bool]:
        """Add up the sums of all ranks, and the requests to stop."""
        k, shape = len(mine.weight), mine.second.shape
        facts = np.array([mine.likelihood, self.task.cancelled()], np.float64)
        flat = [mine.weight, mine.first.ravel(), mine.second.ravel(), facts]
        every = self.comm.allreduce(np.concatenate(flat, dtype=np.float64))
        cuts = np.cumsum([k, mine.first.size, mine.second.size])
        weight, first, second, (likelihood, cancelled) = np.split(every, cuts)
        sums = Sums(float(likelihood), mine.centers, weight, first.reshape(mine.first.shape), second.reshape(shape))
        return sums, bool(cancelled)


def _pulled(parts: Iterator[np.ndarray]) -> Callable[[int], np.ndarray]:
    """Return a function that returns the next rows, so many, of parts of any sizes."""
    rest = np.empty((0, 0))

    def following(n: int) -> np.ndarray:
        nonlocal rest
        while len(rest) < n:
            rest = np.concatenate([rest, next(parts)]) if len(rest) else next(parts)
        found, rest = rest[:n], rest[n:]
        return found

    return following


def _nothing(rows: Rows | StreamedRows, centers: np.ndarray, full: bool) -> Sums:
    """Return the sums over no rows."""
    k, d = centers.shape
    middle = centers.astype(rows.dtype).astype(np.float64)
    return Sums(0.0, middle, np.zeros(k), np.zeros((k, d)), np.zeros((k, d, d) if full else (k, d)))


def _sum(a: Sums, b: Sums) -> Sums:
    """Add sums about the same centers."""
    return Sums(a.likelihood + b.likelihood, a.centers, a.weight + b.weight, a.first + b.first, a.second + b.second)


class _Start(clustering.Problem):
    """K-means that chooses the first responsibilities. The board shows its iterations as words."""

    def note_several(self, run: int, done: int, course: Sequence[tuple[float, float]], began: float) -> None:
        """Show the last iteration on the board."""
        now = time.perf_counter()
        if now - self._shown > _SHOWN:
            self._shown = now
            self.task.show(doing=f"choosing the first means: iteration {done + len(course)} of k-means")

    def expect_passes(self, n: int) -> None:
        """Show nothing, because the mixture makes other passes afterwards."""


_Begin = tuple[Sums, "np.ndarray | None"]  # arguments of `Problem.maximised`


def _kmeans_start(problem: Problem, n_components: int, random: np.random.RandomState) -> _Begin:
    clusters = _Start(problem.task, problem.rows, problem.data.bounds, None)
    best = kmeans.fit(clusters, "k-means++", n_components, n_init=1, max_iter=300, tol=1e-4, random=random)
    problem.tuning = (problem.tuning[0] + clusters.tuning[0], problem.tuning[1] + clusters.tuning[1])
    n, eye = problem.rows.n_samples, np.eye(n_components, dtype=problem.rows.dtype)
    labels = (clusters.kernels.labels_on_cpu(best.labels, min(i + SHARES, n), i) for i in range(0, n, SHARES))
    return problem.of_shares((eye[each] for each in labels), clusters.outward(best.centers + clusters.shift)), None


def _random_start(problem: Problem, n_components: int, random: np.random.RandomState) -> _Begin:
    def parts() -> Iterator[np.ndarray]:
        """Draw the numbers of all rows, as scikit-learn does, and yield those of this rank's rows."""
        bounds = [0, problem.first, problem.first + problem.rows.n_samples, problem.data.n_samples]
        for place, (begin, end) in enumerate(itertools.pairwise(bounds)):
            for i in range(begin, end, SHARES):
                drawn = random.uniform(size=(min(SHARES, end - i), n_components))
                if place == 1:
                    shares = drawn.astype(problem.rows.dtype)
                    yield shares / shares.sum(axis=1)[:, None]

    middle = rough_mean(problem.task, problem.rows)
    return problem.of_shares(parts(), np.repeat(middle[None], n_components, axis=0)), None


def _rows_start(problem: Problem, n_components: int, random: np.random.RandomState) -> _Begin:
    return problem.of_rows(problem.take(random.choice(problem.data.n_samples, n_components, replace=False)))


def _plusplus_start(problem: Problem, n_components: int, random: np.random.RandomState) -> _Begin:
    clusters = _Start(problem.task, problem.rows, problem.data.bounds, None)
    first = start(clusters, "k-means++", n_components, random)
    return problem.of_rows(clusters.outward(first + clusters.shift))


_STARTS: dict[str, Callable[..., _Begin]] = {
    "kmeans": _kmeans_start,
    "random": _random_start,
    "random_from_data": _rows_start,
    "k-means++": _plusplus_start,
}


def first_parameters(
    problem: Problem, init_params: str, n_components: int, given: Given, random: np.random.RandomState
) -> Parameters:
    """Return the first parameters of a run.

    Raises
    ------
    Interrupted
        On all ranks together, if the task was asked to stop.
    ValueError
        If a covariance is not positive definite.
    """
    if (whole := given.whole()) is not None:
        return whole
    problem.task.show(doing="choosing the first means")
    try:
        begun = _STARTS[init_params](problem, n_components, random)
    except Interrupted:
        raise Interrupted from None  # the state of k-means is no state of this task
    found = problem.maximised(*begun, given.factors)
    return Parameters(
        found.weights / problem.data.n_samples if given.weights is None else given.weights,
        found.means if given.means is None else given.means,
        found.covariances if given.covariances is None else given.covariances,
        found.factors,
    )


def fit(
    problem: Problem,
    init_params: str,
    n_components: int,
    n_init: int,
    max_iter: int,
    tol: float,
    given: Given,
    before: float,
    random: np.random.RandomState,
    resume: dict[str, Any] | None = None,
    keep: Callable[[dict[str, Any]], None] = lambda state: None,
) -> Outcome:
    """Run the EM algorithm `n_init` times, and return the run with the highest lower bound, as scikit-learn does.

    Parameters
    ----------
    problem : Problem
    init_params : {"kmeans", "k-means++", "random", "random_from_data"}
    n_components, n_init, max_iter : int
    tol : float
        A run has converged if its lower bound changes by less.
    given : Given
    before : float
        The lower bound before the first iteration: minus infinity, or that of the fit that this one continues.
    random : numpy.random.RandomState
    resume : dict, optional
        A state that `keep` got in a fit of the same rows with the same parameters. This fit continues from the state.
    keep : callable, optional
        Called from time to time with the state of the fit: ``run`` and ``iteration`` (the numbers of runs and
        iterations that have ended), the ``parameters`` and ``lower_bounds`` of the run, the ``best`` run before it, and
        ``random``, the state of the generator.

    Returns
    -------
    Outcome

    Raises
    ------
    Interrupted
        On all ranks together, if the task was asked to stop, with the ``state`` after the last iteration.
    ValueError
        If a covariance is not positive definite.
    """
    best: Outcome | None = None
    first = 0
    if resume:
        first, best = resume["run"], resume["best"] and Outcome.unpacked(resume["best"])
        random.set_state(resume["random"])
    for run in range(first, n_init):
        if resume and run == first:
            outcome = Outcome.unpacked(resume)
        else:
            outcome = Outcome(first_parameters(problem, init_params, n_components, given, random), [], False)
        if run + 1 == n_init:
            expect_passes(problem.task, max_iter - len(outcome.lower_bounds) + 1)
        state = {"run": run, "best": best and best.packed(), "random": random.get_state()}
        _continue(problem, outcome, max_iter, tol, before, state, keep)
        if best is None or outcome.lower_bound > best.lower_bound or best.lower_bound == -np.inf:
            best = outcome
    assert best is not None
    return best


def _continue(
    problem: Problem,
    outcome: Outcome,
    max_iter: int,
    tol: float,
    before: float,
    state: dict[str, Any],
    keep: Callable[[dict[str, Any]], None],
) -> None:
    """Continue a run until it converges; changes its outcome."""
    lower_bounds, last = outcome.lower_bounds, None
    kept = time.perf_counter()
    for iteration in range(len(lower_bounds) + 1, max_iter + 1):
        outcome.parameters, lower_bound, cancelled = problem.step(outcome.parameters)
        change = lower_bound - (lower_bounds[-1] if lower_bounds else before)
        lower_bounds.append(lower_bound)
        problem.note(state["run"] + 1, iteration, lower_bound)
        now = {**state, "iteration": iteration, **outcome.packed()}
        if cancelled:
            raise Interrupted({"state": now})
        if abs(change) < tol:
            outcome.converged = True
            break
        if time.perf_counter() - kept > _KEEP:
            keep(now)
            kept = time.perf_counter()
        last = now
    if last is not None:
        keep(last)  # if the start of the next run is interrupted, the fit is resumed at the end of this run


@task("GaussianMixture.fit", metrics=("lower_bound",))
def _fit(
    task: Task,
    source: Source,
    weights: None,
    covariance_type: str,
    reg_covar: float,
    given: dict[str, Any],
    random: Any,
    checkpoint: str,
    target: Target | None = None,
    **arguments: Any,
) -> dict[str, Any]:
    """Fit a mixture; write the labels if there is a `target`."""
    data = Data(task, source)
    problem = Problem(task, data, covariance_type, reg_covar)
    data.require_finite()
    generator = np.random.RandomState()
    generator.set_state(random)
    # Keep the shared memory open, because the notebook may end before the fit does.
    with task.checkpoint(checkpoint) if task.comm.rank == 0 else nullcontext() as kept, _held(target) as target:
        keep = kept.write if kept is not None else lambda state: None
        try:
            best = fit(problem, random=generator, given=Given(**given), keep=keep, **arguments)
        except Interrupted as interrupted:
            interrupted.result["history"] = problem.history
            raise
        if target is not None:
            found = _LOOK["labels"](_tables(problem.rows, best.parameters, covariance_type))
            write_block(task, target, data.bounds, found)
    return {
        **best.packed(),
        "history": problem.history,
        "random": generator.get_state(),
        "rows": data.n_own,
        "tuning": problem.tuning,
    }


def _held(target: Target | None) -> Any:
    return nullcontext() if target is None else target.held_open()


def _tables(rows: Rows | StreamedRows, parameters: Parameters, covariance_type: str) -> Iterator[np.ndarray]:
    densities = densities_of(parameters, covariance_type)
    for _, part in parts_of(rows):
        yield from expectations(part, densities)


#: What a method returns -> its entries in parts of the result of `expectations`.
_LOOK: dict[str, Callable[[Iterator[np.ndarray]], Iterator[np.ndarray]]] = {
    "labels": lambda tables: (table[:, :-1].argmax(axis=1) for table in tables),
    "shares": lambda tables: (table[:, :-1] for table in tables),
    "logarithms": lambda tables: (table[:, -1] for table in tables),
}


@task("GaussianMixture.predict")
def _predict(
    task: Task,
    source: Source,
    weights: None,
    parameters: dict[str, Any],
    covariance_type: str,
    kind: str,
    target: Target | None = None,
) -> Total:
    """Write the "labels", the "shares" or the "logarithms" of the rows' densities; sum the latter without a target."""
    data = Data(task, source)
    found = _LOOK[kind](_tables(data.block, Parameters(**parameters), covariance_type))
    if target is not None:
        write_block(task, target, data.bounds, (np.ascontiguousarray(part) for part in found))
        return {"rows": data.n_own}
    mine = sum((float(part.sum(dtype=np.float64)) for part in found), 0.0)  # a float also without rows
    data.require_finite()
    return {"rows": data.n_own, "total": float(task.comm.allreduce(np.array([mine]))[0])}
