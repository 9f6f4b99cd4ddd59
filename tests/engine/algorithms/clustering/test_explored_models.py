"""What the explorer's DBSCAN and mixtures compute on one rank, against scikit-learn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import sklearn.cluster
from sklearn.datasets import make_blobs
from sklearn.mixture import GaussianMixture

from xpulab.engine.algorithms.clustering import explore
from xpulab.engine.algorithms.clustering.explore_density import kinds_of
from xpulab.engine.algorithms.explore_mixture import label
from xpulab.engine.algorithms.gaussians import Parameters
from xpulab.engine.engine import Task
from xpulab.engine.registry import TASKS
from xpulab.explorer.counting import LARGEST, View
from xpulab.sharing.memory import SharedBlock
from xpulab.sharing.sources import HandleRows, Target

X, _ = make_blobs(600, 2, centers=4, cluster_std=0.7, random_state=4)


def test_the_largest_clusters_are_drawn_apart_and_the_smaller_ones_together() -> None:
    ranks = np.array([13, 0, LARGEST - 1, LARGEST])
    labelled = np.array([(1, 1), (1, 0), (0, 1), (3, 0), (2, 1), (-1, 0)])
    others, borders, noise = LARGEST, LARGEST + 1, 2 * (LARGEST + 1)
    assert kinds_of(labelled, ranks).tolist() == [0, borders, others, borders + others, LARGEST - 1, noise]


def test_clusters_by_density_are_those_of_scikit_learn(task: Task, sent: Callable[[np.ndarray], HandleRows]) -> None:
    view: View = {"features": (0, 1), "low": (-20.0, -20.0), "high": (20.0, 20.0), "shape": (30, 40)}
    shape = (2 * (LARGEST + 1) + 1, 30, 40)
    with SharedBlock.create(4 * int(np.prod(shape))) as block:
        found: Any = TASKS["explore.density"](
            task, explorer="by density", source=sent(X), points=600, eps=0.5, min_samples=8, view=view,
            target=Target(block.path, shape, np.dtype(np.int32)),
        )  # fmt: skip
        counts = block.array(shape, np.int32).copy()
    theirs = sklearn.cluster.DBSCAN(eps=0.5, min_samples=8).fit(X)
    core = np.isin(np.arange(600), theirs.core_sample_indices_)
    noise = theirs.labels_ < 0
    assert found["kinds"].tolist() == [core.sum(), (~core & ~noise).sum(), noise.sum()]
    assert sorted(found["sizes"].tolist()) == sorted(np.bincount(theirs.labels_[~noise]).tolist())
    assert counts.sum() == 600
    assert counts[-1].sum() == noise.sum()
    assert counts[: LARGEST + 1].sum() == core.sum()


@pytest.mark.parametrize("covariance_type", ["full", "tied", "diag", "spherical"])
def test_rows_have_the_component_that_is_most_probable(
    task: Task, sent: Callable[[np.ndarray], HandleRows], covariance_type: str
) -> None:
    theirs = GaussianMixture(4, covariance_type=covariance_type, random_state=0).fit(X)
    held = explore.held_for(task, "a mixture", sent(X), 600)
    parameters = Parameters(theirs.weights_, theirs.means_, theirs.covariances_, theirs.precisions_cholesky_)
    assert label(held, parameters, covariance_type) == pytest.approx(theirs.score(X))
    np.testing.assert_array_equal(held.clusters_of(0, 600), theirs.predict(X))
