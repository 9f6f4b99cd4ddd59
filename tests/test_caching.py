"""joblib's cache and copies of handles: rows on the engines are neither written to a file nor kept by a cache."""

from __future__ import annotations

import copy
import gc
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import joblib
import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import FunctionTransformer

import xpulab
from xpulab.cluster import KMeans
from xpulab.decomposition import PCA
from xpulab.exceptions import HandleError
from xpulab.impute import SimpleImputer
from xpulab.linear_model import LinearRegression
from xpulab.preprocessing import PolynomialFeatures, StandardScaler

pytestmark = pytest.mark.cluster

X = np.random.default_rng(0).normal(size=(3000, 4)) * [1, 2, 3, 4]


def steps() -> list[tuple[str, Any]]:
    return [
        ("fill", SimpleImputer()),
        ("scale", StandardScaler()),
        ("products", PolynomialFeatures()),
        ("reduce", PCA(3)),
        ("cluster", KMeans(3, random_state=0)),
    ]


@pytest.fixture
def fits(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the estimators whose `fit` was called; PCA fits and transforms at once."""
    counted: list[str] = []
    for kind in (SimpleImputer, StandardScaler, PolynomialFeatures, KMeans):

        def counting(self: Any, *args: Any, _fit: Any = kind.fit, **kwargs: Any) -> Any:
            counted.append(type(self).__name__)
            return _fit(self, *args, **kwargs)

        monkeypatch.setattr(kind, "fit", counting)
    return counted


def test_steps_of_a_cached_pipeline_on_a_handle_are_fitted_once_for_the_same_rows(
    on_pair: xpulab.XPUCluster, tmp_path: Path, fits: list[str]
) -> None:
    rows, others = on_pair.scatter(X), on_pair.scatter(X[::-1] + 1)
    right = {each.id: Pipeline(steps()).fit(each)["cluster"].inertia_ for each in (rows, others)}
    pipeline = Pipeline(steps(), memory=str(tmp_path))
    for each, n_fits in ((rows, 4), (rows, 1), (others, 4), (rows, 1)):
        fits.clear()
        assert pipeline.fit(each)["cluster"].inertia_ == pytest.approx(right[each.id], rel=1e-9)
        assert len(fits) == n_fits, fits
    assert max(path.stat().st_size for path in tmp_path.rglob("output.pkl")) < X.nbytes / 4  # estimators, and no rows


def test_functions_and_steps_that_give_arrays_are_cached_for_handles(
    on_pair: xpulab.XPUCluster, tmp_path: Path
) -> None:
    calls: list[int] = []

    def centres(rows: Any, k: int) -> np.ndarray:
        calls.append(k)
        return KMeans(k, random_state=0).fit(rows).cluster_centers_

    rows, y = on_pair.scatter(X), on_pair.scatter(X[:, 0].copy())
    cached = joblib.Memory(tmp_path, verbose=0).cache(centres)
    first, again = cached(rows, 3), cached(rows, 3)
    np.testing.assert_array_equal(first, again)
    assert calls == [3]
    cached(on_pair.scatter(X), 3)  # other rows for all that is known without reading them
    assert calls == [3, 3]
    lines = Pipeline([("scale", StandardScaler()), ("line", LinearRegression())], memory=str(tmp_path))
    assert lines.fit(rows, y).score(rows, y) == pytest.approx(1)


def test_a_cache_does_not_keep_rows_and_says_so_if_it_cannot_have_a_result(
    on_pair: xpulab.XPUCluster, tmp_path: Path
) -> None:
    sent = joblib.Memory(tmp_path, verbose=0).cache(lambda n: on_pair.scatter(X[:n]))
    with pytest.warns(Warning, match="cannot be copied, pickled or written to a file, because its rows are on"):
        assert sent(50).shape == (50, 4)
    rows = on_pair.scatter(X)
    path = tmp_path / "scaled"
    joblib.dump(StandardScaler().fit(rows).transform(rows), path)
    np.testing.assert_allclose(joblib.load(path).gather(), StandardScaler().fit_transform(X), atol=1e-12)
    del rows
    gc.collect()
    with pytest.raises(
        HandleError, match=r"StandardScaler\.transform .* no longer on the engines; send them with cluster\.scatter"
    ):
        joblib.load(path)


@pytest.mark.parametrize(
    "make",
    [copy.copy, copy.deepcopy, pickle.dumps, cloudpickle.dumps, lambda rows: copy.deepcopy({"a": [rows]})],
    ids=["copy", "deepcopy", "pickle", "cloudpickle", "in a list"],
)
def test_copies_and_pickles_of_a_handle_say_what_to_do(on_pair: xpulab.XPUCluster, make: Callable[[Any], Any]) -> None:
    rows = on_pair.scatter(X)
    with pytest.raises(
        TypeError, match=r"ShardedArray.* on the engines.*X\.gather\(\).*cluster\.handles\(\)\['rows'\]"
    ):
        make(rows)
    assert (rows.gather() == X).all()


def test_a_clone_of_an_estimator_with_a_handle_as_a_parameter_has_the_same_handle(on_pair: xpulab.XPUCluster) -> None:
    rows = on_pair.scatter(X)
    pipeline = Pipeline([("plain", FunctionTransformer(inv_kw_args=rows)), ("cluster", KMeans(3))])
    assert clone(pipeline)["plain"].inv_kw_args is rows


def test_a_cluster_has_the_last_report_and_resumes_the_fit_that_was_stopped(on_pair: xpulab.XPUCluster) -> None:
    class Stopped:
        def resume(self) -> str:
            return "resumed"

    km = KMeans(3).fit(X)
    assert on_pair.last() is km.report_
    on_pair.interrupted = None
    with pytest.raises(NotFittedError, match="no fit that could go on was interrupted on this cluster"):
        xpulab.interrupted()
    on_pair.interrupted = Stopped()
    assert xpulab.interrupted().resume() == "resumed"
    on_pair.interrupted = None
