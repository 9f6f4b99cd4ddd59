"""Where a call is in a search or a cross-validation of scikit-learn's, which it finds on the stack."""

from __future__ import annotations

import functools
import sys
import threading
import weakref
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any

from xpulab.calls import called
from xpulab.deploy.side_by_side.job import Job
from xpulab.deploy.side_by_side.outcomes import Outcome
from xpulab.report.rendering import summaries
from xpulab.report.searches import Search

__all__ = ["fits_in_turn", "part_of", "running_search", "score_in", "search_progress"]

#: Function of scikit-learn that fits in a loop -> what one fit is, and the number of fits from its variables.
_LOOPS: dict[str, tuple[str, Callable[[Mapping[str, Any]], int]]] = {
    "cross_validate": ("fold", lambda names: names["cv"].get_n_splits()),
    "cross_val_predict": ("fold", lambda names: len(names["splits"])),
    "learning_curve": ("fit", lambda names: len(names["train_test_proportions"])),
    "validation_curve": ("fit", lambda names: names["cv"].get_n_splits() * len(names["param_range"])),
}
_SEARCH = ("fit", "sklearn.model_selection._search")  # function and module of all searches
_RESULTS = ("_get_sequential_output", "joblib.parallel")  # has the result of the latest fit
_NAMES = frozenset(["_fit_and_score", "fit", "cross_val_score", _RESULTS[0], *_LOOPS])

#: The searches that run or ran, by joblib's object that each of them makes for its fits.
_found: weakref.WeakKeyDictionary[Any, Search] = weakref.WeakKeyDictionary()
#: The arguments that name a fit, and say where it is in its search.
_OF_FIT = ("parameters", "train", "test", "candidate_progress", "split_progress")
#: The fits of searches in which joblib makes one after the other, as far as they called xpulab.
_fits: weakref.WeakKeyDictionary[Search, dict[int, Job]] = weakref.WeakKeyDictionary()


def search_progress() -> tuple[str, Search | None]:
    """Return how far the search is that makes this call, and the search; "" and None if none does.

    The first is such as ``"candidate 3 of 12, fold 2 of 5"``. The fit of all rows at the end of a search is the
    ``"refit of the best candidate"``. Of nested searches, the outermost one comes first, and is the search. The stack
    is read up to the cell or the script: outside of a search, this takes two to six microseconds.
    """
    frames = _frames_of(sys._getframe().f_back)
    parts = [part for frame in frames if (part := part_of(frame))]
    if not parts:
        return "", None
    return "; ".join(reversed(parts)), _search_of(frames) or _search_of([*frames, *_frames_of_main_thread()])


def fits_in_turn() -> tuple[Mapping[str, Any], list[Job]]:
    """Return the variables of the search that calls, and its fits so far; nothing unless it fits one after the other.

    The last fit may be running. A search within a call of xpulab is a part of this call.
    """
    frames = _frames_of(sys._getframe().f_back)
    if len(called()) > 1:
        return {}, []
    search, names = _search_of(frames), _names_of_owner(frames)
    noted = {} if search is None else _fits.get(search, {})
    fits = [noted[place] for place in range(len(noted)) if place in noted]
    if "all_out" not in names or len(fits) < len(noted):
        return {}, []
    for fit, value in zip(fits, names["all_out"], strict=False):
        fit.outcome = Outcome([value], None, "", [])
    return names, fits


def running_search() -> tuple[Search | None, Mapping[str, Any]]:
    """Return the search that calls, and the variables of its function; None if no search does."""
    frames = _frames_of(sys._getframe().f_back)
    return _search_of(frames), _names_of_owner(frames)


def _names_of_owner(frames: list[FrameType]) -> Mapping[str, Any]:
    """Return the variables of the outermost function that fits in a loop; empty without one."""
    return next((frame.f_locals for frame in reversed(frames) if _owns(frame)), {})


def _frames_of(frame: FrameType | None) -> list[FrameType]:
    """Return the frames of searches on a stack, the innermost first."""
    found = []
    while frame is not None and (name := frame.f_code.co_name) != "<module>":
        if name in _NAMES and frame.f_globals.get("__name__", "").startswith(("sklearn.", "joblib.")):
            found.append(frame)
        frame = frame.f_back
    return found


def _frames_of_main_thread() -> list[FrameType]:
    """Return the frames of searches in the main thread, which waits for the threads of joblib in which its fits run."""
    main = threading.main_thread().ident
    return [] if main in (None, threading.get_ident()) else _frames_of(sys._current_frames().get(main or 0))


