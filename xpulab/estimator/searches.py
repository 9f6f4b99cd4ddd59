"""Where a call is in a search or a cross-validation of scikit-learn's, which it finds on the stack."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any

__all__ = ["part_of", "search_progress"]

#: Function of scikit-learn that fits in a loop -> what one fit is, and the number of fits from its variables.
_LOOPS: dict[str, tuple[str, Callable[[Mapping[str, Any]], int]]] = {
    "cross_validate": ("fold", lambda names: names["cv"].get_n_splits()),
    "cross_val_predict": ("fold", lambda names: len(names["splits"])),
    "learning_curve": ("fit", lambda names: len(names["train_test_proportions"])),
    "validation_curve": ("fit", lambda names: names["cv"].get_n_splits() * len(names["param_range"])),
}
_SEARCH = ("fit", "sklearn.model_selection._search")  # function and module of all searches
_NAMES = frozenset(["_fit_and_score", "fit", *_LOOPS])


def search_progress() -> str:
    """Return how far the search is that makes this call: ``"candidate 3 of 12, fold 2 of 5"``; "" if none does.

    The fit of all rows at the end of a search is the ``"refit of the best candidate"``. Of nested searches, the
    outermost one comes first. The stack is read up to the cell or the script: outside of a search, this takes two to
    six microseconds.
    """
    parts, frame = [], sys._getframe().f_back
    while frame is not None and (name := frame.f_code.co_name) != "<module>":
        if name in _NAMES and (part := part_of(frame)):
            parts.append(part)
        frame = frame.f_back
    return "; ".join(reversed(parts))


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
    what, number = _LOOPS[name]
    at = getattr(names.get("parallel"), "n_dispatched_tasks", 0)  # joblib's, which fits one after the other
    try:
        return f"{what} {at:,} of {number(names):,}" if at else ""
    except Exception:  # some splitters need the rows to say how many folds there are
        return f"{what} {at:,}"
