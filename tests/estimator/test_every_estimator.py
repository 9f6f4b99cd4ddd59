"""Input of every kind to every estimator: frames, strings, objects, files; with scikit-learn's results and errors."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from exported import exported, theirs_of, with_known
from numpy.testing import assert_allclose
from scipy import sparse
from sklearn.base import is_classifier, is_regressor

from xpulab.preprocessing import OneHotEncoder, StandardScaler

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("on_pair")]

RNG = np.random.default_rng(0)
X = np.abs(np.rint(3 * RNG.normal(size=(60, 3)))) + 0.5
#: Methods that take rows and return an array, or distances and indices.
METHODS = (
    "predict", "predict_proba", "decision_function", "transform", "score_samples", "score",
    "kneighbors", "apply", "mahalanobis", "fit_transform", "fit_predict",
)  # fmt: skip


KINDS = list(filter(theirs_of, exported()))
of_each = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)


def made(kind: Any) -> Any:
    return with_known(kind, random_state=0, n_clusters=2, n_quantiles=10, alphas=[0.1, 1.0])


def targets(kind: Any) -> tuple[Any, ...]:
    estimator = kind()
    return (np.arange(60) % 3,) if is_classifier(estimator) else (X @ [1, 2, 3.0],) if is_regressor(estimator) else ()


def fitted_on(kind: Any, rows: Any) -> Any:
    return made(kind).fit(rows, *targets(kind))


def outcome(call: Callable[..., Any], *arguments: Any) -> str:
    """Return "done", or the name of the exception."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            call(*arguments)
        except Exception as error:
            return type(error).__name__
    return "done"


def called(estimator: Any, method: str, rows: Any) -> Any:
    y = targets(type(estimator))
    found = getattr(estimator, method)(rows, *(y if method in ("score", "fit_transform", "fit_predict") else ()))
    found = found[0] if method == "kneighbors" else found
    return found.toarray() if sparse.issparse(found) else found


@of_each
def test_every_method_takes_a_frame_with_names_as_it_takes_the_array(kind: Any) -> None:
    frame = pd.DataFrame(X, columns=list("abc"))
    fitted = [(rows, fitted_on(kind, rows)) for rows in (frame, X)]
    for method in METHODS:
        if hasattr(fitted[0][1], method):
            found, expected = (called(estimator, method, rows) for rows, estimator in fitted)
            assert_allclose(found, expected, err_msg=method)


@of_each
def test_strings_that_look_like_numbers_and_other_objects_are_treated_as_in_scikit_learn(kind: Any) -> None:
    if kind.__name__ in ("OneHotEncoder", "OrdinalEncoder"):
        pytest.skip(
            "the engines encode strings of tables only; tests/preprocessing/test_encoder.py has what is refused"
        )
    numbers = [
        X.astype(str), X.astype("S"), X.astype(str).astype(object), X.astype(str).tolist(), X > 2,
        pd.DataFrame(X.astype(str)),
    ]  # fmt: skip
    forms = [
        *numbers[KINDS.index(kind) % 2 :: 2],  # half of them, in turn: a fit of each takes most of the time
        np.full(X.shape, "a"), pd.DataFrame({0: [{}] * 60, 1: X[:, 0], 2: X[:, 0]}),
        pd.DataFrame({0: [pd.NA] + [2] * 59, 1: X[:, 0], 2: X[:, 0]}),
    ]  # fmt: skip
    kinds = (kind, theirs_of(kind))
    fitted = [fitted_on(each, X) for each in kinds]
    for number, rows in enumerate(forms):
        if kind.__name__ in ("KBinsDiscretizer", "QuantileRegressor") and getattr(rows, "dtype", "") == "bool":
            continue  # NumPy has no percentiles of booleans, and SciPy no programs; the engines take 0 and 1
        found, expected = (outcome(fitted_on, each, rows) for each in kinds)
        assert found == expected, ("fit", number)
        for method in ("predict", "transform", "score_samples", "kneighbors", "score"):
            if all(hasattr(each, method) for each in fitted):
                found, expected = (outcome(called, each, method, rows) for each in fitted)
                assert found == expected, (method, number)


@of_each
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_mapped_file_with_nan_or_infinity_is_refused_as_in_scikit_learn(
    kind: Any, value: float, tmp_path: Path
) -> None:
    rows = X.copy()
    rows[-1, 1] = value
    np.save(tmp_path / "X.npy", rows)
    mapped = np.load(tmp_path / "X.npy", mmap_mode="r")
    found = outcome(fitted_on, kind, mapped)
    assert found == outcome(fitted_on, theirs_of(kind), rows)


def test_a_type_error_of_a_conversion_stays_one_and_names_the_column() -> None:
    with pytest.raises(TypeError, match="No numbers: column 'a'"):
        StandardScaler().fit(pd.DataFrame({"a": [{}, 2], "b": [1, 2.0]}))
    with pytest.raises(ValueError, match="No numbers: column 'a'"):
        StandardScaler().fit(pd.DataFrame({"a": ["x", "y"], "b": [1, 2.0]}))


def test_parameters_that_are_classes_or_cannot_be_described_do_not_end_a_fit() -> None:
    class Silent:
        def __repr__(self) -> str:
            raise RuntimeError("no text")

    class Named(StandardScaler):
        def __init__(self, label: Any = None) -> None:
            super().__init__()
            self.label = label

    for dtype in (np.float32, np.dtype("f4"), X.astype("f4").dtype):
        assert OneHotEncoder(dtype=dtype).fit(X).transform(X).dtype == np.float32
    for label in (Silent(), np.dtype("f8"), type(np.dtype("f8")), np.array(object(), object)):
        assert_allclose(Named(label).fit(X).mean_, X.mean(axis=0))
