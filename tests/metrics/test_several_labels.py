"""Rows that have several labels, and labels that are named twice: metrics have scikit-learn's values and errors."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import sklearn.metrics
from exported import outcome
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from scipy import sparse

import xpulab
from xpulab import metrics

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("on_pair")]

RNG = np.random.default_rng(0)
N = 40
TRUE, GUESS = RNG.integers(0, 2, (2, N, 4))
TRUE[3] = GUESS[3] = 0
SHARES = RNG.dirichlet(np.ones(4), N)
WEIGHTS = RNG.integers(0, 3, N) * 0.75
MANY, MANY_GUESSES = RNG.integers(0, 4, (2, N))
#: The metrics of two columns of labels, or of labels and scores.
FIRST_TWO = {name: list(inspect.signature(getattr(metrics, name)).parameters)[:2] for name in metrics.__all__}
OF_LABELS = [
    name for name, of in FIRST_TWO.items() if of in (["y_true", "y_pred"], ["y1", "y2"], ["labels_true", "labels_pred"])
    and not re.search("error|deviance|pinball|variance|^r2|^d2", name)
]  # fmt: skip
OF_SCORES = [name for name, of in FIRST_TWO.items() if of[1:] in (["y_score"], ["y_proba"])]
FORMS: dict[str, Callable[[np.ndarray], Any]] = {
    "array": lambda y: y, "list": lambda y: y.tolist(), "bool": lambda y: y == 1, "float32": lambda y: y.astype("f4"),
    "csr": sparse.csr_matrix, "coo": sparse.coo_array, "2 for 1": lambda y: 2 * y, "none": lambda y: 0 * y,
}  # fmt: skip


def compare(name: str, *args: Any, **given: Any) -> None:
    """Compare the values of both functions, or the types of their errors, which a subclass shares."""
    found, expected = (outcome(getattr(module, name), *args, **given) for module in (metrics, sklearn.metrics))
    if isinstance(expected, Exception):
        assert isinstance(found, type(expected)) or (isinstance(found, ValueError) and isinstance(expected, ValueError))
        return
    assert not isinstance(found, Exception), (name, given, found)
    if isinstance(expected, dict | str):
        assert found == (expected if isinstance(expected, str) else pytest.approx(expected, nan_ok=True))
        return
    for mine, theirs in zip(found, expected, strict=True) if isinstance(expected, tuple) else [(found, expected)]:
        assert (mine is None) == (theirs is None)
        if theirs is not None:
            assert_allclose(mine, theirs, rtol=1e-9, atol=1e-12, err_msg=f"{name} {given}")


def averages(name: str) -> list[dict[str, Any]]:
    known = inspect.signature(getattr(metrics, name)).parameters
    return [{"average": how} for how in ("micro", "macro", "weighted", "samples", None)] if "average" in known else [{}]


@pytest.mark.parametrize("name", OF_LABELS)
def test_indicators_of_several_labels_have_the_value_or_the_error_of_scikit_learn(name: str) -> None:
    known = inspect.signature(getattr(metrics, name)).parameters
    pairs = [(form(TRUE), form(GUESS)) for form in FORMS.values()]
    pairs += [(sparse.csr_matrix(TRUE), GUESS), (TRUE, MANY), (MANY, GUESS), (TRUE, GUESS[:, :3]), (TRUE, GUESS[:-1])]
    for number, pair in enumerate(pairs):
        choices = averages(name)
        for given_ in choices if number == 0 else choices[number % len(choices) :][:1]:
            compare(name, *pair, **given_)
            if "sample_weight" in known:
                compare(name, *pair, sample_weight=WEIGHTS, **given_)


@pytest.mark.parametrize("name", OF_LABELS)
@examples(max_examples=4)
@given(
    first=st.sampled_from([2**53, 2**60, 2**63 - 9, -(2**63)]),
    ids=st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), min_size=12, max_size=12),
)
def test_labels_that_float64_would_round_have_the_value_of_scikit_learn(
    name: str, first: int, ids: list[tuple[int, int]]
) -> None:
    truth, guess = np.array([(0, 0), *ids]).T + np.int64(first)  # if none is right, scikit-learn's report has floats
    for given_ in averages(name)[1:2] or [{}]:  # "macro", where there is a choice
        compare(name, truth, guess, **given_)


@pytest.mark.parametrize("name", OF_SCORES)
def test_scores_of_several_labels_have_the_value_or_the_error_of_scikit_learn(name: str) -> None:
    choices = averages(name)
    forms = [form for of, form in FORMS.items() if of != "2 for 1"]  # scikit-learn's functions of scores mean 1
    for number, form in enumerate(forms):  # each form but the first has one of the averages
        for given_ in choices if number == 0 else choices[number % len(choices) :][:1]:
            compare(name, form(TRUE), SHARES, **given_)
            compare(name, form(TRUE), SHARES.astype("f4").tolist(), sample_weight=WEIGHTS, **given_)
    compare(name, TRUE, sparse.csr_matrix(SHARES))


@pytest.mark.parametrize(
    "name", [name for name in OF_LABELS if "labels" in inspect.signature(getattr(metrics, name)).parameters]
)
def test_labels_that_are_named_twice_have_the_value_or_the_error_of_scikit_learn(name: str) -> None:
    for turn, given_ in enumerate(averages(name)):
        for number, labels in enumerate(([0, 0], [2, 0, 2], [3, 3, 1, 1], [9, 9]), turn):
            columns = ((MANY, MANY_GUESSES), (TRUE, GUESS))
            for pair in columns if turn == 0 else columns[number % 2 :][:1]:
                compare(name, *pair, labels=labels, **given_)


@examples(max_examples=40)
@given(st.data())
def test_any_indicators_with_any_labels_and_weights(data: st.DataObject) -> None:
    n, columns = data.draw(st.integers(1, 12)), data.draw(st.integers(2, 9))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    true, guess = rng.random((2, n, columns)) < data.draw(st.sampled_from([0.0, 0.2, 0.6, 1.0]))
    name = data.draw(
        st.sampled_from(["f1_score", "jaccard_score", "accuracy_score", "precision_recall_fscore_support"])
    )
    given_: dict[str, Any] = {"sample_weight": data.draw(st.sampled_from([None, rng.integers(1, 4, n) * 0.5]))}
    if name != "accuracy_score":
        given_["average"] = data.draw(st.sampled_from(["micro", "macro", "weighted", "samples", None]))
        given_["labels"] = data.draw(st.none() | st.lists(st.integers(0, columns - 1), min_size=1, max_size=4))
    form = FORMS[data.draw(st.sampled_from(["array", "csr", "coo", "float32"]))]
    compare(name, form(true.astype(int)), form(guess.astype(int)), **given_)


def test_a_handle_of_indicators_is_refused_in_words(on_pair: xpulab.XPUCluster) -> None:
    with pytest.raises(ValueError, match=r"expected one column\. Indicators .* y\.gather\(\)"):
        metrics.f1_score(on_pair.scatter(TRUE.astype(float)), GUESS, average="micro")
