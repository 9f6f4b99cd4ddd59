"""accel: scikit-learn's classes compute on the engines, and nothing else of scikit-learn changes."""

from __future__ import annotations

import logging
import pickle
import subprocess
import sys
from collections.abc import Iterator
from typing import Any
from unittest import mock

import joblib
import numpy as np
import pytest
import sklearn
from scipy import sparse
from sklearn.base import clone
from sklearn.cluster import DBSCAN, KMeans, k_means
from sklearn.covariance import EmpiricalCovariance
from sklearn.decomposition import PCA, IncrementalPCA
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import (
    ElasticNet,
    Lasso,
    LassoCV,
    LinearRegression,
    LogisticRegression,
    PoissonRegressor,
    Ridge,
    RidgeCV,
    TweedieRegressor,
)
from sklearn.model_selection import GridSearchCV
from sklearn.neighbors import KNeighborsClassifier, NearestNeighbors
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import xpulab
from xpulab.acceleration import Acceleration, active
from xpulab.acceleration._registry import methods, pairs
from xpulab.exceptions import NoClusterError, UsageError, XpulabWarning

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(600, 4)) + RANDOM.integers(0, 3, size=(600, 1)) * 4
Y = X @ [1.0, 2.0, 0.0, -1.0] + RANDOM.normal(size=600) * 0.1
CLASSES = (X[:, 0] > 4).astype(int)


@pytest.fixture
def on(on_pair: xpulab.XPUCluster) -> Iterator[Acceleration]:
    """Accel is on, for data of any size."""
    with xpulab.accel(least=0) as acceleration:
        yield acceleration


def ran(acceleration: Acceleration) -> list[tuple[str, bool]]:
    """The calls in the log, and whether they ran on the engines."""
    return [(f"{e.estimator}.{e.method}", e.engines > 0) for e in acceleration.log.since(0).entries]


def everything() -> dict[tuple[str, ...], Any]:
    """Every attribute of every module of scikit-learn and of every class in them, and joblib's backends."""
    found: dict[tuple[str, ...], Any] = {}
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] == "sklearn":
            for attribute, value in vars(module).items():
                found[name, attribute] = value
                if isinstance(value, type):
                    found |= {(name, attribute, each): member for each, member in vars(value).items()}
    return found | {("joblib", name): backend for name, backend in joblib.parallel.BACKENDS.items()}


def public(estimator: Any) -> set[str]:
    return {name for name in vars(estimator) if not name.startswith("_")}


def differences(before: dict[Any, Any], after: dict[Any, Any]) -> set[Any]:
    names = before.keys() | after.keys()
    return {name for name in names if before.get(name, names) is not after.get(name, names)}


@pytest.mark.parametrize("end", ["off", "context", "cluster"])
def test_scikit_learn_is_left_as_it_was(pair: xpulab.XPUCluster, end: str) -> None:
    pairs()
    before = everything()
    others = xpulab.deploy.cluster.clusters.running.copy() if end == "cluster" else []
    if end == "cluster":  # it has to be the only cluster of the process
        xpulab.deploy.cluster.clusters.running.clear()
        cluster = xpulab.XPUCluster(1).start()
    else:
        cluster = pair.activate()
    try:
        acceleration = xpulab.accel(least=0)
        assert differences(before, everything())
        KMeans(2, random_state=0, n_init=1).fit(X)
        acceleration.off() if end == "off" else acceleration.__exit__(None, None, None) if end == "context" else None
        if end == "cluster":
            cluster.stop()
    finally:
        xpulab.deploy.cluster.clusters.running.extend(others)
    assert active() is None
    assert not differences(before, everything())
    assert KMeans.fit.__qualname__ == "KMeans.fit"


def test_every_estimator_of_the_packages_is_found() -> None:
    names = {theirs.__name__ for theirs in pairs()}
    assert {"KMeans", "PCA", "Ridge", "RandomForestClassifier", "NearestNeighbors", "StandardScaler"} <= names
    assert not {"IncrementalRidge", "BasicStatistics"} & names
    assert methods(KMeans, pairs()[KMeans]) == ["fit", "fit_transform", "predict", "score", "transform"]
    assert {"fit", "predict", "predict_proba", "score"} <= set(methods(LogisticRegression, pairs()[LogisticRegression]))


