"""A script for the ranks: estimators of `xpulab.spmd` against those of scikit-learn for the joined rows."""

import dpctl  # isort: skip -- first, to test that `xpulab run` has loaded the runtime's libraries

import functools
import importlib
import inspect
import os
import pickle
import pkgutil
import warnings
from collections.abc import Callable
from typing import Any

import dpnp
import numpy as np
import sklearn.cluster
import sklearn.covariance
import sklearn.decomposition
import sklearn.discriminant_analysis
import sklearn.ensemble
import sklearn.feature_extraction.text
import sklearn.impute
import sklearn.linear_model
import sklearn.mixture
import sklearn.naive_bayes
import sklearn.neighbors
import sklearn.preprocessing
import sklearn.svm
from mpi4py import MPI
from sklearn.base import clone
from sklearn.datasets import make_blobs
from sklearn.exceptions import NotFittedError
from sklearn.utils import check_random_state

import xpulab.spmd
from xpulab.exceptions import EngineError
from xpulab.spmd import (
    basic_statistics,
    cluster,
    covariance,
    decomposition,
    discriminant_analysis,
    ensemble,
    feature_extraction,
    impute,
    linear_model,
    mixture,
    naive_bayes,
    neighbors,
    preprocessing,
    svm,
)

comm = MPI.COMM_WORLD
rank, size = comm.Get_rank(), comm.Get_size()
N = 700
X, LABELS = make_blobs(N, 5, centers=4, cluster_std=1.5, random_state=3)
Y = X @ np.arange(1.0, 6.0) + np.random.default_rng(0).normal(size=N)
WEIGHTS = np.random.default_rng(1).uniform(0.5, 2.0, N)
# The shards are uneven. With several ranks, the first one has no rows.
BOUNDS = [0, *(0 if size > 1 and r == 0 else N * (r + 1) ** 2 // size**2 for r in range(size))]
MINE = slice(BOUNDS[rank], BOUNDS[rank + 1])
VARIABLES = dict(os.environ)
checks: list[Callable[[], None]] = []


def check(function: Callable[[], None]) -> Callable[[], None]:
    checks.append(function)
    return function


def check_on_several(function: Callable[[], None]) -> Callable[[], None]:
    """Check on several ranks only: one rank computes what an engine of its own does, and other checks show its way."""
    return check(function) if size > 1 else function


def refused(call: Callable[[], Any], kind: type[Exception], *words: str) -> None:
    """Check that the call raises an error of this kind on all ranks."""
    said = None
    try:
        call()
    except kind as error:
        said = str(error)
    assert said is not None, f"no {kind.__name__} was raised"
    assert all(word in said for word in words), said


def alike(found: Any, expected: Any, rtol: float = 1e-7, atol: float = 1e-9) -> None:
    np.testing.assert_allclose(found, expected, rtol=rtol, atol=atol)


@check
def kmeans() -> None:
    ours = cluster.KMeans(4, random_state=0, n_init=2).fit(X[MINE], sample_weight=WEIGHTS[MINE])
    theirs = sklearn.cluster.KMeans(4, random_state=0, n_init=2).fit(X, sample_weight=WEIGHTS)
    np.testing.assert_array_equal(ours.labels_, theirs.labels_[MINE])
    alike(ours.cluster_centers_, theirs.cluster_centers_)
    alike(ours.inertia_, theirs.inertia_)
    np.testing.assert_array_equal(ours.predict(X[MINE]), ours.labels_)
    np.testing.assert_array_equal(ours.fit_predict(X[MINE], sample_weight=WEIGHTS[MINE]), ours.labels_)
    alike(ours.transform(X[MINE]), theirs.transform(X)[MINE])
    alike(ours.fit_transform(X[MINE], sample_weight=WEIGHTS[MINE]), theirs.transform(X)[MINE])
    alike(ours.score(X[MINE]), theirs.score(X))
    np.testing.assert_array_equal(ours.to_sklearn().predict(X), theirs.labels_)
    assert [engine.rows for engine in ours.report_.engines] == np.diff(BOUNDS).tolist()
    check_random_state(None).seed(rank)  # without random_state, all ranks draw from the generator of rank 0
    drawn = cluster.KMeans(4, init="random", n_init=1, max_iter=2).fit(X[MINE])
    check_random_state(None).seed(0)
    theirs = sklearn.cluster.KMeans(4, init="random", n_init=1, max_iter=2).fit(X)
    alike(drawn.cluster_centers_, theirs.cluster_centers_)


@check_on_several
def batches_and_bisections() -> None:
    ours = cluster.MiniBatchKMeans(4, random_state=0, batch_size=50).fit(X[MINE], sample_weight=WEIGHTS[MINE])
    theirs = sklearn.cluster.MiniBatchKMeans(4, random_state=0, batch_size=50).fit(X, sample_weight=WEIGHTS)
    assert ours.n_steps_ == theirs.n_steps_
    alike(ours.cluster_centers_, theirs.cluster_centers_)
    np.testing.assert_array_equal(ours.labels_, theirs.labels_[MINE])
    alike(ours.partial_fit(X[MINE]).cluster_centers_, theirs.partial_fit(X).cluster_centers_)
    ours = cluster.BisectingKMeans(5, random_state=0).fit(X[MINE], sample_weight=WEIGHTS[MINE])
    theirs = sklearn.cluster.BisectingKMeans(5, random_state=0).fit(X, sample_weight=WEIGHTS)
    alike(ours.cluster_centers_, theirs.cluster_centers_)
    np.testing.assert_array_equal(ours.labels_, theirs.labels_[MINE])
    np.testing.assert_array_equal(ours.predict(X[MINE]), theirs.predict(X)[MINE])


@check_on_several
def density() -> None:
    for weights in (None, WEIGHTS):
        mine = None if weights is None else weights[MINE]
        ours = cluster.DBSCAN(eps=1.5, min_samples=6).fit(X[MINE], sample_weight=mine)
        theirs = sklearn.cluster.DBSCAN(eps=1.5, min_samples=6).fit(X, sample_weight=weights)
        np.testing.assert_array_equal(ours.labels_, theirs.labels_[MINE])
        cores = np.isin(np.arange(N)[MINE], theirs.core_sample_indices_)
        np.testing.assert_array_equal(ours.core_sample_indices_, np.flatnonzero(cores))
        np.testing.assert_array_equal(ours.components_, X[MINE][cores])
        np.testing.assert_array_equal(ours.fit_predict(X[MINE], sample_weight=mine), ours.labels_)
    ours = cluster.HDBSCAN(min_samples=1, store_centers="both").fit(X[MINE])
    theirs = sklearn.cluster.HDBSCAN(min_samples=1, store_centers="both", copy=True).fit(X)
    np.testing.assert_array_equal(ours.labels_, theirs.labels_[MINE])
    alike(ours.probabilities_, theirs.probabilities_[MINE])
    alike(ours.centroids_, theirs.centroids_)
    alike(ours.medoids_, theirs.medoids_)


@check_on_several
def decompositions() -> None:
    for solver in ("covariance_eigh", "full", "randomized"):
        ours = decomposition.PCA(3, svd_solver=solver, random_state=0, whiten=True).fit(X[MINE])
        theirs = sklearn.decomposition.PCA(3, svd_solver=solver, random_state=0, whiten=True).fit(X)
        alike(ours.explained_variance_, theirs.explained_variance_)
        alike(ours.transform(X[MINE]), theirs.transform(X)[MINE], atol=1e-7)
        alike(ours.fit_transform(X[MINE]), theirs.transform(X)[MINE], atol=1e-7)
        alike(ours.inverse_transform(ours.transform(X[MINE])), theirs.inverse_transform(theirs.transform(X))[MINE])
        alike(ours.score_samples(X[MINE]), theirs.score_samples(X)[MINE])
        alike(ours.score(X[MINE]), theirs.score(X))
    part = decomposition.IncrementalPCA(2)
    whole = sklearn.decomposition.PCA(2).fit(X)
    for batch in (slice(None, 300), slice(300, None)):
        mine = slice(*np.clip([MINE.start, MINE.stop], *slice(batch.start, batch.stop).indices(N)[:2]))
        part.partial_fit(X[mine])
    alike(part.components_, whole.components_)
    alike(part.transform(X[MINE]), whole.transform(X)[MINE])
    alike(decomposition.IncrementalPCA(2, batch_size=150).fit(X[MINE]).components_, whole.components_)


@check
def linear_models() -> None:
    for name, parameters in (
        ("LinearRegression", {}),
        ("Ridge", {"alpha": 2.0}),
        ("Lasso", {"alpha": 0.1}),
        ("ElasticNet", {"alpha": 0.1}),
        ("RidgeCV", {}),
        ("BayesianRidge", {}),
    ):
        ours = getattr(linear_model, name)(**parameters).fit(X[MINE], Y[MINE], sample_weight=WEIGHTS[MINE])
        theirs = getattr(sklearn.linear_model, name)(**parameters).fit(X, Y, sample_weight=WEIGHTS)
        alike(ours.coef_, theirs.coef_, 1e-4)
        alike(ours.predict(X[MINE]), theirs.predict(X)[MINE], 1e-3, 1e-3)
        alike(ours.score(X[MINE], Y[MINE], WEIGHTS[MINE]), theirs.score(X, Y, WEIGHTS), 1e-6)
    path = linear_model.LassoLars(alpha=0.1).fit(X[MINE], Y[MINE])
    alike(path.coef_path_, sklearn.linear_model.LassoLars(alpha=0.1).fit(X, Y).coef_path_, 1e-6, 1e-8)
    plain = sklearn.linear_model.LinearRegression().fit(X, np.stack([Y, -Y], axis=1))
    for batches in (1, 3):
        part = linear_model.IncrementalLinearRegression()
        for rows, targets in zip(np.array_split(X[MINE], batches), np.array_split(Y[MINE], batches), strict=True):
            part.partial_fit(rows, np.stack([targets, -targets], axis=1))
        alike(part.coef_, plain.coef_)
    alike(
        linear_model.IncrementalRidge(alpha=2.0).fit(X[MINE], Y[MINE]).coef_,
        sklearn.linear_model.Ridge(2.0).fit(X, Y).coef_,
    )


@check_on_several
def logistic_regression() -> None:
    """Every class lives on one rank only."""
    order = np.argsort(LABELS, kind="stable")
    rows, labels = X[order], np.array(["a", "b", "c", "d"])[LABELS[order]]
    for how in ({}, {"solver": "newton-cholesky"}, {"solver": "saga", "l1_ratio": 0.5, "C": 0.01}):
        how |= {"penalty": "elasticnet"} if "l1_ratio" in how else {}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of the penalty, which l1_ratio says alone since 1.8
            ours, theirs = (
                module.LogisticRegression(**how, tol=1e-8, max_iter=1000).fit(*given)
                for module, given in (
                    (linear_model, (rows[MINE], labels[MINE], WEIGHTS[MINE])),
                    (sklearn.linear_model, (rows, labels, WEIGHTS)),
                )
            )
        alike(ours.coef_, theirs.coef_, 1e-4, 1e-5)
        np.testing.assert_array_equal(ours.predict(rows[MINE]), theirs.predict(rows)[MINE])
        alike(ours.predict_proba(rows[MINE]), theirs.predict_proba(rows)[MINE], 1e-4, 1e-6)
        alike(ours.score(rows[MINE], labels[MINE]), theirs.score(rows, labels))
    how = {"Cs": [0.1, 1.0], "cv": 3, "tol": 1e-8, "max_iter": 1000, "scoring": "accuracy"}
    mine = rows[MINE], labels[MINE], WEIGHTS[MINE]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of defaults that will change
        chosen = linear_model.LogisticRegressionCV(**how).fit(*mine)
        best = sklearn.linear_model.LogisticRegressionCV(**how).fit(rows, labels, WEIGHTS)
        by_loss = linear_model.LogisticRegressionCV(**how | {"scoring": "neg_log_loss"})
        refused(lambda: by_loss.fit(*mine), ValueError, "scoring='neg_log_loss'", "accuracy")
    alike(chosen.coef_, best.coef_, 1e-4, 1e-5)
    alike(chosen.scores_["a"], best.scores_["a"], 1e-4, 1e-5)


@check_on_several
def least_squares_of_classes() -> None:
    """Every class lives on one rank only."""
    order = np.argsort(LABELS, kind="stable")
    rows, labels = X[order], np.array(["a", "b", "c", "d"])[LABELS[order]]
    ours = linear_model.RidgeClassifier(class_weight="balanced").fit(rows[MINE], labels[MINE], WEIGHTS[MINE])
    theirs = sklearn.linear_model.RidgeClassifier(class_weight="balanced").fit(rows, labels, WEIGHTS)
    alike(ours.coef_, theirs.coef_, 1e-4, 1e-6)
    np.testing.assert_array_equal(ours.predict(rows[MINE]), theirs.predict(rows)[MINE])
    alike(ours.score(rows[MINE], labels[MINE]), theirs.score(rows, labels))
    shrunk = {"solver": "lsqr", "shrinkage": "auto"}
    ours = discriminant_analysis.LinearDiscriminantAnalysis(**shrunk).fit(rows[MINE], labels[MINE])
    alike(ours.coef_, sklearn.discriminant_analysis.LinearDiscriminantAnalysis(**shrunk).fit(rows, labels).coef_, 1e-4)
    axes = discriminant_analysis.LinearDiscriminantAnalysis().fit(rows[MINE], labels[MINE])
    plain = sklearn.discriminant_analysis.LinearDiscriminantAnalysis().fit(rows, labels)
    alike(axes.predict_proba(rows[MINE]), plain.predict_proba(rows)[MINE], 1e-4, 1e-6)
    curved = discriminant_analysis.QuadraticDiscriminantAnalysis().fit(rows[MINE], labels[MINE])
    smooth = sklearn.discriminant_analysis.QuadraticDiscriminantAnalysis().fit(rows, labels)
    alike(curved.predict_proba(rows[MINE]), smooth.predict_proba(rows)[MINE], 1e-4, 1e-6)
    alike(np.abs(axes.transform(rows[MINE])), np.abs(plain.transform(rows)[MINE]), 1e-4, 1e-5)


@check_on_several
def support_vectors() -> None:
    order = np.argsort(LABELS, kind="stable")
    rows, labels = X[order], np.array(["a", "b", "c", "d"])[LABELS[order]]
    for loss in ("hinge", "squared_hinge"):
        how = {"loss": loss, "tol": 1e-6, "max_iter": 200_000}
        ours = svm.LinearSVC(**how).fit(rows[MINE], labels[MINE], WEIGHTS[MINE])
        theirs = sklearn.svm.LinearSVC(**how, random_state=0).fit(rows, labels, WEIGHTS)
        alike(ours.coef_, theirs.coef_, 2e-2, 2e-2)
        alike(ours.score(rows[MINE], labels[MINE]), theirs.score(rows, labels), 2e-2)
    line = svm.LinearSVR(loss="squared_epsilon_insensitive", tol=1e-8).fit(X[MINE], Y[MINE], WEIGHTS[MINE])
    plain = sklearn.svm.LinearSVR(loss="squared_epsilon_insensitive", tol=1e-8, dual=False).fit(X, Y, WEIGHTS)
    alike(line.predict(X[MINE]), plain.predict(X)[MINE], 1e-3, 1e-2)


@check_on_several
def generalized_linear_models() -> None:
    targets = np.exp(Y / np.abs(Y).max())
    for name, parameters in (
        ("PoissonRegressor", {}),
        ("GammaRegressor", {"solver": "newton-cholesky"}),
        ("TweedieRegressor", {"power": 1.5}),
    ):
        how = {"alpha": 0.1, "tol": 1e-8, "max_iter": 1000, **parameters}
        ours = getattr(linear_model, name)(**how).fit(X[MINE], targets[MINE], WEIGHTS[MINE])
        theirs = getattr(sklearn.linear_model, name)(**how).fit(X, targets, WEIGHTS)
        alike(ours.coef_, theirs.coef_, 1e-4, 1e-5)
        alike(ours.predict(X[MINE]), theirs.predict(X)[MINE], 1e-4)
        alike(ours.score(X[MINE], targets[MINE], WEIGHTS[MINE]), theirs.score(X, targets, WEIGHTS), 1e-5)


@check_on_several
def robust_regression() -> None:
    targets = np.where(np.arange(len(Y)) % 10 == 3, Y + 50 * np.abs(Y).max(), Y)
    for name, how in (("HuberRegressor", {"max_iter": 1000}), ("QuantileRegressor", {"alpha": 0.01, "quantile": 0.3})):
        ours = getattr(linear_model, name)(**how).fit(X[MINE], targets[MINE], WEIGHTS[MINE])
        theirs = getattr(sklearn.linear_model, name)(**how).fit(X, targets, WEIGHTS)
        alike(ours.coef_, theirs.coef_, 1e-3, 1e-3)
        alike(ours.predict(X[MINE]), theirs.predict(X)[MINE], 1e-3, 1e-2)
        if name == "HuberRegressor":
            np.testing.assert_array_equal(ours.outliers_, theirs.outliers_[MINE])


@check_on_several
def descents() -> None:
    order = np.argsort(LABELS, kind="stable")
    rows, labels = X[order], np.array(["a", "b", "c", "d"])[LABELS[order]]
    for how in ({}, {"early_stopping": True}):
        ours = linear_model.SGDClassifier(random_state=0, **how).fit(
            rows[MINE], labels[MINE], sample_weight=WEIGHTS[MINE]
        )
        theirs = sklearn.linear_model.SGDClassifier(random_state=0, **how).fit(rows, labels, sample_weight=WEIGHTS)
        assert ours.score(rows[MINE], labels[MINE]) > theirs.score(rows, labels) - 0.05
    for _ in range(3):
        ours.partial_fit(rows[MINE], labels[MINE])
    line = linear_model.SGDRegressor(tol=1e-6).fit(X[MINE], Y[MINE])  # each rank draws another seed
    plain = sklearn.linear_model.SGDRegressor(tol=1e-6, random_state=0).fit(X, Y)
    alike(line.score(X[MINE], Y[MINE]), plain.score(X, Y), 1e-2)


@check_on_several
def mixtures() -> None:
    for covariance_type in ("full", "spherical"):
        ours = mixture.GaussianMixture(4, covariance_type=covariance_type, random_state=0).fit(X[MINE])
        theirs = sklearn.mixture.GaussianMixture(4, covariance_type=covariance_type, random_state=0).fit(X)
        alike(ours.means_, theirs.means_)
        alike(ours.covariances_, theirs.covariances_, 1e-6)
        np.testing.assert_array_equal(ours.predict(X[MINE]), theirs.predict(X)[MINE])
        np.testing.assert_array_equal(ours.fit_predict(X[MINE]), theirs.predict(X)[MINE])
        alike(ours.predict_proba(X[MINE]), theirs.predict_proba(X)[MINE])
        alike(ours.score_samples(X[MINE]), theirs.score_samples(X)[MINE])
        alike([ours.score(X[MINE]), ours.bic(X[MINE])], [theirs.score(X), theirs.bic(X)])


@check_on_several
def naive_bayes_of_strings() -> None:
    labels = np.array(["a", "b", "c", "d"])[LABELS]
    ours = naive_bayes.GaussianNB().fit(X[MINE], labels[MINE], sample_weight=WEIGHTS[MINE])
    theirs = sklearn.naive_bayes.GaussianNB().fit(X, labels, sample_weight=WEIGHTS)
    np.testing.assert_array_equal(ours.predict(X[MINE]), theirs.predict(X)[MINE])
    for method in ("predict_proba", "predict_log_proba", "predict_joint_log_proba"):
        alike(getattr(ours, method)(X[MINE]), getattr(theirs, method)(X)[MINE])
    alike(ours.score(X[MINE], labels[MINE]), theirs.score(X, labels))
    every = naive_bayes.GaussianNB().partial_fit(X[MINE], labels[MINE], np.unique(labels))
    alike(every.theta_, sklearn.naive_bayes.GaussianNB().fit(X, labels).theta_)


@check_on_several
def words_of_documents() -> None:
    counts = np.rint(np.abs(X))
    ours = feature_extraction.TfidfTransformer(sublinear_tf=True).fit(counts[MINE])
    theirs = sklearn.feature_extraction.text.TfidfTransformer(sublinear_tf=True).fit(counts)
    alike(ours.idf_, theirs.idf_)
    alike(ours.transform(counts[MINE]).toarray(), theirs.transform(counts).toarray()[MINE])


@check_on_several
def naive_bayes_of_counts() -> None:
    counts, labels = np.rint(np.abs(X)), np.array(["a", "b", "c", "d"])[LABELS]
    for name in ("BernoulliNB", "ComplementNB", "MultinomialNB"):
        ours = getattr(naive_bayes, name)().fit(counts[MINE], labels[MINE], sample_weight=WEIGHTS[MINE])
        theirs = getattr(sklearn.naive_bayes, name)().fit(counts, labels, sample_weight=WEIGHTS)
        np.testing.assert_array_equal(ours.predict(counts[MINE]), theirs.predict(counts)[MINE])
        alike(ours.predict_log_proba(counts[MINE]), theirs.predict_log_proba(counts)[MINE])
        alike(ours.feature_log_prob_, theirs.feature_log_prob_)


@check
def nearest_neighbors() -> None:
    """Every class lives on one rank only, and most ranks have fewer rows than there are neighbours."""
    order = np.argsort(LABELS, kind="stable")
    rows, labels = X[order], np.array(["a", "b", "c", "d"])[LABELS[order]]
    cut = [0, *([3] * (size - 1)), N] if size > 1 else [0, N]
    mine, queries = slice(*sorted(cut)[rank : rank + 2]), X[MINE]
    for weights in ("uniform", "distance"):
        ours = neighbors.KNeighborsClassifier(9, weights=weights).fit(rows[mine], labels[mine])
        theirs = sklearn.neighbors.KNeighborsClassifier(9, weights=weights).fit(rows, labels)
        np.testing.assert_array_equal(ours.classes_, theirs.classes_)
        np.testing.assert_array_equal(ours.predict(queries), theirs.predict(X)[MINE])
        alike(ours.predict_proba(queries), theirs.predict_proba(X)[MINE])
        alike(
            ours.score(queries, np.array(["a", "b", "c", "d"])[LABELS[MINE]]),
            theirs.score(X, np.array(["a", "b", "c", "d"])[LABELS]),
        )
    ours = neighbors.KNeighborsRegressor(9).fit(X[MINE], Y[MINE])
    theirs = sklearn.neighbors.KNeighborsRegressor(9).fit(X, Y)
    alike(ours.predict(queries), theirs.predict(X)[MINE])
    alike(ours.score(queries, Y[MINE], WEIGHTS[MINE]), theirs.score(X, Y, WEIGHTS))
    ours = neighbors.NearestNeighbors(n_neighbors=7, radius=1.0).fit(X[MINE])
    theirs = sklearn.neighbors.NearestNeighbors(n_neighbors=7, radius=1.0, algorithm="brute").fit(X)
    for given, joined in ((queries, X), (None, None)):
        for found, expected in zip(ours.kneighbors(given), theirs.kneighbors(joined), strict=True):
            alike(found, expected[MINE], atol=1e-6)  # scikit-learn's brute force rounds near 0
        found = ours.radius_neighbors(given, sort_results=True)[1]
        expected = theirs.radius_neighbors(joined, sort_results=True)[1][MINE]
        assert [each.tolist() for each in found] == [each.tolist() for each in expected]
    assert (ours.kneighbors_graph(queries) != theirs.kneighbors_graph(X)[MINE]).nnz == 0
    np.testing.assert_array_equal(ours.to_sklearn().kneighbors(X)[1], theirs.kneighbors(X)[1])
    refused(lambda: ours.kneighbors(queries, n_neighbors=N + 1), ValueError, f"n_samples_fit = {N}")


@check
def forests() -> None:
    """The forest of the joined rows, which one rank can grow alone."""
    labels = np.array(["a", "b", "c", "d"])[LABELS]
    votes = ensemble.RandomForestClassifier(30, random_state=0, oob_score=True)
    votes.fit(X[MINE], labels[MINE], sample_weight=WEIGHTS[MINE])
    drawn = ensemble.ExtraTreesRegressor(30, random_state=0).fit(X[MINE], Y[MINE])
    alike(drawn.predict(X[MINE]), drawn.to_sklearn().predict(X)[MINE])
    numbers = ensemble.RandomForestRegressor(5, random_state=0).fit(X[MINE], Y[MINE])
    assert len({tuple(each) for each in MPI.COMM_WORLD.allgather([t.tree_.node_count for t in votes.estimators_])}) == 1
    np.testing.assert_array_equal(votes.predict(X[MINE]), votes.to_sklearn().predict(X)[MINE])
    alike(votes.predict_proba(X[MINE]), votes.to_sklearn().predict_proba(X)[MINE])
    alike(numbers.predict(X[MINE]), numbers.to_sklearn().predict(X)[MINE])
    alike(numbers.score(X[MINE], Y[MINE]), numbers.to_sklearn().score(X, Y))
    theirs = sklearn.ensemble.RandomForestClassifier(30, random_state=0, oob_score=True).fit(X, labels, WEIGHTS)
    assert votes.oob_score_ > theirs.oob_score_ - 0.05


@check
def isolation() -> None:
    """The trees and the threshold of the joined rows."""
    ours = ensemble.IsolationForest(n_estimators=10, random_state=0, contamination=0.1).fit(X[MINE])
    theirs = sklearn.ensemble.IsolationForest(n_estimators=10, random_state=0, contamination=0.1).fit(X)
    alike(ours.score_samples(X[MINE]), theirs.score_samples(X)[MINE])
    alike(ours.offset_, theirs.offset_)
    alike(ours.fit_predict(X[MINE]), theirs.predict(X)[MINE])


@check_on_several
def boosting() -> None:
    labels = np.array(["a", "b", "c", "d"])[LABELS]
    ours = ensemble.HistGradientBoostingClassifier(max_iter=2, max_leaf_nodes=10, random_state=0)
    ours.fit(X[MINE], labels[MINE], sample_weight=WEIGHTS[MINE])
    theirs = ours.to_sklearn()
    np.testing.assert_array_equal(ours.predict(X[MINE]), theirs.predict(X)[MINE])
    np.testing.assert_array_equal(ours.decision_function(X[MINE]), theirs.decision_function(X)[MINE])
    again = ours.unfitted_sklearn().fit(X, labels, WEIGHTS)
    np.testing.assert_allclose(theirs.predict_proba(X), again.predict_proba(X), 1e-5, 1e-7)


@check_on_several
def statistics() -> None:
    ours = covariance.EmpiricalCovariance().fit(X[MINE])
    theirs = sklearn.covariance.EmpiricalCovariance().fit(X)
    alike(ours.covariance_, theirs.covariance_)
    alike(ours.mahalanobis(X[MINE]), theirs.mahalanobis(X)[MINE])
    alike(ours.score(X[MINE]), theirs.score(X))
    part = covariance.IncrementalEmpiricalCovariance()
    facts = basic_statistics.IncrementalBasicStatistics()
    for rows in np.array_split(X[MINE], 2):
        part.partial_fit(rows)
        facts.partial_fit(rows)
    alike(part.covariance_, theirs.covariance_)
    alike(facts.variance_, X.var(axis=0, ddof=1))
    found = basic_statistics.BasicStatistics(["mean", "max"]).fit(X[MINE], sample_weight=WEIGHTS[MINE])
    alike(found.mean_, (WEIGHTS[:, None] * X).mean(axis=0))
    alike(found.max_, (WEIGHTS[:, None] * X).max(axis=0))


@check_on_several
def scalers() -> None:
    for name in ("MaxAbsScaler", "MinMaxScaler", "RobustScaler", "StandardScaler"):
        ours = getattr(preprocessing, name)().fit(X[MINE])
        theirs = getattr(sklearn.preprocessing, name)().fit(X)
        alike(ours.transform(X[MINE]), theirs.transform(X)[MINE])
        alike(ours.inverse_transform(ours.fit_transform(X[MINE])), X[MINE])
    refused(lambda: ours.set_output(transform="pandas").transform(X[MINE]), ValueError, "set_output")


@check
def new_columns() -> None:
    holed = np.where(X > 5, np.nan, X)
    for strategy in ("mean", "median", "most_frequent"):
        ours = impute.SimpleImputer(strategy=strategy, add_indicator=True).fit(holed[MINE])
        theirs = sklearn.impute.SimpleImputer(strategy=strategy, add_indicator=True).fit(holed)
        alike(ours.transform(holed[MINE]), theirs.transform(holed)[MINE])
    found = preprocessing.PolynomialFeatures(3).fit_transform(X[MINE])
    alike(found, sklearn.preprocessing.PolynomialFeatures(3).fit_transform(X)[MINE])
    alike(preprocessing.Normalizer().fit_transform(X[MINE]), sklearn.preprocessing.Normalizer().fit_transform(X)[MINE])
    for strategy, weights in (("uniform", None), ("kmeans", WEIGHTS)):
        bins: dict[str, Any] = {"strategy": strategy, "encode": "onehot-dense", "subsample": 300, "random_state": 0}
        ours = preprocessing.KBinsDiscretizer(**bins).fit(X[MINE], None, None if weights is None else weights[MINE])
        theirs = sklearn.preprocessing.KBinsDiscretizer(**bins).fit(X, None, weights)
        alike(ours.transform(X[MINE]), theirs.transform(X)[MINE])
    rounded = np.round(X[:, :2])
    how: dict[str, Any] = {"handle_unknown": "ignore", "max_categories": 4}
    for dense in (True, False):
        found = preprocessing.OneHotEncoder(sparse_output=not dense, **how).fit_transform(rounded[MINE])
        expected = sklearn.preprocessing.OneHotEncoder(sparse_output=False, **how).fit_transform(rounded)[MINE]
        alike(found if dense else found.toarray(), expected)
    how = {"n_quantiles": 20, "subsample": 50, "random_state": 0, "output_distribution": "normal"}
    ours = preprocessing.QuantileTransformer(**how).fit(X[MINE])
    theirs = sklearn.preprocessing.QuantileTransformer(**how).fit(X)
    alike(ours.transform(X[MINE]), theirs.transform(X)[MINE])
    alike(ours.inverse_transform(ours.transform(X[MINE])), theirs.inverse_transform(theirs.transform(X))[MINE])


@check
def arrays_on_devices() -> None:
    """Arrays on devices are used in place, for any queue, dtype and strides. The results are of the same kind."""
    queue = dpctl.SyclQueue("cpu")
    expected = sklearn.cluster.KMeans(4, init=X[:4], n_init=1).fit(X)
    whole = dpnp.asarray(np.repeat(X[MINE], 2, axis=1), usm_type="device", sycl_queue=queue)
    for rows in (dpnp.asarray(X[MINE], usm_type="device", sycl_queue=queue), whole[:, ::2]):
        before = dpnp.asnumpy(rows)
        with xpulab.config_context(array_api_dispatch=True):
            ours = cluster.KMeans(4, init=X[:4], n_init=1).fit(rows, queue=queue)
            found = ours.predict(rows, queue=queue)
        assert isinstance(found, dpnp.ndarray)
        assert found.sycl_queue == queue
        np.testing.assert_array_equal(dpnp.asnumpy(found), expected.labels_[MINE])
        np.testing.assert_array_equal(dpnp.asnumpy(rows), before)
    whole = dpnp.asarray(X[MINE].astype(np.float32))
    alike(
        linear_model.Ridge().fit(whole, dpnp.asarray(Y[MINE].astype(np.float32))).coef_,
        sklearn.linear_model.Ridge().fit(X, Y).coef_,
        1e-3,
    )
    some = neighbors.KNeighborsClassifier(5).fit(dpnp.asarray(X[MINE]), dpnp.asarray(LABELS[MINE]))
    found = some.predict(dpnp.asarray(X[MINE]))
    assert isinstance(found, dpnp.ndarray)
    np.testing.assert_array_equal(
        dpnp.asnumpy(found), sklearn.neighbors.KNeighborsClassifier(5).fit(X, LABELS).predict(X)[MINE]
    )


@check
def ranks_that_differ() -> None:
    """All ranks raise an error that names the different ranks. The next call works."""
    last = size - 1
    if size > 1:
        refused(lambda: cluster.KMeans(4 + (rank == last)).fit(X[MINE]), ValueError, "n_clusters", f"5 (rank {last})")
        refused(lambda: cluster.KMeans(4).fit(X[MINE, : 5 - (rank == last)]), ValueError, "(4,)", f"(rank {last})")
        refused(lambda: cluster.KMeans(4).fit(X[MINE].astype("f4" if rank == last else "f8")), ValueError, "float32")
        both = [cluster.KMeans(4), decomposition.PCA(2)]
        refused(lambda: both[rank == last].fit(X[MINE]), ValueError, "KMeans.fit", "PCA.fit")
        both = [naive_bayes.GaussianNB(), preprocessing.StandardScaler().partial_fit(X[MINE])]
        call = both[1].transform if rank == last else functools.partial(both[0].fit, y=LABELS[MINE])
        refused(lambda: call(X[MINE]), ValueError, "GaussianNB.fit", f"the results of StandardScaler (rank {last})")
        binned = preprocessing.KBinsDiscretizer(3, encode="ordinal", strategy="uniform").fit(X[MINE])
        call = binned.inverse_transform if rank == last else cluster.KMeans(4).fit  # the first exchanges nothing
        refused(
            lambda: call(X[MINE] * 0), ValueError, "KMeans.fit", f"KBinsDiscretizer.inverse_transform (rank {last})"
        )
        refused(lambda: cluster.KMeans(4).fit(X[MINE] if rank < last else [["a"]]), ValueError, f"rank {last} on")
        weights = WEIGHTS[MINE] if rank < last else None
        refused(lambda: cluster.KMeans(4).fit(X[MINE], sample_weight=weights), ValueError, "sample_weight")
        model = cluster.KMeans(4, random_state=0)
        if rank < last:
            model.n_features_in_, model.cluster_centers_, model._n_threads = 5, X[:4].copy(), 1
        refused(lambda: model.predict(X[MINE]), EngineError, "NotFittedError", f"rank {last} on")
    refused(lambda: cluster.KMeans(4).predict(X[MINE]), NotFittedError)
    refused(lambda: cluster.KMeans(N + 1).fit(X[MINE]), ValueError, f"n_samples={N}")
    holed = np.where((np.arange(N) == N - 1)[:, None], np.nan, X)[MINE]
    refused(lambda: cluster.KMeans(4).fit(holed), ValueError, f"row {N - BOUNDS[last] - 1} of rank {last}")
    refused(lambda: linear_model.Ridge().fit(X[MINE], holed[:, 0]), ValueError, "Input y contains NaN")
    refused(lambda: cluster.KMeans(4).fit(X[MINE], sample_weight=WEIGHTS[MINE] - 1), ValueError, "Negative values")
    refused(lambda: cluster.KMeans(4).fit(X[MINE], sample_weight=0 * WEIGHTS[MINE]), ValueError, "zero for all")
    refused(lambda: linear_model.Ridge().fit(X[MINE], Y[MINE][:-1] if rank == last else Y[MINE]), ValueError, "numbers")
    refused(lambda: cluster.KMeans(4).fit(X[MINE].ravel()), ValueError, "Expected 2D array")
    np.testing.assert_array_equal(
        cluster.KMeans(4, init=X[:4], n_init=1).fit(X[MINE]).labels_,
        sklearn.cluster.KMeans(4, init=X[:4], n_init=1).fit(X).labels_[MINE],
    )


@check
def documents_copies_and_pickles() -> None:
    """Every estimator has a document, and rank 0 makes, clones and pickles it alone: nothing is sent."""
    known = set()
    public = [info.name for info in pkgutil.iter_modules(xpulab.spmd.__path__) if not info.name.startswith("_")]
    for package in [] if rank else public:
        module = importlib.import_module(f"xpulab.spmd.{package}")
        for name in module.__all__:
            kind = getattr(module, name)
            assert kind.__module__ == module.__name__, kind.__module__
            assert f"`xpulab.{package}.{name}` for code that runs on the ranks" in kind.__doc__
            assert "queue" in inspect.signature(kind.fit).parameters
            plain = getattr(importlib.import_module(f"xpulab.{package}"), name)
            assert plain().get_params().items() <= clone(kind()).get_params().items()
            assert type(pickle.loads(pickle.dumps(kind()))) is kind
            known.add(name)
    assert rank or {"KMeans", "PCA", "Ridge", "KNeighborsClassifier", "MaxAbsScaler"} <= known


@check
def the_variables_of_the_program_that_started_the_ranks() -> None:
    """torchrun's variables are among them, whose port a script may already have used before the first fit."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        assert os.environ.get(name) == VARIABLES.get(name), name


for each in checks:
    each()
    print("passed", each.__name__, flush=True)
