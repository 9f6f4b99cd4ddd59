"""The fit that was interrupted last, whatever its estimator was bound to."""

from __future__ import annotations

from typing import Any

from sklearn.exceptions import NotFittedError

from xpulab.deploy.cluster import current_cluster

__all__ = ["interrupted"]


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
