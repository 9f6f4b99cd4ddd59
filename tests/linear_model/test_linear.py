"""`LinearRegression` and `Ridge` against scikit-learn, and against NumPy in extended precision."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import sklearn.linear_model
from scipy import sparse
from sklearn.base import clone
from tables import error, reference, table

import xpulab
from xpulab.linear_model import LinearRegression, Ridge

#: Since scikit-learn 1.7, singular values below a tolerance count as zero.
EXACT: dict[str, Any] = {"tol": 0} if hasattr(LinearRegression(), "tol") else {}

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("current")]

few = pytest.mark.parametrize("cluster", [1, 3], indirect=True, ids=["1-engine", "3-engines"])


@pytest.mark.fraction(2)
@few
@pytest.mark.parametrize("offset", [0, 1e4])
@pytest.mark.parametrize("condition", [1, 1e2, 1e4, 1e6])
@pytest.mark.parametrize("weighted", [False, True])
def test_float64_agrees_to_eight_digits(condition: float, offset: float, weighted: bool) -> None:
    X, y, w = table(condition=condition, offset=offset)
    weights = w if weighted else None
    ours, theirs = (c(**EXACT).fit(X, y, weights) for c in (LinearRegression, sklearn.linear_model.LinearRegression))
    expected = reference(X, y, weights)
    assert error(ours.coef_, expected) < 1e-8
    np.testing.assert_allclose(
        ours.intercept_, theirs.intercept_, atol=1e-8 * (1 + offset * np.abs(expected).sum()), rtol=0
    )
    np.testing.assert_allclose(ours.singular_, theirs.singular_, rtol=1e-6)
    assert ours.rank_ == theirs.rank_
    assert error(Ridge(0.5).fit(X, y, weights).coef_, reference(X, y, weights, 0.5)) < 1e-8
    assert ours.score(X, y, weights) == pytest.approx(theirs.score(X, y, weights), abs=1e-8)


@few
@pytest.mark.parametrize("offset", [0, 1e4])
@pytest.mark.parametrize("condition", [1, 30, 1e3])
def test_float32_is_as_good_as_scikit_learn_or_better(condition: float, offset: float) -> None:
    X, y, weights = table(condition=condition, offset=offset, dtype=np.float32)
    for ours, theirs, alpha in (
        (LinearRegression(), sklearn.linear_model.LinearRegression(), 0.0),
        (Ridge(0.5), sklearn.linear_model.Ridge(0.5), 0.5),
    ):
        expected = reference(X, y, weights, alpha)
        mine = error(ours.fit(X, y, weights).coef_, expected)
        assert mine < 1e-4
        assert mine <= max(error(theirs.fit(X, y, weights).coef_, expected), 1e-5)
        assert ours.coef_.dtype == np.float32 == ours.predict(X).dtype


def test_any_number_of_engines_and_targets() -> None:
    X, y, weights = table(t=3, d=5)
    ours = LinearRegression().fit(X, y, weights)
    theirs = sklearn.linear_model.LinearRegression().fit(X, y, weights)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, rtol=1e-10)
    np.testing.assert_allclose(ours.predict(X), theirs.predict(X), atol=1e-10)
    assert ours.score(X, y, weights) == pytest.approx(theirs.score(X, y, weights), abs=1e-12)
    penalties = np.array([0.1, 1.0, 10.0])
    ridge = Ridge(penalties).fit(X, y)
    np.testing.assert_allclose(ridge.coef_, sklearn.linear_model.Ridge(penalties).fit(X, y).coef_, rtol=1e-10)


@few
@pytest.mark.parametrize("shape", [(20, 30), (5, 30), (31, 30), (30, 30), (2, 3), (1, 3)])
@pytest.mark.parametrize("fit_intercept", [True, False])
def test_wide_rows_and_constant_columns(shape: tuple[int, int], fit_intercept: bool) -> None:
    rng = np.random.default_rng(0)
    X, y = rng.uniform(size=shape), rng.normal(size=(shape[0], 2))
    X[:, 1] = 0.1
    for ours, theirs in (
        (LinearRegression, sklearn.linear_model.LinearRegression),
        (Ridge, sklearn.linear_model.Ridge),
    ):
        mine, other = (c(fit_intercept=fit_intercept).fit(X, y) for c in (ours, theirs))
        np.testing.assert_allclose(mine.coef_, other.coef_, atol=1e-9)
        np.testing.assert_allclose(mine.intercept_, other.intercept_, atol=1e-9)
        if ours is LinearRegression:
            assert mine.rank_ == other.rank_
            np.testing.assert_allclose(mine.singular_, other.singular_, atol=1e-9)


@few
def test_equal_columns_have_equal_coefficients() -> None:
    X, y, _ = table()
    X = np.hstack([X, X[:, :2]])
    ours, theirs = (c().fit(X, y) for c in (LinearRegression, sklearn.linear_model.LinearRegression))
    assert ours.rank_ == theirs.rank_ == 8
    np.testing.assert_allclose(ours.coef_, theirs.coef_, rtol=1e-8)


@few
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_positive(dtype: Any) -> None:
    X, y, weights = table(t=2, dtype=dtype)
    ours, theirs = (
        c(positive=True).fit(X, y, weights) for c in (LinearRegression, sklearn.linear_model.LinearRegression)
    )
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-4 if dtype == np.float32 else 1e-8)
    assert (ours.coef_ >= 0).all()
    assert not hasattr(ours, "rank_")
    ridge = Ridge(2.0, positive=True).fit(X, y)
    other = sklearn.linear_model.Ridge(2.0, positive=True, tol=1e-12).fit(X, y)
    np.testing.assert_allclose(ridge.coef_, other.coef_, atol=1e-4)


def test_handles_and_empty_shards(current: xpulab.XPUCluster) -> None:
    X, y, weights = table(300)
    counts = [0] * (current.size - 1) + [300]
    expected = LinearRegression().fit(X, y, weights)
    plain = LinearRegression().fit(X, y)
    sent, targets = current.scatter(X, counts=counts), current.scatter(y, counts=counts)
    for data, right in ((sent, targets), (sent, y), (X, targets)):
        ours = LinearRegression().fit(data, right, weights)
        np.testing.assert_allclose(ours.coef_, expected.coef_, rtol=1e-10)
        assert plain.score(data, right) == pytest.approx(plain.score(X, y), abs=1e-12)
    np.testing.assert_allclose(plain.predict(sent), plain.predict(X), rtol=1e-10)
    single = y.astype(np.float32)
    ours, same = (LinearRegression().fit(sent, each) for each in (current.scatter(single, counts=counts), single))
    np.testing.assert_allclose(ours.coef_, same.coef_, rtol=1e-12)
    if current.size > 1:
        with pytest.raises(ValueError, match="send y with"):
            LinearRegression().fit(sent, current.scatter(y))


@few
def test_a_target_that_is_constant_on_one_rank_and_sorted_columns() -> None:
    X, y, _ = table(900, 3)
    X, y = X[np.argsort(X[:, 0])], np.where(np.arange(900) < 300, 5.0, y)
    np.testing.assert_allclose(
        LinearRegression().fit(X, y).coef_, sklearn.linear_model.LinearRegression().fit(X, y).coef_, rtol=1e-9
    )


@few
def test_mapped_files_data_frames_pickle_and_clone(tmp_path: Path) -> None:
    X, y, _ = table()
    np.save(tmp_path / "X.npy", X)
    expected = sklearn.linear_model.Ridge().fit(X, y)
    frame = pd.DataFrame(X, columns=list("abcdefgh"))
    for data in (np.load(tmp_path / "X.npy", mmap_mode="r"), frame, X.tolist()):
        ours = Ridge().fit(data, pd.Series(y))
        np.testing.assert_allclose(ours.coef_, expected.coef_, rtol=1e-10)
    ours = Ridge().fit(frame, y)
    assert list(ours.feature_names_in_) == list("abcdefgh")
    again, plain = pickle.loads(pickle.dumps(ours)), ours.to_sklearn()
    np.testing.assert_allclose(again.predict(frame), plain.predict(frame), rtol=1e-10)
    assert type(plain) is sklearn.linear_model.Ridge
    assert not hasattr(plain, "report_")
    assert not hasattr(clone(ours), "coef_")


@few
def test_the_report_says_which_way_was_taken() -> None:
    for condition, words in ((1, "columns"), (1e4, "over the residuals"), (1e9, "singular values")):
        X, y, _ = table(condition=condition)
        report = LinearRegression(**EXACT).fit(X, y).report_
        assert words in report.notes[-1]
        assert (report.estimator, report.method, report.status) == ("LinearRegression", "fit", "finished")
    assert "singular values" in Ridge(solver="svd").fit(*table()[:2]).report_.notes[-1]


@few
def test_what_is_refused(current: xpulab.XPUCluster) -> None:
    X, y, weights = table(50)
    before = current.last_report
    with pytest.raises(TypeError, match="dense data is required"):
        LinearRegression().fit(sparse.csr_matrix(X), y)
    for estimator in (LinearRegression(), Ridge()):
        with pytest.raises(ValueError, match="requires y to be passed"):
            estimator.fit(X, None)
        with pytest.raises(ValueError, match="inconsistent numbers of samples"):
            estimator.fit(X, y[:-1])
        with pytest.raises(ValueError, match="Negative values"):
            estimator.fit(X, y, -weights)
    with pytest.raises(ValueError, match="number of penalties do not correspond"):
        Ridge(np.array([1.0, 2.0])).fit(X, y)
    with pytest.raises(ValueError, match="does not support positive fitting"):
        Ridge(solver="svd", positive=True).fit(X, y)
    assert current.last_report is before  # nothing was sent
    fitted = LinearRegression().fit(X, y)
    with pytest.raises(ValueError, match="different number of output"):
        fitted.score(X, np.stack([y, y], 1))
    with pytest.warns(sklearn.exceptions.UndefinedMetricWarning):
        assert np.isnan(fitted.score(X[:1], y[:1]))