def test_a_name_that_was_imported_before_computes_on_the_engines(on: Acceleration) -> None:
    km = KMeans(3, random_state=0, n_init=1).fit(X)
    assert type(km) is KMeans
    assert isinstance(km, sklearn.cluster.KMeans)
    assert ran(on) == [("KMeans.fit", True)]
    labels = km.predict(X)
    assert ran(on)[1:] == [("KMeans.predict", True)]
    on.off()
    plain = KMeans(3, random_state=0, n_init=1).fit(X)
    assert public(km) == public(plain)
    np.testing.assert_array_equal(labels, plain.labels_)
    np.testing.assert_allclose(km.cluster_centers_, plain.cluster_centers_, rtol=1e-10)
    np.testing.assert_array_equal(km.predict(X), plain.labels_)


MODELS: list[tuple[Any, tuple[Any, ...]]] = [
    (KMeans(3, random_state=0, n_init=2), (X,)),
    (DBSCAN(1.0), (X,)),
    (StandardScaler(), (X,)),
    (PCA(2), (X,)),
    (IncrementalPCA(2), (X,)),
    (EmpiricalCovariance(), (X,)),
    (LinearRegression(), (X, Y)),
    (Ridge(), (X, Y)),
    (RidgeCV(), (X, Y)),
    (Lasso(0.1), (X, Y)),
    (ElasticNet(0.1), (X, Y)),
    (LassoCV(cv=3), (X, Y)),
    (LogisticRegression(tol=1e-8), (X, CLASSES)),
    (PoissonRegressor(tol=1e-8), (X, CLASSES)),
    (TweedieRegressor(power=1.5, tol=1e-8), (X, CLASSES + 1.0)),
    (KNeighborsClassifier(), (X, CLASSES)),
    (NearestNeighbors(), (X,)),
    (RandomForestClassifier(5, random_state=0), (X, CLASSES)),
]


@pytest.mark.parametrize(("model", "data"), MODELS, ids=lambda value: type(value).__name__)
def test_fitted_attributes_are_scikit_learns(on: Acceleration, model: Any, data: tuple[Any, ...]) -> None:
    name = type(model).__name__
    fitted = clone(model).fit(*data)
    assert ran(on) == [(f"{name}.fit", True)]
    method = next(
        each for each in ("predict", "transform", "kneighbors", "fit_predict", "mahalanobis") if hasattr(fitted, each)
    )
    there = getattr(fitted, method)(X)
    assert all(where for _, where in ran(on)), on.log.since(0)
    on.off()
    plain = clone(model).fit(*data)
    assert public(fitted) == public(plain)
    for here in (getattr(fitted, method)(X), getattr(plain, method)(X)):
        for one, other in zip(
            there if method == "kneighbors" else [there], here if method == "kneighbors" else [here], strict=True
        ):
            if name == "RandomForestClassifier":  # other splits than scikit-learn's
                assert np.mean(one == other) > 0.97
            else:
                np.testing.assert_allclose(one, other, atol=1e-6)


def test_a_pickle_opens_without_xpulab(on: Acceleration) -> None:
    fitted = [clone(model).fit(*data) for model, data in MODELS]
    assert all(where for _, where in ran(on))
    alone = (
        "import sys, pickle; sys.modules['xpulab'] = None\n"
        "print(*(type(each).__name__ for each in pickle.load(sys.stdin.buffer)))"
    )
    done = subprocess.run([sys.executable, "-c", alone], input=pickle.dumps(fitted), capture_output=True, check=True)
    assert done.stdout.decode().split() == [type(model).__name__ for model, _ in MODELS]


def test_pipelines_searches_and_clones(on: Acceleration) -> None:
    model = make_pipeline(StandardScaler(), KMeans(random_state=0, n_init=1)).set_output(transform="default")
    search = GridSearchCV(model, {"kmeans__n_clusters": [2, 3]}, cv=2).fit(X)
    assert all(where for _, where in ran(on))
    assert ("KMeans.score", True) in ran(on)
    on.off()
    plain = GridSearchCV(clone(model), {"kmeans__n_clusters": [2, 3]}, cv=2).fit(X)
    np.testing.assert_allclose(search.cv_results_["mean_test_score"], plain.cv_results_["mean_test_score"])
    assert search.best_params_ == plain.best_params_
    np.testing.assert_array_equal(search.best_estimator_.predict(X), plain.best_estimator_.predict(X))


def test_data_frames_and_set_output(on: Acceleration) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(X, columns=list("abcd"))
    scaled = StandardScaler().set_output(transform="pandas").fit_transform(frame)
    assert list(scaled.columns) == list("abcd")
    assert ran(on) == [("StandardScaler.fit_transform", True)]
    with pytest.raises(ValueError, match="feature names"):
        StandardScaler().fit(frame).transform(frame[list("dcba")])


