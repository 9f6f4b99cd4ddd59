"""Finds the estimator whose fit was interrupted last, even if no variable holds it."""

from __future__ import annotations

import linecache
import traceback
from typing import Any

from xpulab.deploy.cluster import current_cluster

__all__ = ["CallInterrupted", "interrupted"]


class CallInterrupted(KeyboardInterrupt):
    """Ctrl-C ended a call of an estimator. The message says what to type next.

    IPython shows the line of the user's code and this message, but not the frames of the libraries that it called.
    """

    def _render_traceback_(self) -> list[str]:
        mine = [each for each in traceback.walk_tb(self.__traceback__) if each[0].f_globals["__name__"] == "__main__"]
        where = [f"line {n}: {linecache.getline(frame.f_code.co_filename, n).strip()}" for frame, n in mine[-1:]]
        return [*where, f"KeyboardInterrupt: {self}"]


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
    >>> KMeans(100).fit(X)  # and then the Stop button   # doctest: +SKIP
    >>> km = xpulab.interrupted().resume()  # doctest: +SKIP
    """
    return current_cluster().stopped()
