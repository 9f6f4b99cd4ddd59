"""The folds of a cross-validation: the groups of rows whose sums the engines compute, and the sums of each fold."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.model_selection import check_cv

from xpulab.checks import ONE_AT_A_TIME
from xpulab.data import ShardedArray
from xpulab.linear_model._path import Sums, without

__all__ = ["folds_of", "groups_of", "splits_of"]


def splits_of(
    cv: Any, n_samples: int, y: Any, classifier: bool = False, **asked: Any
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return the splits of the rows by a splitter, an iterable or a number of folds, as `check_cv` takes it.

    A splitter gets the targets, from the engines if they are there, as do the folds of a classifier, which are
    stratified.
    """
    splits = classifier or hasattr(cv, "split")
    targets = y.gather() if splits and isinstance(y, ShardedArray) else y if splits else None
    with ONE_AT_A_TIME:
        splitter = check_cv(cv, targets, classifier=classifier)
        return list(splitter.split(np.broadcast_to(np.zeros(1), (n_samples, 1)), targets, **asked))


def groups_of(
    splits: list[tuple[np.ndarray, np.ndarray]], n_samples: int
) -> tuple[list[tuple[np.ndarray, int]], list[tuple[int, int, int]]]:
    """Assign rows to groups, so that the sums of each split follow from the sums of the groups.

    Parameters
    ----------
    splits : list of (numpy.ndarray of int, numpy.ndarray of int)
        Indices of the training rows and of the test rows of each split.
    n_samples : int
        Number of rows.

    Returns
    -------
    groups : list of (numpy.ndarray of shape (n_samples,), int)
        One or more assignments. Each has the group of each row (-1 for no group) and the number of groups. One
        assignment is enough if each row is a test row of one split, and a training row of all other splits. Otherwise
        each split has its own assignment.
    places : list of (int, int, int)
        For each split the index of its assignment, the group of its training rows (-1 for all rows but its test rows),
        and the group of its test rows.

    Raises
    ------
    ValueError
        If a split contains a row twice.
    """
    folds = np.full(n_samples, -1, np.int32)
    tested = np.zeros(n_samples, np.int64)
    for number, (train, test) in enumerate(splits):
        folds[test] = number
        tested += np.bincount(test, minlength=n_samples)
        if len(train) + len(test) != n_samples or np.isin(train, test).any():
            tested[:] = 2
            break
    if (tested == 1).all():
        return [(folds, len(splits))], [(0, -1, number) for number in range(len(splits))]
    groups = []
    for train, test in splits:
        if max(np.bincount(train).max(initial=0), np.bincount(test).max(initial=0)) > 1 or np.isin(train, test).any():
            raise ValueError(
                "a split of cv has a row twice, or both for training and for test; expected each row at most once"
            )
        group = np.full(n_samples, -1, np.int32)
        group[train], group[test] = 0, 1
        groups.append((group, 2))
    return groups, [(number, 0, 1) for number in range(len(splits))]


def folds_of(found: list[dict[str, np.ndarray]], places: list[tuple[int, int, int]]) -> list[tuple[Sums, Sums]]:
    """Return the sums of the training rows and of the test rows of each split."""

    def group(facts: dict[str, np.ndarray], number: Any) -> Sums:
        count, weight = facts["count"][number].sum(), facts["weight"][number].sum()
        total = facts["total"][number].reshape(-1, facts["total"].shape[1]).sum(axis=0)
        products = facts["products"][number].reshape(-1, *facts["products"].shape[1:]).sum(axis=0)
        return Sums(int(count), float(weight), facts["shift"], total, products)

    folds = []
    for which, train, test in places:
        facts = found[which]
        held = group(facts, test)
        folds.append((without(group(facts, slice(None)), held) if train < 0 else group(facts, train), held))
    return folds
