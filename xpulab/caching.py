"""joblib's cache, as in ``Pipeline(memory=folder)``, keeps no rows that are on the engines.

As an argument of a cached function, a handle stands for its rows by its digest. As a result, it is cached as the fitted
estimator that has computed it and the digest of the rows that this got: when a step of a pipeline gets the same rows
again, the engines compute its result again, but nothing is fitted. A handle that no estimator has computed cannot be in
the cache; joblib warns of it, and calls the function each time.
"""

from __future__ import annotations

import copy
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from xpulab.exceptions import HandleError

if TYPE_CHECKING:
    from joblib.numpy_pickle import NumpyPickler
    from sklearn.base import BaseEstimator

__all__ = ["Origin", "register"]

_handles: weakref.WeakValueDictionary[str, Cached] = weakref.WeakValueDictionary()  # by digest


@dataclass(frozen=True)
class Origin:
    """How an estimator has computed rows from other rows on the engines.

    Attributes
    ----------
    estimator : estimator
        The fitted estimator as it was then.
    method : str
    digest : str
        Digest of the rows that the method got.
    """

    estimator: BaseEstimator
    method: str
    digest: str

    @classmethod
    def of(cls, estimator: BaseEstimator, method: str, X: Cached) -> Origin:
        """Return the origin of what a method of an estimator has computed from the handle X."""
        return cls(copy.copy(estimator), "transform" if method.startswith("fit") else method, X.digest)


class Cached(Protocol):
    """What the cache uses of a handle."""

    digest: str
    origin: Origin | None


def register(handle: Cached, digest: str) -> None:
    """Give a handle its digest, by which it can be found, and let joblib know what to do with such handles."""
    handle.digest = digest
    _handles[digest] = handle
    _tell_joblib(type(handle))


def _tell_joblib(kind: type) -> None:
    """Have joblib hash handles by their digest, and write those that an estimator has computed as their origin."""
    from joblib.hashing import Hasher
    from joblib.numpy_pickle import NumpyPickler

    if kind in Hasher.dispatch:
        return

    def write(pickler: NumpyPickler, handle: Cached) -> None:
        origin = handle.origin
        if origin is None:
            handle.__reduce_ex__(pickler.proto)
        pickler.save_reduce(_computed_again, (origin, handle.digest), obj=handle)

    Hasher.dispatch[kind] = lambda hasher, handle: hasher.save(f"{type(handle).__name__} {handle.digest}")
    NumpyPickler.dispatch[kind] = write


def _computed_again(origin: Origin, digest: str) -> Any:
    """Return a handle for the rows of this digest, which the engines compute again."""
    X = _handles.get(origin.digest)
    if X is None:
        raise HandleError(
            f"the result of {type(origin.estimator).__name__}.{origin.method} cannot be computed again, because the "
            "rows that it got are no longer on the engines; send them with cluster.scatter(X), and call it once more"
        )
    handle = getattr(origin.estimator, origin.method)(X)
    register(handle, digest)  # so that the next step of a pipeline knows its rows again
    return handle
