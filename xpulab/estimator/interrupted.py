"""The fit that was interrupted last, whatever its estimator was bound to."""

from __future__ import annotations

import linecache
import traceback
from typing import Any

from sklearn.exceptions import NotFittedError

from xpulab.deploy.cluster import current_cluster

__all__ = ["CallInterrupted", "interrupted"]


class CallInterrupted(KeyboardInterrupt):
    """Ctrl-C ended a call of an estimator. The message says what to type next.

    IPython shows the line of the user's code and this message; the frames of the libraries below it say nothing.
    """

    def _render_traceback_(self) -> list[str]:
        mine = [each for each in traceback.walk_tb(self.__traceback__) if each[0].f_globals["__name__"] == "__main__"]
        where = [f"line {n}: {linecache.getline(frame.f_code.co_filename, n).strip()}" for frame, n in mine[-1:]]
        return [*where, f"KeyboardInterrupt: {self}"]


def interrupted() -> Any:
    """The estimator whose fit was interrupted last on the active cluster; its `resume` goes on with the fit.

    The cluster keeps it, and with it the rows that were passed to `fit`, until it was resumed, another fit is
    interrupted, or the cluster stops.

    Returns
    -------
    Estimator
        With the centres, labels and report of its last iteration.

    Raises
    ------
    NoClusterError
        If no cluster is running.
    NotFittedError
        If there is none.

    Examples
    --------
    >>> KMeans(100).fit(X)  # and then the Stop button   # doctest: +SKIP
    >>> km = xpulab.interrupted().resume()  # doctest: +SKIP
    """
    estimator = current_cluster().interrupted
    if estimator is None:
        raise NotFittedError(
            "no fit that could go on was interrupted on this cluster; a fit can go on once an iteration has ended"
        )
    return estimator
