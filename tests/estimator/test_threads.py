"""Calls in several threads change nothing that the threads share, warn of nothing, and give the same results."""

from __future__ import annotations

import contextlib
import importlib
import os
import pkgutil
import signal
import threading
import traceback
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import joblib
import numpy as np
import pytest
import sklearn.linear_model
from exported import FEW_TREES, rows_for, targets_for
from sklearn.base import clone, is_classifier
from sklearn.linear_model._logistic import _logistic_regression_path
from sklearn.model_selection import cross_val_score
from sklearn.utils import get_tags
from threadpoolctl import threadpool_info

import xpulab
from xpulab.checks import ONE_AT_A_TIME
from xpulab.estimator.blas import few_threads
from xpulab.estimator.proxy import Proxy
from xpulab.linear_model import LogisticRegression, RidgeCV

pytestmark = pytest.mark.cluster

RNG = np.random.default_rng(0)
X = np.round(RNG.normal(size=(400, 4)) + np.repeat(np.eye(4) * 6, 100, axis=0), 1)
CLASSES = np.repeat([0, 1, 2, 3], 100)
VALUES = X @ [1.0, 2.0, 3.0, 4.0] + RNG.normal(size=400)
#: Parameters without which an estimator would draw random numbers, or take long.
PARAMETERS = {"random_state": 0, "n_components": 2, "n_quantiles": 50, "n_clusters": 4, "cv": 3}
METHODS = ("transform", "predict", "predict_proba", "kneighbors", "score_samples", "partial_fit", "fit_predict")


def estimators() -> Iterator[Any]:
    """Every estimator of every package. The nets of `xpulab.torch` need a module, and PyTorch."""
    for package in pkgutil.iter_modules(xpulab.__path__):
        if not package.ispkg or package.name in ("spmd", "torch"):
            continue
        module = importlib.import_module(f"xpulab.{package.name}")
        for kind in (getattr(module, name) for name in getattr(module, "__all__", ())):
            if isinstance(kind, type) and hasattr(kind, "fit") and kind is not Proxy:
                made = kind()
                few = FEW_TREES.get(kind.__name__, {})
                yield made.set_params(**{k: v for k, v in PARAMETERS.items() if k in made.get_params()} | few)


EVERY = [*estimators(), RidgeCV(cv=3, scoring="r2"), LogisticRegression(solver="newton-cholesky")]


def results(estimator: Any) -> list[Any]:
    """Fit an estimator as several threads do, and call its methods."""
    made = clone(estimator)
    y = CLASSES if is_classifier(made) else targets_for(type(made), VALUES)
    rows = rows_for(type(made), X) if get_tags(made).input_tags.two_d_array else CLASSES
    made.fit(rows, y) if get_tags(made).target_tags.required else made.fit(rows)
    found = [getattr(made, name)(rows) for name in METHODS if hasattr(made, name) and name[:2] not in ("fi", "pa")]
    if hasattr(made, "score"):
        found.append(made.score(rows, y))
    if hasattr(made, "partial_fit") and not hasattr(made, "predict"):
        made.partial_fit(rows)
    return [each.toarray() if hasattr(each, "toarray") else np.asarray(each) for each in found]


def shared() -> dict[str, Any]:
    """What all threads of a process share, and a call could change."""
    return {
        "filters": list(warnings.filters),
        "shown by": warnings.showwarning,
        "environment": dict(os.environ),
        "signals": {each: signal.getsignal(each) for each in signal.valid_signals()},
        "folder": os.getcwd(),
        "floats": np.geterr(),
        "scikit-learn": sklearn.get_config(),
        "BLAS": [(each["filepath"], each["num_threads"]) for each in threadpool_info()],
    }


def test_every_package_is_walked() -> None:
    found = {type(each).__name__ for each in EVERY}
    assert {"BasicStatistics", "DBSCAN", "LassoCV", "OneHotEncoder", "RandomForestClassifier", "SimpleImputer"} <= found
    assert len(found) >= 35


def test_every_estimator_in_three_threads_warns_of_nothing_and_changes_nothing_shared(
    on_pair: xpulab.XPUCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = [results(each) for each in EVERY]
    before = shared()
    enter, unguarded = warnings.catch_warnings.__enter__, []

    def entering(context: Any) -> Any:
        if not ONE_AT_A_TIME._is_owned():  # type: ignore[attr-defined]
            unguarded.append("".join(traceback.format_stack(limit=12)))
        return enter(context)

    monkeypatch.setattr(warnings.catch_warnings, "__enter__", entering)
    together = threading.Barrier(3)

    def each_thread(_: int) -> list[list[Any]]:
        together.wait()
        return [results(each) for each in EVERY]

    with ThreadPoolExecutor(3) as threads:
        found = list(threads.map(each_thread, range(3)))
    monkeypatch.undo()
    assert not unguarded, unguarded[0]
    assert shared() == before
    for of_thread in found:
        for estimator, right, got in zip(EVERY, alone, of_thread, strict=True):
            for one, other in zip(right, got, strict=True):
                np.testing.assert_allclose(other, one, rtol=1e-6, atol=1e-9, err_msg=type(estimator).__name__)


def test_a_cross_validation_in_threads_warns_of_nothing(on_pair: xpulab.XPUCluster) -> None:
    rows, y = RNG.normal(size=(2000, 10)), RNG.integers(0, 2, 2000)
    with joblib.parallel_backend("threading", n_jobs=4):
        for _ in range(3):
            cross_val_score(LogisticRegression(), rows, y, cv=8)


@pytest.mark.parametrize("solver", ["lbfgs", "newton-cg", "newton-cholesky", "liblinear", "sag", "saga"])
def test_no_check_of_parameters_fits(on_pair: xpulab.XPUCluster, monkeypatch: pytest.MonkeyPatch, solver: str) -> None:
    def fitting(*_: Any, **__: Any) -> None:
        raise AssertionError("scikit-learn has begun to fit")

    assert _logistic_regression_path.__module__ == "sklearn.linear_model._logistic"
    for name in ("_logistic_regression_path", "_fit_liblinear"):
        monkeypatch.setattr(f"sklearn.linear_model._logistic.{name}", fitting)
    refused = pytest.raises(ValueError, match="choose one of these")
    with refused if solver == "liblinear" else contextlib.nullcontext():
        LogisticRegression(solver=solver).fit(X, CLASSES)


def test_blas_has_its_threads_again_after_threads_that_limited_them() -> None:
    def numbers() -> set[int]:
        return {each["num_threads"] for each in threadpool_info() if each["user_api"] == "blas"}

    def limiting(columns: int) -> set[int]:
        with few_threads(columns):
            together.wait(0.05) if columns == 300 else None
            return numbers()

    before, together = numbers(), threading.Event()
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(limiting, [300] * 8)) == [{1}] * 8
    assert limiting(2000) == before == numbers()