def part_of(frame: FrameType) -> str:
    """Return which part of its search the fit is in a function of scikit-learn's; "" in any other function."""
    name, module = frame.f_code.co_name, frame.f_globals.get("__name__", "")
    if name not in _NAMES or not module.startswith("sklearn.") or (name == "fit" and (name, module) != _SEARCH):
        return ""
    names = frame.f_locals
    if name == "fit":
        return "refit of the best candidate" if "refit_start_time" in names else ""
    if name == "_fit_and_score":
        parts = {"candidate": names.get("candidate_progress"), "fold": names.get("split_progress")}
        return ", ".join(f"{what} {at[0] + 1:,} of {at[1]:,}" for what, at in parts.items() if at is not None)
    if name not in _LOOPS:
        return ""
    at, total = _place_in_loop(frame)
    what = _LOOPS[name][0]
    return (f"{what} {at:,} of {total:,}" if total else f"{what} {at:,}") if at else ""


def _place_in_loop(frame: FrameType) -> tuple[int, int]:
    """Return the number of the fit of a loop, counted from 1, and of all; 0 if they are not known."""
    names = frame.f_locals
    at = getattr(names.get("parallel"), "n_dispatched_tasks", 0)  # joblib's, which fits one after the other
    try:
        return at, _LOOPS[frame.f_code.co_name][1](names)
    except Exception:  # some splitters need the rows to say how many folds there are
        return at, 0


def _search_of(frames: list[FrameType]) -> Search | None:
    """Return the outermost search of these frames, after it has been told where it is."""
    owners = [frame for frame in frames if _owns(frame)]
    if not owners:
        return None
    owner = owners[-1]
    names, name = owner.f_locals, owner.f_code.co_name
    search = _found.get(names["parallel"])
    if search is None:
        called = f"{type(names['self']).__name__}.fit" if name == "fit" else name
        outer = frames[-1].f_code.co_name
        search = _found[names["parallel"]] = Search(outer if outer == "cross_val_score" else called)
    _tell(search, owner, frames[: frames.index(owner)])
    return search


def _owns(frame: FrameType) -> bool:
    """Return whether a frame is that of a function that fits in a loop, and has begun to."""
    name, module = frame.f_code.co_name, frame.f_globals.get("__name__", "")
    is_loop = (name, module) == _SEARCH or (name in _LOOPS and module.startswith("sklearn."))
    return is_loop and frame.f_locals.get("parallel") is not None


def _tell(search: Search, owner: FrameType, inner: list[FrameType]) -> None:
    """Tell a search which of its fits runs, and the score of the one before it."""
    names = owner.f_locals
    if owner.f_code.co_name == "fit":
        search.ask_best = functools.partial(_best_of, weakref.ref(names["self"]))
    if "refit_start_time" in names:
        search.best = search.ask_best()
        search.reach(search.total, search.total)
        return
    results = [frame for frame in inner if (frame.f_code.co_name, frame.f_globals["__name__"]) == _RESULTS]
    score = score_in(results[-1].f_locals.get("res"), names) if results else None
    if owner.f_code.co_name != "fit":
        at, total = _place_in_loop(owner)
        search.reach(max(at - 1, 0), total, score=score)
        return
    if results and "all_out" in names:
        _note_fits(search, names, results[-1].f_locals)
    fits = [frame.f_locals for frame in inner if frame.f_code.co_name == "_fit_and_score"]
    if fits and fits[-1].get("candidate_progress") and fits[-1].get("split_progress"):
        (candidate, candidates), (fold, folds) = fits[-1]["candidate_progress"], fits[-1]["split_progress"]
        given = summaries(fits[-1].get("parameters") or {})
        search.reach(candidate * folds + fold, candidates * folds, candidate, folds, given, score)


def _note_fits(search: Search, names: Mapping[str, Any], loop: Mapping[str, Any]) -> None:
    """Note the fit that runs in a loop of joblib's, and the result of the one before it."""
    noted, ended = _fits.setdefault(search, {}), len(names["all_out"])
    place = ended + names["parallel"].n_completed_tasks
    if place not in noted and "kwargs" in loop:
        # Not the estimator, whose report has the search: the search would live for ever.
        named = {name: value for name, value in loop["kwargs"].items() if name in _OF_FIT}
        noted[place] = Job([(loop["func"], (), named)], lambda _: None)
    before = noted.get(place - 1)
    if before is not None and before.outcome is None and place > ended and "res" in loop:
        before.outcome = Outcome([loop["res"]], None, "", [])


def _best_of(search: Callable[[], Any]) -> tuple[float, Mapping[str, Any]] | None:
    """Return the best score and parameters of scikit-learn's search, if it still exists and has them."""
    found = vars(search() or object)
    return (float(found["best_score_"]), summaries(found["best_params_"])) if "best_score_" in found else None


def score_in(result: Any, names: Mapping[str, Any]) -> float | None:
    """Return the score of a fit of which scikit-learn has this result; None if it has several, or none."""
    scores = result.get("test_scores") if isinstance(result, dict) else None
    if isinstance(scores, dict):
        chosen = next(iter(scores)) if len(scores) == 1 else getattr(names.get("self"), "refit", None)
        scores = scores.get(chosen) if isinstance(chosen, str) else None
    return float(scores) if isinstance(scores, int | float) else None
