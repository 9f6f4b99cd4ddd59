"""What a call does if there is no room for all rows: it takes some after the others, or says what draws some."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator

from xpulab.deploy.ranks import Ranks
from xpulab.deploy.tasks.limits import LEAST
from xpulab.estimator.sending import IN_PASSES, demand_of
from xpulab.exceptions import NotEnoughMemoryError
from xpulab.scanning import scanned
from xpulab.sharing.sources import bounds_of

__all__ = ["may_come_in_parts", "or_drawn", "rows_at_once"]

#: Bytes that all engines together have at a time of results that grow with the rows of a file.
AT_ONCE = 512 << 20


def may_come_in_parts(X: Any, task: str) -> bool:
    """Return whether a call with a result for each row may have to take some of the rows after the others.

    These are rows of files, and so many rows of this process that the question takes no time beside the call.
    """
    many = isinstance(X, np.ndarray) and X.nbytes >= LEAST and task not in IN_PASSES
    return many or scanned(X) is not None


def rows_at_once(
    estimator: BaseEstimator, cluster: Ranks, X: Any, result: float, on_engine: float | None = None
) -> int:
    """Return how many rows of a file or an array a call can take at once, with a result of so many bytes here.

    `on_engine` are the bytes that each engine has for a row, if it has them for all rows.

    Raises
    ------
    NotEnoughMemoryError
        If there is no room for a thousandth of the rows, because the result of all rows does not fit.
    """
    n: int = X.shape[0]
    scan = scanned(X)
    sent = scan is None or not scan.files
    rows = n if on_engine is None else min(n, max(1, int(AT_ONCE / (on_engine * cluster.size))))
    of_all: NotEnoughMemoryError | None = None
    while True:
        try:
            cluster.require_room(
                demand_of(estimator, X[:rows], bounds_of(rows, cluster.size), 0, there=False, sent=sent, result=result)
            )
        except NotEnoughMemoryError as error:
            of_all = of_all or error
            if rows <= n // 1000:
                raise of_all from None
            rows = max(1, rows // 2)
        else:
            return max(1, rows if rows == n or of_all is None else rows // 2)


@contextmanager
def or_drawn(parameter: str | None) -> Iterator[None]:
    """Add to an error of too little memory what draws rows, such as "subsample=10_000"; nothing for None."""
    try:
        yield
    except NotEnoughMemoryError as error:
        if parameter is None:
            raise
        raise NotEnoughMemoryError(f"{error}; or have some rows drawn: {parameter}") from None
