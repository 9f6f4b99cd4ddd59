"""What an interrupted call says, and the estimator whose fit was interrupted last, even if no variable holds it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from sklearn.base import BaseEstimator

from xpulab._sklearn import BaseSearchCV
from xpulab.advice import left_of, made, of_interrupt, to_resume
from xpulab.deploy.cluster import current_cluster
from xpulab.deploy.tasks.resuming import NothingToResumeError
from xpulab.exceptions import CallInterrupted

__all__ = ["CallInterrupted", "NothingToResumeError", "interrupted", "sentence"]


def sentence(estimator: Any, name: str, method: str, at: str = "", resumes: bool = False) -> str:
    """Return the sentence about an interrupted call: where it was, what is left of it, and what to type.

    Parameters
    ----------
    estimator : object
        Its method or function was called.
    name, method : str
        Their names, such as "KMeans" and "fit".
    at : str
        Where the call was: ``" in iteration 7"``.
    resumes : bool
        Whether `interrupted` returns the estimator, whose fit can go on.
    """
    call, outer = f"{name}.{method}", _outer(estimator)
    if outer is not None:
        where, who = outer
        alone = f". To go on with this {name} alone, type: {to_resume()}" if resumes else ""
        return of_interrupt(call, f"{at}, in {where}; {who} itself starts anew") + alone
    if resumes:
        return f"{made(call)} was interrupted{at}; to go on, type: {to_resume()}"
    whose, _, of = made(call).rpartition(".")
    if whose != name and "fit" in of:  # a fit that uses this estimator
        return of_interrupt(call, left_of(of))
    return of_interrupt(call, f"{at}{left_of(method)}")


def _outer(estimator: Any) -> tuple[str, str] | None:
    """Return in which part of which call of scikit-learn's, such as a search, this process calls the estimator.

    Of several nested calls, the outermost one is named, because the user has made it; None if there is none.
    """
    found, part, frame = None, "", sys._getframe()
    while (frame := frame.f_back) is not None:  # type: ignore[assignment]
        module, name = frame.f_globals.get("__name__", ""), frame.f_code.co_name
        if name == "_fit_and_score" and not part:
            part = _part(frame.f_locals)
        owner = frame.f_locals.get("self")
        if module.startswith("xpulab.") and isinstance(owner, BaseEstimator) and owner is not estimator:
            found, part = None, ""  # scikit-learn's call is a part of this one
        if module.startswith("xpulab.") or name.startswith("_"):
            continue
        if isinstance(owner, BaseSearchCV):
            found = (part or f"{type(owner).__name__}.{name}", "the search")
        elif isinstance(owner, BaseEstimator) and not isinstance(estimator, type(owner)):
            found = (part or f"{type(owner).__name__}.{name}", f"the {type(owner).__name__}")
        elif module.startswith("sklearn.") and callable(vars(sys.modules[module]).get(name)):
            found = (part or name, name)
    return found


def _part(names: Mapping[str, Any]) -> str:
    """Return which part of a search, or of a cross-validation, a fit is; `names` are scikit-learn's variables."""
    candidate, fold = names.get("candidate_progress"), names.get("split_progress")
    if candidate is None or fold is None:
        return "one fold"
    return f"candidate {candidate[0] + 1}, fold {fold[0] + 1} of the search"


def interrupted() -> Any:
    """Return the estimator whose fit was interrupted last on the active cluster; its method `resume` continues it.

    The cluster keeps the estimator and the rows that were passed to `fit` until the fit is resumed, another fit is
    interrupted, or the cluster stops.

    Returns
    -------
    sklearn.base.BaseEstimator
        The estimator, with the centres, labels and report of its last iteration.

    Raises
    ------
    NoClusterError
        If no cluster is running.
    NotFittedError
        If no fit on this cluster was interrupted after an iteration had ended.

    Examples
    --------
    After Ctrl-C in ``KMeans(100).fit(X)``, which no variable holds::

        model = xpulab.interrupted().resume()
    """
    return current_cluster().stopped()
