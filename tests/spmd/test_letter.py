"""What scripts for `sklearnex.spmd` rely on beyond the results, in cells on two engines."""

from __future__ import annotations

import pytest

import xpulab
from xpulab.console.cells import run_cell

pytestmark = pytest.mark.cluster

ROWS = """
import numpy as np
X = np.random.default_rng(0).normal(size=(60, 4)) + 1
weights = np.random.default_rng(1).uniform(0.5, 2, 60)
mine = slice(*[(0, 20), (20, 60)][rank])
alike = np.testing.assert_allclose
"""


def test_arguments_by_position_and_parameters_of_sklearnex(on_pair: xpulab.XPUCluster) -> None:
    run_cell(
        on_pair,
        f"""{ROWS}
from xpulab.spmd import basic_statistics, decomposition, linear_model
weighted = (weights[:, None] * X).mean(axis=0)
alike(basic_statistics.IncrementalBasicStatistics(n_jobs=1).partial_fit(X[mine], weights[mine]).mean_, weighted)
alike(basic_statistics.BasicStatistics().fit(X[mine], None, weights[mine], None).mean_, weighted)
column = basic_statistics.BasicStatistics("sum").fit(X[mine, 0])
alike(column.sum_, X[:, 0].sum())
assert np.ndim(column.sum_) == 0
try:
    basic_statistics.IncrementalBasicStatistics().partial_fit(X[mine, 0])
except ValueError as error:
    assert "Expected 2D array" in str(error)
else:
    raise AssertionError
line = linear_model.IncrementalLinearRegression(n_jobs=1).fit(X[mine], X[mine, 0])
alike(line.predict(X[mine], None, None), X[mine, 0], atol=1e-9)
numbers = decomposition.PCA.get_hyperparameters("fit")
numbers.cpu_macro_block = 5
assert decomposition.PCA.get_hyperparameters("fit").to_dict()["cpu_macro_block"] == 5
decomposition.PCA.reset_hyperparameters("fit")
assert decomposition.PCA.get_hyperparameters("fit").cpu_macro_block == 140
for wrong in (lambda: setattr(numbers, "macro", 5), lambda: decomposition.PCA.get_hyperparameters("transform")):
    try:
        wrong()
    except ValueError as error:
        assert "expected" in str(error)
    else:
        raise AssertionError
""",
    )


def test_hyperparameters_and_parameters_of_forests_are_those_of_sklearnex(on_pair: xpulab.XPUCluster) -> None:
    run_cell(
        on_pair,
        f"""{ROWS}
from xpulab.spmd import covariance, decomposition, ensemble, linear_model
blocks = dict(cpu_max_cols_batched=4096, cpu_small_rows_max_cols_batched=1024, cpu_small_rows_threshold=10000)
lines = dict(cpu_macro_block=8192, gpu_macro_block=16384, **blocks)
expected = {{
    decomposition.PCA: ("fit", dict(cpu_grain_size=1, cpu_macro_block=140, **blocks)),
    covariance.EmpiricalCovariance: ("fit", dict(cpu_grain_size=1, cpu_macro_block=140, **blocks)),
    linear_model.LinearRegression: ("fit", lines),
    linear_model.IncrementalLinearRegression: ("fit", lines),
    ensemble.RandomForestClassifier: ("predict", dict(
        block_size=32, min_number_of_rows_for_vect_seq_compute=32, min_trees_for_threading=100,
        scale_factor_for_vect_parallel_compute=0.3,
    )),
}}
for kind, (method, numbers) in expected.items():
    assert kind.get_hyperparameters(method).to_dict() == numbers, kind

def refused(call, word):
    try:
        call()
    except ValueError as error:
        assert word in str(error), error
    else:
        raise AssertionError(word)

labels = (X[:, 0] > 1).astype(int)
for kind in (ensemble.RandomForestClassifier, ensemble.RandomForestRegressor):
    plain, given = (kind(3, random_state=0, **more).fit(X[mine], labels[mine]) for more in (
        {{}}, dict(max_bins=16, min_bin_size=3, local_trees_mode=True)))
    alike(plain.predict(X[mine]), given.predict(X[mine]))
    assert "all trees are grown from the rows of all ranks" in kind.__doc__
    for wrong in (dict(max_bins=1), dict(min_bin_size=0), dict(local_trees_mode="yes")):
        refused(lambda: kind(3, **wrong).fit(X[mine], labels[mine]), next(iter(wrong)))
refused(lambda: decomposition.IncrementalPCA(2, svd_solver="arpack").fit(X[mine]), "svd_solver")
""",
    )


