"""Errors about sparse rows, which say what makes dense rows and what takes sparse ones; rows of unusual objects."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from exported import exported, targets_for, with_known
from scipy import sparse
from sklearn.model_selection import KFold
from sklearn.pipeline import make_pipeline
from sklearn.utils import get_tags

import xpulab
from xpulab.basic_statistics import BasicStatistics
from xpulab.checks import TAKE_SPARSE
from xpulab.cluster import KMeans
from xpulab.decomposition import PCA
from xpulab.ensemble import RandomForestClassifier
from xpulab.linear_model import LinearRegression
from xpulab.metrics import r2_score, silhouette_score
from xpulab.preprocessing import MinMaxScaler, OneHotEncoder, TargetEncoder

X = np.random.default_rng(0).integers(0, 5, (200, 3)).astype(float)
Y = np.arange(200.0) % 3
ROWS = sparse.csr_matrix(X)


def test_the_advice_names_every_estimator_that_takes_sparse_rows() -> None:
    found = set()
    for package in pkgutil.iter_modules(xpulab.__path__):
        if package.ispkg and package.name not in ("spmd", "torch"):
            module = importlib.import_module(f"xpulab.{package.name}")
            for kind in (getattr(module, name) for name in getattr(module, "__all__", ())):
                if not (isinstance(kind, type) and hasattr(kind, "fit")):
                    continue
                if get_tags(kind()).input_tags.sparse:
                    found.add(kind.__name__)
                elif "with_mean" in kind().get_params() and get_tags(kind(with_mean=False)).input_tags.sparse:
                    found.add(f"{kind.__name__}(with_mean=False)")
    assert found == set(TAKE_SPARSE)


@pytest.mark.cluster
@pytest.mark.parametrize(
    "call",
    [
        lambda _: make_pipeline(OneHotEncoder(), PCA(2)).fit(X),
        lambda _: BasicStatistics().fit(ROWS),
        lambda _: LinearRegression().fit(ROWS, Y),
        lambda _: PCA(2).fit(X).transform(ROWS),
        lambda _: RandomForestClassifier().fit(ROWS, Y),
        lambda _: MinMaxScaler().fit(X).inverse_transform(ROWS.tocsc()),
        lambda _: silhouette_score(ROWS, Y),
    ],
    ids=["pipeline", "statistics", "fit", "transform", "forest", "inverse_transform", "metric"],
)
def test_sparse_rows_are_refused_with_advice_that_can_be_followed(
    on_pair: xpulab.XPUCluster, call: Callable[[Any], Any]
) -> None:
    with pytest.raises(
        TypeError, match=r"^Sparse data was passed for X, .*OneHotEncoder\(sparse_output=False\)"
    ) as error:
        call(on_pair)
    assert "TruncatedSVD and TweedieRegressor of xpulab take sparse rows" in str(error.value)
    assert "Use '.toarray()'" not in str(error.value)


@pytest.mark.cluster
def test_the_advice_about_sparse_rows_helps(on_pair: xpulab.XPUCluster) -> None:
    assert make_pipeline(OneHotEncoder(sparse_output=False), PCA(2)).fit_transform(X).shape == (200, 2)
    assert make_pipeline(OneHotEncoder(), KMeans(3, random_state=0)).fit(X)["kmeans"].labels_.shape == (200,)
    with pytest.raises(TypeError, match="Sparse data was passed for y"):
        LinearRegression().fit(X, ROWS)


class _OnlyAnArray:
    """Rows of a library whose `__array__` takes no dtype."""

    def __init__(self, rows: np.ndarray) -> None:
        self._rows = rows

    def __array__(self) -> np.ndarray:
        return self._rows


@pytest.mark.cluster
def test_objects_that_have_only_array(on_pair: xpulab.XPUCluster) -> None:
    X = np.arange(12.0).reshape(6, 2) ** 2
    y, ones = _OnlyAnArray(X @ [1.0, 2.0]), _OnlyAnArray(np.ones(6))
    for rows in (_OnlyAnArray(X), on_pair.scatter(_OnlyAnArray(X))):
        np.testing.assert_allclose(LinearRegression().fit(rows, y, sample_weight=ones).coef_, [1, 2])
    assert r2_score(y, y, sample_weight=ones) == 1.0


@pytest.mark.cluster
@pytest.mark.usefixtures("on_pair")
@pytest.mark.parametrize("kind", exported(), ids=lambda kind: kind.__name__)
def test_every_estimator_takes_objects_that_have_only_array(kind: Any) -> None:
    rows = np.abs(np.rint(3 * np.random.default_rng(0).normal(size=(60, 3)))) + 1
    y = targets_for(kind, np.arange(60) % 3)
    fitted = with_known(kind, n_clusters=2, n_quantiles=10).fit(_OnlyAnArray(rows), _OnlyAnArray(y))
    for method in ("predict", "transform", "score"):
        if hasattr(fitted, method):
            targets = (y,) if method == "score" else ()
            found = getattr(fitted, method)(_OnlyAnArray(rows), *map(_OnlyAnArray, targets))
            expected = getattr(fitted, method)(rows, *targets)
            found, expected = (each.toarray() if sparse.issparse(each) else each for each in (found, expected))
            np.testing.assert_array_equal(found, expected, err_msg=method)


@pytest.mark.cluster
@pytest.mark.usefixtures("on_pair")
def test_the_folds_of_a_target_encoder_take_objects_that_have_only_array() -> None:
    rows, y = np.arange(60.0).reshape(60, 1) % 3, np.arange(60) % 2
    found = TargetEncoder(cv=KFold()).fit_transform(_OnlyAnArray(rows), _OnlyAnArray(y))
    np.testing.assert_array_equal(found, TargetEncoder(cv=KFold()).fit_transform(rows, y))


@pytest.mark.cluster
@pytest.mark.parametrize("number", [2**53 + 1, -(2**53) - 1, 2**63 - 1, 2**64 - 1])
def test_a_column_of_whole_numbers_is_not_rounded_to_other_labels(on_pair: xpulab.XPUCluster, number: int) -> None:
    labels = np.array([5, 7, number], np.uint64 if number > 2**63 else np.int64)
    with pytest.raises(ValueError, match=rf"the number {number} in row 2 would become another one.*return_inverse"):
        on_pair.scatter(labels)
    exact = np.where(labels == number, np.sign(float(number)) * 2.0**60, labels).astype(np.int64)
    assert on_pair.scatter(exact).gather().tolist() == exact.tolist()
