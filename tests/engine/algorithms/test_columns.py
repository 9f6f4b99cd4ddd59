"""Facts about columns, their categories, their bins and their new columns, against scikit-learn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import sklearn.preprocessing
from sklearn.impute import SimpleImputer

from xpulab.engine.algorithms import bins, columns, encoding
from xpulab.engine.dataset import Data
from xpulab.engine.engine import Task
from xpulab.engine.registry import TASKS

RNG = np.random.default_rng(0)
X = RNG.integers(0, 6, (70, 3)).astype(np.float64)
MISSING = np.where(RNG.random(X.shape) < 0.2, np.nan, X)


def test_the_tasks_are_in_their_modules() -> None:
    homes = {name: function.__module__ for name, function in TASKS.items()}
    for module, words in ((columns, "statistics fill unfill products choose join head"), (bins, "edges find")):
        prefix = module.__name__.rpartition(".")[2]
        assert {homes[f"{prefix}.{word}"] for word in words.split()} == {module.__name__}
    assert homes["encoding.encode"] == encoding.__name__


def test_missing_values_are_nan_or_a_number() -> None:
    assert columns.where_missing(np.array([1.0, np.nan, 2.0]), np.nan).tolist() == [False, True, False]
    assert columns.where_missing(np.array([1.0, np.nan, 2.0]), 2.0).tolist() == [False, False, True]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_distinct_numbers_of_each_column(task: Task, given: Callable[..., Data], dtype: Any) -> None:
    rows = MISSING.astype(dtype)
    for column, (values, counts) in zip(rows.T, columns.distinct(task, given(rows).rows), strict=True):
        expected = np.unique(column, return_counts=True)
        np.testing.assert_array_equal(values, expected[0])
        np.testing.assert_array_equal(counts, expected[1])
        assert values.dtype == dtype


def test_columns_by_turns(task: Task) -> None:
    found = columns.by_turns(task, X, lambda column, values: (column, values.sum()))
    assert found == [(column, values.sum()) for column, values in enumerate(X.T)]


@pytest.mark.parametrize("missing", [np.nan, 3.0])
@pytest.mark.parametrize("strategy", ["mean", "median", "most_frequent"])
def test_statistics_are_those_of_the_imputer(ask: Callable[..., Any], strategy: str, missing: float) -> None:
    rows = MISSING if np.isnan(missing) else X
    found = ask("columns.statistics", rows, strategy=strategy, missing=missing)
    value = (
        found["lower"] + found["between"] * (found["upper"] - found["lower"])
        if strategy == "median"
        else found["value"]
    )
    theirs = SimpleImputer(strategy=strategy, missing_values=missing).fit(rows)
    np.testing.assert_allclose(value, theirs.statistics_, rtol=1e-14)
    np.testing.assert_array_equal(found["count"], (~columns.where_missing(rows, missing)).sum(axis=0))


def test_columns_are_chosen_and_the_first_rows_come_back(ask: Callable[..., Any]) -> None:
    assert ask("columns.head", X, n=4)["first"].tolist() == X[:4].tolist()
    assert ask("columns.head", X, n=99)["first"].tolist() == X.tolist()


def test_missing_values_are_filled_and_marked_and_come_back(ask: Callable[..., Any]) -> None:
    theirs = SimpleImputer(add_indicator=True).fit(MISSING)
    three = np.arange(3)
    where: dict[str, Any] = {"missing": np.nan, "columns": three, "indicated": three}
    _, filled = ask("columns.fill", MISSING, shape=(70, 6), values=theirs.statistics_, **where)
    np.testing.assert_allclose(filled, theirs.transform(MISSING), rtol=1e-15)
    _, back = ask("columns.unfill", filled, shape=(70, 3), n_features=3, **where)
    np.testing.assert_array_equal(np.isnan(back), np.isnan(MISSING))
    np.testing.assert_array_equal(back[~np.isnan(back)], MISSING[~np.isnan(back)])


def test_products_of_columns_are_those_of_polynomial_features(ask: Callable[..., Any]) -> None:
    combinations = [(), (0,), (2, 2), (0, 1, 2)]
    _, found = ask("columns.products", X, shape=(70, 4), combinations=combinations)
    np.testing.assert_array_equal(found.T, [np.ones(70), X[:, 0], X[:, 2] ** 2, X.prod(axis=1)])


@pytest.mark.parametrize("weighted", [False, True])
def test_edges_of_bins_and_the_bins_of_numbers(ask: Callable[..., Any], weighted: bool) -> None:
    rows, weights = RNG.normal(size=(70, 2)), RNG.integers(1, 4, 70).astype(np.float64) if weighted else None
    how = {"strategy": "quantile"}
    theirs = sklearn.preprocessing.KBinsDiscretizer(4, encode="ordinal", subsample=None, strategy="quantile")
    theirs.fit(rows, sample_weight=weights)
    found = ask("bins.edges", rows, weights=weights, chosen=None, n_bins=np.array([4, 4]), how=how)
    edges = [edges for edges, _ in found["columns"]]
    for ours, expected in zip(edges, theirs.bin_edges_, strict=True):
        np.testing.assert_array_equal(ours, expected)
    first = np.array([0, 4])
    _, places = ask("bins.find", rows, shape=(70, 2), edges=edges, compared="f8", first=first)
    np.testing.assert_array_equal(places - first, theirs.transform(rows))
    _, encoded = ask("bins.find", rows, shape=(70, 8), edges=edges, compared="f8", first=first, n_encoded=8)
    np.testing.assert_array_equal(encoded.argmax(axis=1), places[:, 0])
    assert (encoded.sum(axis=1) == 2).all()


def test_bins_of_chosen_rows(ask: Callable[..., Any]) -> None:
    rows, chosen = RNG.normal(size=(70, 1)), np.array([3, 8, 20, 41, 69])
    found = ask("bins.edges", rows, chosen=chosen, n_bins=np.array([2]), how={"strategy": "uniform"})
    some = rows[chosen]
    np.testing.assert_allclose(found["columns"][0][0], [some.min(), (some.min() + some.max()) / 2, some.max()])


def test_categories_and_their_columns(ask: Callable[..., Any]) -> None:
    found = ask("encoding.categories", X)
    theirs = sklearn.preprocessing.OneHotEncoder(sparse_output=False).fit(X)
    for ours, expected in zip(found["values"], theirs.categories_, strict=True):
        np.testing.assert_array_equal(ours, expected)
    places = [np.append(np.arange(6) + 6 * column, -1) for column in range(3)]
    other = np.vstack([X, [[99.0, 0.0, 7.0]]])
    answer, encoded = ask(
        "encoding.encode", other, shape=(71, 18), categories=theirs.categories_, places=places, n_encoded=18
    )
    np.testing.assert_array_equal(encoded[:70], theirs.transform(X))
    np.testing.assert_array_equal(np.flatnonzero(encoded[70]), [6])  # the category 0 of the second column alone
    assert [unknown.tolist() for unknown in answer["unknown"]] == [[99.0], [], [7.0]]


def test_quantiles_and_the_places_of_numbers_among_them(ask: Callable[..., Any]) -> None:
    rows = RNG.normal(size=(101, 2))
    percents = np.linspace(0, 100, 11)
    found = ask("encoding.quantiles", rows, percents=percents, chosen=None)["quantiles"]
    np.testing.assert_allclose(found, np.percentile(rows, percents, axis=0), rtol=1e-15)
    theirs = sklearn.preprocessing.QuantileTransformer(n_quantiles=11).fit(rows)
    how: dict[str, Any] = {"quantiles": found, "references": percents / 100, "normal": False}
    _, spread = ask("encoding.spread", rows, shape=(101, 2), inverse=False, **how)
    np.testing.assert_allclose(spread, theirs.transform(rows), atol=1e-14)
    _, back = ask("encoding.spread", spread, shape=(101, 2), inverse=True, **how)
    np.testing.assert_allclose(back, rows, atol=1e-12)


def test_chosen_rows_on_the_host(task: Task, given: Callable[..., Data]) -> None:
    data = given(X)
    np.testing.assert_array_equal(encoding.chosen_of(task, data, None), X)
    np.testing.assert_array_equal(encoding.chosen_of(task, data, np.array([2, 30, 69])), X[[2, 30, 69]])