def test_attributes_are_of_the_kind_of_the_rows_if_asked(on_pair: xpulab.XPUCluster) -> None:
    """Under ``array_api_dispatch=True``; all later calls compute with them, in whatever context."""
    run_cell(
        on_pair,
        f"""{ROWS}
import dpnp, pickle, xpulab
from sklearn.base import clone, is_classifier
from xpulab.spmd import basic_statistics, cluster, covariance, decomposition, linear_model, naive_bayes, neighbors
from xpulab.spmd import ensemble, preprocessing
rows, labels = dpnp.asarray(X[mine]), dpnp.asarray((X[mine, 0] > 1).astype(int))
kinds = [cluster.KMeans(2, random_state=0), cluster.DBSCAN(2.0), decomposition.PCA(2), preprocessing.MaxAbsScaler(),
         decomposition.IncrementalPCA(), covariance.EmpiricalCovariance(), basic_statistics.BasicStatistics(),
         covariance.IncrementalEmpiricalCovariance(), linear_model.LinearRegression(), linear_model.Ridge(),
         linear_model.LogisticRegression(), linear_model.IncrementalLinearRegression(), naive_bayes.GaussianNB(),
         neighbors.KNeighborsClassifier(3), ensemble.RandomForestClassifier(3, random_state=0)]
for model in kinds:
    plain = clone(model).fit(rows, labels)
    with xpulab.config_context(array_api_dispatch=True):
        model.fit(rows, labels)
    arrays = [name for name, value in vars(plain).items() if name.endswith("_") and isinstance(value, np.ndarray)]
    for name in arrays:
        if name != "feature_names_in_":
            assert isinstance(getattr(model, name), dpnp.ndarray), (model, name)
            alike(dpnp.asnumpy(getattr(model, name)), getattr(plain, name))
    for method in ("predict", "transform", "predict_proba", "score_samples"):
        if hasattr(plain, method):
            found, right = getattr(model, method)(rows), getattr(plain, method)(rows)
            assert isinstance(found, dpnp.ndarray)
            alike(dpnp.asnumpy(found), dpnp.asnumpy(right))
    if hasattr(plain, "get_precision"):
        alike(dpnp.asnumpy(model.get_precision()), plain.get_precision())
    if arrays and not isinstance(model, basic_statistics.BasicStatistics | neighbors.KNeighborsClassifier):
        again = pickle.loads(pickle.dumps(model))
        assert isinstance(getattr(again, arrays[0]), np.ndarray)
        assert all(isinstance(value, np.ndarray) for name, value in vars(model.to_sklearn()).items() if name in arrays)
    if hasattr(plain, "partial_fit") and not is_classifier(plain):
        y = [] if isinstance(model, basic_statistics.BasicStatistics) else [labels]
        plain.partial_fit(rows, *y)
        with xpulab.config_context(array_api_dispatch=True):
            model.partial_fit(rows, *y)
        alike(dpnp.asnumpy(getattr(model, arrays[0])), getattr(plain, arrays[0]))
        assert isinstance(getattr(model, arrays[0]), dpnp.ndarray)
""",
    )