@pytest.mark.parametrize(
    ("model", "data", "words"),
    [
        (NearestNeighbors(metric="canberra"), (X,), "metric='canberra' is not computed on the engines"),
        (PCA(2, svd_solver="arpack", random_state=0), (sparse.csr_matrix(X),), "sparse"),
        (LogisticRegression(solver="liblinear"), (X, CLASSES), "solver='liblinear' was given"),
        (StandardScaler(), (X.astype(np.float16),), "float16"),
    ],
    ids=["metric", "sparse", "solver", "float16"],
)
def test_what_the_engines_do_not_take_stays_scikit_learns(
    on: Acceleration, model: Any, data: tuple[Any, ...], words: str
) -> None:
    fitted = clone(model).fit(*data)
    (entry,) = on.log.since(0).entries
    assert entry.engines == 0
    assert words.lower() in str(entry).lower()
    with xpulab.accel(strict=True, least=0), pytest.raises(UsageError, match=f"{type(model).__name__}.fit would be"):
        clone(model).fit(*data)
    on.off()
    assert public(fitted) == public(clone(model).fit(*data))


def test_small_data_stay_scikit_learns_and_strict_makes_this_an_error(on_pair: xpulab.XPUCluster) -> None:
    with xpulab.accel() as acceleration:
        KMeans(2, n_init=1).fit(X[:20]).predict(X[:20])
        assert ran(acceleration) == [("KMeans.fit", False), ("KMeans.predict", False)]
        assert "80 values are fewer than" in str(acceleration.log.since(0).entries[0])
        with xpulab.accel(strict=True), pytest.raises(UsageError, match=r"80 values are fewer than .*\n.*leave out"):
            KMeans(2, n_init=1).fit(X[:20])
        assert active() is not None
        assert not active().strict  # type: ignore[union-attr]
    assert active() is None


def test_wide_data_stay_scikit_learns(on_pair: xpulab.XPUCluster) -> None:
    with xpulab.accel() as acceleration:
        Ridge().fit(np.zeros((10, 300_000), np.float32), Y[:10])
        assert ran(acceleration) == [("Ridge.fit", False)]
        assert "more columns than rows" in str(acceleration.log.since(0).entries[0])


def test_errors_of_bad_input_are_scikit_learns(on: Acceleration) -> None:
    bad = X.copy()
    bad[3, 1] = np.nan
    with pytest.raises(ValueError, match="Input X contains NaN") as ours:
        KMeans(2).fit(bad)
    on.off()
    with pytest.raises(ValueError, match="Input X contains NaN") as theirs:
        KMeans(2).fit(bad)
    assert str(ours.value) == str(theirs.value)


class Faulty(xpulab.cluster.KMeans):
    """Has a fault."""

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Any:
        return len(self.n_clusters)


def test_a_fault_of_xpulab_is_a_warning_and_a_refusal_is_none(on_pair: xpulab.XPUCluster) -> None:
    """Where scikit-learn raises an error, too, the arguments were wrong, and its error is all."""
    with mock.patch.dict(pairs(), {KMeans: Faulty}), xpulab.accel(least=0) as acceleration:
        said = r"^KMeans\.fit of xpulab raised TypeError: object of type 'int' has no len\(\) \(.*\.py:\d+\), and"
        with pytest.warns(XpulabWarning, match=said) as warned:
            assert KMeans(2, random_state=0).fit(X).labels_.shape == (600,)
        assert warned[0].filename == __file__
        with pytest.raises(ValueError, match="Input X contains NaN"):
            KMeans(2).fit(np.full_like(X, np.nan))
        assert ran(acceleration) == [("KMeans.fit", False)] * 2
    with xpulab.accel(least=0) as acceleration:
        KMeans(2, algorithm="elkan", random_state=0).fit(sparse.csr_matrix(X))  # a warning would be an error here
        NearestNeighbors(metric="canberra").fit(X)
        assert ("NearestNeighbors.fit", False) in ran(acceleration)


def test_a_refusal_draws_no_random_numbers(on: Acceleration) -> None:
    random, same = np.random.RandomState(5), np.random.RandomState(5)
    bad = X.copy()
    bad[0, 0] = np.inf
    with pytest.raises(ValueError, match="infinity"):
        KMeans(2, random_state=random).fit(bad)
    assert random.randint(1000) == same.randint(1000)


def test_subclasses_and_functions(on: Acceleration) -> None:
    class Mine(Lasso):
        pass

    Mine(0.1).fit(X, Y)
    assert not ran(on)
    Lasso(0.1).fit(X, Y)  # inherits fit from ElasticNet
    centers, _, _ = k_means(X, 2, random_state=0, n_init=1)
    assert ran(on) == [("Lasso.fit", True), ("KMeans.fit", True)]
    assert centers.shape == (2, 4)