def test_the_settings_of_sklearnex(on_pair: xpulab.XPUCluster) -> None:
    before = xpulab.get_config()
    with xpulab.config_context(target_offload="cpu", allow_fallback_to_host=True, assume_finite=True):
        xpulab.set_config("opencl:cpu", allow_sklearn_after_onedal=False)
        assert xpulab.cluster.KMeans(1, n_init=1).fit([[1.0], [2.0]]).inertia_ == 0.5
        found = xpulab.get_config()
        assert found["allow_fallback_to_host"] is found["assume_finite"] is True
        assert found["allow_sklearn_after_onedal"] is False
        xpulab.set_config(target_offload="gpu:0")
        with pytest.raises(xpulab.exceptions.UsageError, match=r"rank 0 computes on .*; expected 'auto' or 'cpu'"):
            xpulab.cluster.KMeans(1).fit([[1.0], [2.0]])
        with pytest.raises(xpulab.exceptions.UsageError, match="expected 'auto'"):
            xpulab.set_config(target_offload=3)
    assert xpulab.get_config() == before
    run_cell(
        on_pair,
        f"{ROWS}\nimport xpulab\nfrom xpulab.spmd.cluster import KMeans\n"
        "with xpulab.config_context(target_offload=queue):\n    KMeans(2).fit(X[mine])",
    )


BATCHES = """
from xpulab.spmd import basic_statistics, covariance, decomposition, linear_model, preprocessing
kinds = {
    basic_statistics.IncrementalBasicStatistics: ("mean_", "variance_"),
    covariance.IncrementalEmpiricalCovariance: ("location_", "covariance_"),
    decomposition.IncrementalPCA: ("components_", "explained_variance_", "mean_", "var_", "noise_variance_"),
    linear_model.IncrementalLinearRegression: ("coef_", "intercept_"),
    linear_model.IncrementalRidge: ("coef_", "intercept_"),
    preprocessing.MaxAbsScaler: ("max_abs_", "scale_"),
    preprocessing.MinMaxScaler: ("data_min_", "data_max_", "scale_", "min_"),
    preprocessing.StandardScaler: ("mean_", "var_", "scale_"),
}
def targets(kind, y):
    return [y] if "linear_model" in kind.__module__ else []
def fed(model, rows, y, n):
    for part in np.array_split(np.arange(len(rows)), n):
        model.partial_fit(rows[part], *targets(type(model), y[part]))
    return model
"""


def test_batches_of_ranks_are_joined_at_the_first_look(on_pair: xpulab.XPUCluster) -> None:
    """Each rank has as many batches as it likes, of far rows, and gets what one fit of all rows has found."""
    run_cell(
        on_pair,
        f"""{ROWS}{BATCHES}
X[:, 0] += 1e5
y = X @ np.arange(1.0, 5.0)
twice = lambda array: np.concatenate([array, array])
for kind, names in kinds.items():
    whole = kind().fit(X[mine], *targets(kind, y[mine]))
    parts = fed(kind(), X[mine], y[mine], 1 + 3 * rank)
    for name in names:
        alike(getattr(parts, name), getattr(whole, name), rtol=1e-6, atol=1e-8, err_msg=name)
    assert parts.n_samples_seen_ == 60
    assert len({{each.tobytes() for each in comm.allgather(np.asarray(getattr(parts, names[0])))}}) == 1
    fed(parts, X[mine], y[mine], 2 - rank)  # after a look
    assert parts.n_samples_seen_ == 120
    whole = kind().fit(twice(X[mine]), *targets(kind, twice(y[mine])))
    for name in names:
        alike(getattr(parts, name), getattr(whole, name), rtol=1e-6, atol=1e-8, err_msg=name)
    assert parts.fit(X[mine], *targets(kind, y[mine])).n_samples_seen_ == 60
    some = kind()  # rank 0 has no rows, and takes part in the look only
    fed(some, X[mine][: 40 * rank], y[mine][: 40 * rank], 2)
    assert some.n_samples_seen_ == 40
""",
    )


def test_incremental_pca_forgets_nothing_on_ranks(on_pair: xpulab.XPUCluster) -> None:
    """The result of fewer components than columns is that of one decomposition of all rows, as in sklearnex."""
    run_cell(
        on_pair,
        f"""{ROWS}
from sklearn.decomposition import PCA
from xpulab.spmd.decomposition import IncrementalPCA
right = PCA(2).fit(X)
names = ("components_", "explained_variance_", "explained_variance_ratio_", "singular_values_", "mean_")
for dtype, tolerance in ((np.float64, 1e-9), (np.float32, 1e-4)):
    for whiten in (False, True):
        rows = X[mine].astype(dtype)
        found = IncrementalPCA(2, whiten=whiten, svd_solver="full").fit(rows)
        parts = IncrementalPCA(2, whiten=whiten, batch_size=5)
        for part in np.array_split(rows, 5):
            parts.partial_fit(part)
        for model in (found, parts):
            for name in names:
                alike(getattr(model, name), getattr(right, name), rtol=tolerance, atol=tolerance, err_msg=name)
            alike(model.noise_variance_, right.noise_variance_, rtol=tolerance)
            alike(model.var_, X.var(axis=0, ddof=1), rtol=tolerance)
            alike(model.to_sklearn().var_, X.var(axis=0), rtol=tolerance)
            assert model.components_.dtype == dtype
        assert parts.to_sklearn().get_params()["batch_size"] == 5
""",
    )


def test_a_rank_alone_transforms_and_predicts(on_pair: xpulab.XPUCluster) -> None:
    """The other ranks go on, also if the call fails; then a call of all ranks works."""
    run_cell(
        on_pair,
        f"""{ROWS}
from xpulab.spmd import decomposition, linear_model
y, labels = X @ np.arange(4.0), (X[:, 0] > 1).astype(int)
kinds = ("LinearRegression", "Ridge", "Lasso", "ElasticNet", "IncrementalLinearRegression", "IncrementalRidge")
pcas = [kind(2).fit(X[mine]) for kind in (decomposition.PCA, decomposition.IncrementalPCA)]
lines = [getattr(linear_model, kind)().fit(X[mine], y[mine]) for kind in kinds]
lines[4].coef_  # which joins the ranks' parts
lines[5].coef_
logistic = linear_model.LogisticRegression().fit(X[mine], labels[mine])
if rank:
    for model in pcas:
        found = model.transform(X[:7])
        alike(found, (X[:7] - model.mean_) @ model.components_.T, atol=1e-9)
        alike(model.inverse_transform(found), found @ model.components_ + model.mean_, atol=1e-9)
    for model in lines:
        alike(model.predict(X[:7]), X[:7] @ model.coef_ + model.intercept_)
    alike(logistic.predict(X[:7]), logistic.predict_proba(X[:7]).argmax(axis=1))
    for wrong in (X[:7, :2], np.full((3, 4), np.nan)):
        try:
            pcas[0].transform(wrong)
        except ValueError:
            pass
        else:
            raise AssertionError
again = decomposition.PCA(2).fit(X[mine])
alike(again.transform(X[mine]), pcas[0].transform(X[mine]))
""",
    )


def test_later_rows_of_float32_and_centres_with_nan_are_those_of_one_process(on_pair: xpulab.XPUCluster) -> None:
    run_cell(
        on_pair,
        f"""{ROWS}
import sklearn.linear_model
from xpulab.spmd import cluster, decomposition, linear_model
far = X * [1, 2, 3, 4] + 1e5
y = far @ np.arange(4.0)
line, right = linear_model.Ridge().fit(far[mine], y[mine]), sklearn.linear_model.Ridge().fit(far, y)
later = far[mine].astype(np.float32)
found, expected = line.predict(later), right.predict(later)
assert found.dtype == expected.dtype
alike(found, expected, atol=1e-6 * y.std())
centres = X[:3].copy()
centres[1, 2] = np.nan
try:
    cluster.KMeans(3, init=centres, n_init=1).fit(X[mine])
except ValueError as error:
    assert "row 1, column 2" in str(error), error
else:
    raise AssertionError
""",
    )