def test_parameters_may_change_after_a_fit_and_attributes_end_the_twin(on: Acceleration) -> None:
    near = NearestNeighbors(n_neighbors=3).fit(X)
    near.set_params(n_neighbors=2)
    assert near.kneighbors(X[:5])[1].shape == (5, 2)
    assert ran(on)[-1] == ("NearestNeighbors.kneighbors", True)
    assert near.kneighbors()[1].shape == (600, 2)
    km = KMeans(2, random_state=0, n_init=1).fit(X)
    km.cluster_centers_ = km.cluster_centers_[::-1].copy()
    np.testing.assert_array_equal(km.predict(X), 1 - km.labels_)
    assert ran(on)[-1] == ("KMeans.predict", False)
    assert "have not fitted this object" in str(on.log.since(0).entries[-1])


def test_partial_fit_goes_on_from_scikit_learns_state(on_pair: xpulab.XPUCluster) -> None:
    whole, scaler = StandardScaler().fit(X), StandardScaler().partial_fit(X[:100])
    with xpulab.accel(least=0) as acceleration:
        scaler.partial_fit(X[100:400])
        assert ran(acceleration) == [("StandardScaler.partial_fit", True)]
    scaler.partial_fit(X[400:])
    np.testing.assert_allclose(scaler.var_, whole.var_)
    assert scaler.n_samples_seen_ == 600


def test_handles_are_rows_for_scikit_learns_classes(on: Acceleration, on_pair: xpulab.XPUCluster) -> None:
    rows = on_pair.scatter(X)
    labels = KMeans(3, random_state=0, n_init=1).fit(rows).labels_
    np.testing.assert_array_equal(labels, KMeans(3, random_state=0, n_init=1).fit(X).labels_)
    assert "because the rows are there" in str(on.log.since(0).entries[0])


def test_status_shows_sizes_and_what_ran_where(on: Acceleration, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "xpulab.accel"):
        KMeans(2, n_init=1).fit(X)
    assert "KMeans.fit, 600 × 4: on 2 engines, because 2,400 values are at least 0" in caplog.text
    NearestNeighbors(metric="canberra").fit(X)
    status = on.status()
    assert "cluster.KMeans" in str(status)
    assert "cluster.KMeans" in status._repr_html_()
    told = status.to_dict()["estimators"]
    assert told["cluster.KMeans"]["engines"] == 1
    assert told["neighbors.NearestNeighbors"]["scikit-learn"] == 1
    assert told["neighbors.NearestNeighbors"]["reason"] == "not computed on engines"
    assert status.on
    assert str(status).startswith("accel is on: 1 call on the engines, 1 in scikit-learn")
    assert "on the engines, wherever the engines are faster and take what was asked" in str(on)
    on.off()
    ended = on.status()
    assert str(ended).startswith("accel is off")
    for text in (str(ended), ended._repr_html_()):
        assert "cluster.KMeans" in text
        assert "not computed on engines" in text
        assert "cluster.DBSCAN" not in text  # it was not used
    assert "cluster.DBSCAN" in ended.to_dict()["estimators"]


def test_status_says_which_calls_were_too_small(on_pair: xpulab.XPUCluster) -> None:
    with xpulab.accel() as acceleration:
        KMeans(2, n_init=1).fit(X)
        status = acceleration.status()
    assert status.to_dict()["estimators"]["cluster.KMeans"]["reason"] == "too small"
    for text in (str(status), status._repr_html_()):
        assert "too small" in text


def test_after_the_end_a_status_without_a_call_has_one_sentence_in_place_of_a_table(on: Acceleration) -> None:
    on.off()
    for text in (str(on.status()), on.status()._repr_html_()):
        assert "none of scikit-learn" in text
        assert "smallest fit" not in text


def test_wrong_arguments(on_pair: xpulab.XPUCluster) -> None:
    with pytest.raises(UsageError, match="strict='yes' was given"):
        xpulab.accel(strict="yes")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="least=-1 was given"):
        xpulab.accel(least=-1)


def test_without_a_cluster(no_cluster: None) -> None:
    with pytest.raises(NoClusterError, match="no cluster is running; type"):
        xpulab.accel()
    assert active() is None


def test_to_ask_whether_it_is_on_imports_nothing_of_scikit_learn_or_the_cluster() -> None:
    """Each cell of a notebook asks."""
    asks = "import sys; from xpulab.acceleration import active; assert active() is None; print(*sys.modules)"
    said = subprocess.run([sys.executable, "-c", asks], check=True, capture_output=True, text=True).stdout.split()
    assert "xpulab.acceleration" in said
    assert {"sklearn", "numpy", "ipyparallel"}.isdisjoint(said)
