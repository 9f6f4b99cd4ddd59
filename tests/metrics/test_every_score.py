"""Every score is that of scikit-learn, for arrays and handles, with and without weights, and so are its errors."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import sklearn.metrics
from numpy.testing import assert_allclose
from sklearn.model_selection import cross_val_score

import xpulab
from xpulab import metrics
from xpulab.linear_model import LogisticRegression, Ridge

pytestmark = pytest.mark.cluster

ONE_AND_THREE = pytest.mark.parametrize("cluster", [1, 3], indirect=True, ids=["1-engine", "3-engines"])
RNG = np.random.default_rng(0)
N = 301
WEIGHTS = [None, RNG.integers(0, 3, N) * 0.75]
MANY, GUESSES = RNG.integers(0, 4, (2, N))
TWO, TWO_GUESSES = MANY % 2, GUESSES % 2
SCORES = np.round(RNG.normal(size=N) + TWO, 1)
SHARES = RNG.dirichlet(np.ones(4), N)
RIGHT = RNG.gamma(2.0, 1, (N, 2))
PREDICTED = RIGHT * RNG.uniform(0.5, 1.5, (N, 2))

OF_COUNTS: list[tuple[str, dict[str, Any]]] = [
    *((name, {"average": how}) for name in ("f1_score", "jaccard_score") for how in ("micro", "macro", "weighted")),
    ("precision_score", {"average": None}),
    ("recall_score", {"average": "macro", "labels": [2, 0]}),
    ("fbeta_score", {"average": None, "beta": 0.5, "labels": [1, 9], "zero_division": 1.0}),
    ("precision_recall_fscore_support", {}),
    ("precision_recall_fscore_support", {"average": "macro"}),
    ("balanced_accuracy_score", {"adjusted": True}),
    ("matthews_corrcoef", {}),
    ("cohen_kappa_score", {"weights": "quadratic"}),
    ("classification_report", {"output_dict": True}),
    ("confusion_matrix", {"labels": [3, 1], "normalize": "true"}),
]
OF_RANKS: list[tuple[str, dict[str, Any]]] = [
    *((name, {"drop_intermediate": drop}) for name in ("roc_curve", "det_curve") for drop in (True, False)),
    ("precision_recall_curve", {"pos_label": 0}),
    ("roc_auc_score", {}),
    ("roc_auc_score", {"max_fpr": 0.3}),
    ("average_precision_score", {"pos_label": 0}),
]
OF_MANY_RANKS: list[tuple[str, dict[str, Any]]] = [
    *(("roc_auc_score", {"multi_class": "ovr", "average": how}) for how in ("micro", "macro", "weighted", None)),
    ("roc_auc_score", {"multi_class": "ovo", "average": "weighted"}),
    *(("average_precision_score", {"average": how}) for how in ("micro", "macro", "weighted", None)),
    ("brier_score_loss", {}),
]
OF_OUTPUTS: list[tuple[str, dict[str, Any]]] = [
    *(
        (name, {"multioutput": how})
        for name in (
            "mean_absolute_error", "mean_absolute_percentage_error", "mean_squared_log_error", "median_absolute_error",
            "root_mean_squared_error", "root_mean_squared_log_error", "d2_absolute_error_score",
        )
        for how in ("uniform_average", "raw_values")
    ),
    ("explained_variance_score", {"multioutput": "variance_weighted"}),
    ("mean_pinball_loss", {"alpha": 0.2, "multioutput": [0.3, 0.7]}),
    ("d2_pinball_score", {"alpha": 0.2}),
]  # fmt: skip
OF_ONE_OUTPUT: list[tuple[str, dict[str, Any]]] = [
    *((name, {"power": power}) for name in ("mean_tweedie_deviance", "d2_tweedie_score") for power in (-1, 0, 1.5, 3)),
    ("mean_poisson_deviance", {}),
    ("mean_gamma_deviance", {}),
    ("max_error", {}),
]
OF_CLUSTERINGS: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in ("rand_score", "adjusted_rand_score", "fowlkes_mallows_score", "homogeneity_score")),
    ("completeness_score", {}),
    ("homogeneity_completeness_v_measure", {"beta": 0.5}),
    ("v_measure_score", {"beta": 2.0}),
    ("normalized_mutual_info_score", {"average_method": "max"}),
    *(("adjusted_mutual_info_score", {"average_method": how}) for how in ("arithmetic", "geometric")),
]


def forms(cluster: xpulab.XPUCluster, true: np.ndarray, guess: np.ndarray) -> Iterator[tuple[Any, Any]]:
    """Yield two arrays, a handle with one, and two handles. With several ranks, one rank has no rows."""
    counts = [len(true)] if cluster.size == 1 else [0, 100, len(true) - 100]
    here, there = (cluster.scatter(each.astype(np.float64), counts=counts) for each in (true, guess))
    yield true, guess
    yield here, guess
    yield here, there


def numbers_of(report: dict[str, Any]) -> dict[str, float]:
    """Return the numbers of a report, each under one name."""
    lines = {name: line if isinstance(line, dict) else {"": line} for name, line in report.items()}
    return {f"{name} {column}": value for name, line in lines.items() for column, value in line.items()}


def compare(cases: list[tuple[str, dict[str, Any]]], true: Any, guess: Any, forms_of: Any, weights: Any = None) -> None:
    """Compare scores of rows in several forms with scikit-learn's."""
    for name, parameters in cases:
        takes_none = weights is None or name == "max_error" or parameters.get("multi_class") == "ovo"
        given = parameters if takes_none else {**parameters, "sample_weight": weights}
        expected = getattr(sklearn.metrics, name)(true, guess, **given)
        for form in forms_of:
            found = getattr(metrics, name)(*form, **given)
            if isinstance(expected, dict):
                assert numbers_of(found) == pytest.approx(numbers_of(expected))
                continue
            several = isinstance(expected, tuple)
            for mine, theirs in zip(found, expected, strict=True) if several else [(found, expected)]:
                assert (mine is None) == (theirs is None)
                if theirs is not None:
                    assert_allclose(mine, theirs, rtol=1e-9, atol=1e-12, err_msg=f"{name} {parameters}")


@pytest.mark.fraction(2)
@ONE_AND_THREE
@pytest.mark.parametrize("weights", WEIGHTS, ids=["", "weighted"])
def test_scores_of_labels(current: xpulab.XPUCluster, weights: Any) -> None:
    compare(OF_COUNTS, MANY, GUESSES, list(forms(current, MANY, GUESSES)), weights)
    binary: list[tuple[str, dict[str, Any]]]
    binary = [(name, {"pos_label": 0}) for name in ("f1_score", "precision_score", "recall_score", "jaccard_score")]
    compare(binary, TWO, TWO_GUESSES, list(forms(current, TWO, TWO_GUESSES)), weights)


@pytest.mark.fraction(2)
@ONE_AND_THREE
@pytest.mark.parametrize("weights", WEIGHTS, ids=["", "weighted"])
def test_scores_of_ranks(current: xpulab.XPUCluster, weights: Any) -> None:
    compare(OF_RANKS, TWO, SCORES, list(forms(current, TWO, SCORES)), weights)
    compare(OF_MANY_RANKS, MANY, SHARES, list(forms(current, MANY, SHARES)), weights)
    brier: list[tuple[str, dict[str, Any]]] = [
        ("brier_score_loss", {"pos_label": 0}),
        ("brier_score_loss", {"scale_by_half": False}),
    ]
    compare(brier, TWO, SHARES[:, 0], list(forms(current, TWO, SHARES[:, 0])), weights)


@pytest.mark.fraction(2)
@ONE_AND_THREE
@pytest.mark.parametrize("weights", WEIGHTS, ids=["", "weighted"])
def test_scores_of_regressors(current: xpulab.XPUCluster, weights: Any) -> None:
    compare(OF_OUTPUTS, RIGHT, PREDICTED, list(forms(current, RIGHT, PREDICTED)), weights)
    compare(OF_ONE_OUTPUT, RIGHT[:, 0], PREDICTED[:, 0], list(forms(current, RIGHT[:, 0], PREDICTED[:, 0])), weights)


@ONE_AND_THREE
def test_scores_of_two_clusterings(current: xpulab.XPUCluster) -> None:
    compare(OF_CLUSTERINGS, MANY, GUESSES, list(forms(current, MANY, GUESSES)))
    for other in (MANY * 0, 10 - MANY):
        compare(OF_CLUSTERINGS[::2], MANY, other, [(MANY, other)])


def test_a_report_as_text(on_pair: xpulab.XPUCluster) -> None:
    names = np.array(["ant", "bee", "a cat of 5.0"])
    for true, guess in ((MANY, GUESSES), (names[MANY % 3], names[GUESSES % 3])):
        expected = sklearn.metrics.classification_report(true, guess, digits=3)
        assert metrics.classification_report(true, guess, digits=3) == expected
    handle = on_pair.scatter(MANY.astype(np.float32))
    assert metrics.classification_report(handle, GUESSES) == sklearn.metrics.classification_report(MANY, GUESSES)


def test_counts_are_whole_numbers(on_pair: xpulab.XPUCluster) -> None:
    support = metrics.precision_recall_fscore_support(MANY, GUESSES)[3]
    assert support.dtype == np.int64
    np.testing.assert_array_equal(support, np.bincount(MANY))
    assert metrics.confusion_matrix(MANY, GUESSES).dtype == np.int64


def test_strings_of_tables(on_pair: xpulab.XPUCluster) -> None:
    names = np.array(["no", "yes"])
    table = on_pair.scatter(pa.table({"answer": names[TWO], "score": SCORES}))
    for guess in (names[TWO_GUESSES], on_pair.scatter(pa.table({"guess": names[TWO_GUESSES]}))["guess"]):
        assert metrics.f1_score(table["answer"], guess, pos_label="yes") == sklearn.metrics.f1_score(TWO, TWO_GUESSES)
        assert metrics.accuracy_score(table["answer"], guess) == sklearn.metrics.accuracy_score(TWO, TWO_GUESSES)
    expected = sklearn.metrics.roc_auc_score(TWO, SCORES)
    assert metrics.roc_auc_score(table["answer"], table["score"]) == pytest.approx(expected)
    expected = sklearn.metrics.brier_score_loss(TWO, SHARES[:, 0])
    assert metrics.brier_score_loss(table["answer"], SHARES[:, 0], pos_label="yes") == pytest.approx(expected)


REFUSED: list[tuple[str, tuple[Any, Any], dict[str, Any]]] = [
    ("f1_score", (MANY, GUESSES), {}),
    ("f1_score", (TWO, TWO_GUESSES), {"pos_label": 7}),
    ("f1_score", (MANY, GUESSES), {"average": "samples"}),
    ("f1_score", (MANY, GUESSES), {"average": "mean"}),
    ("fbeta_score", (MANY, GUESSES), {"beta": -1}),
    ("recall_score", (MANY, GUESSES[:-1]), {"average": "macro"}),
    ("precision_score", (np.where(TWO, np.nan, 1), TWO), {}),
    ("roc_auc_score", (TWO, np.where(TWO, np.nan, 1)), {}),
    ("roc_auc_score", (MANY, SHARES), {}),
    ("roc_auc_score", (MANY, SHARES), {"multi_class": "ovr", "max_fpr": 0.5}),
    ("roc_auc_score", (MANY, SHARES), {"multi_class": "ovo", "average": None}),
    ("roc_auc_score", (MANY, SHARES * 2), {"multi_class": "ovr"}),
    ("roc_auc_score", (MANY, SHARES), {"multi_class": "ovr", "labels": [0, 1, 2]}),
    ("roc_curve", (MANY, SCORES), {}),
    ("roc_curve", (np.array(["a", "b"])[TWO], SCORES), {}),
    ("precision_recall_curve", (TWO, SHARES), {}),
    ("average_precision_score", (MANY, SHARES), {"pos_label": 2}),
    ("brier_score_loss", (MANY, SHARES[:, 0]), {}),
    ("brier_score_loss", (TWO, SHARES[:, 0] + 1), {}),
    ("mean_squared_log_error", (RIGHT - 3, PREDICTED), {}),
    ("mean_poisson_deviance", (RIGHT[:, 0], PREDICTED[:, 0] - 1), {}),
    ("mean_gamma_deviance", (RIGHT[:, 0] - 1, PREDICTED[:, 0]), {}),
    ("mean_tweedie_deviance", (RIGHT[:, 0], PREDICTED[:, 0]), {"power": 0.5}),
    ("mean_pinball_loss", (RIGHT, PREDICTED), {"alpha": 2}),
    ("max_error", (RIGHT, PREDICTED), {}),
    ("adjusted_mutual_info_score", (MANY, GUESSES), {"average_method": "mean"}),
]


@pytest.mark.parametrize(("name", "rows", "parameters"), REFUSED)
def test_what_scikit_learn_refuses_is_refused(
    name: str, rows: Any, parameters: Any, on_pair: xpulab.XPUCluster
) -> None:
    with pytest.raises((ValueError, NotImplementedError)) as theirs, np.errstate(invalid="ignore"):
        getattr(sklearn.metrics, name)(*rows, **parameters)
    with pytest.raises(theirs.type), np.errstate(invalid="ignore"):
        getattr(metrics, name)(*rows, **parameters)


def test_parameters_are_refused_before_anything_is_sent(on_pair: xpulab.XPUCluster) -> None:
    handle, last = on_pair.scatter(MANY.astype(float)), on_pair.last_report
    for name, parameters in (("f1_score", {"average": "mean"}), ("mean_pinball_loss", {"alpha": 2})):
        with pytest.raises(ValueError, match="must be"):
            getattr(metrics, name)(handle, handle, **parameters)
    with pytest.raises(ValueError, match="multi_class must be in"):
        metrics.roc_auc_score(handle, on_pair.scatter(SHARES))
    assert on_pair.last_report is last


def test_warnings_are_those_of_scikit_learn(on_pair: xpulab.XPUCluster) -> None:
    cases: list[tuple[str, Any, Any]] = [
        ("precision_score", TWO, TWO * 0),
        ("roc_auc_score", TWO * 0, SCORES),
        ("adjusted_rand_score", SCORES + 0.01, MANY),
        ("d2_tweedie_score", [1.0], [2.0]),
    ]
    for name, true, guess in cases:
        said = []
        for module in (metrics, sklearn.metrics):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                getattr(module, name)(true, guess)
            said.append([(each.category, str(each.message)) for each in caught])
        assert said[0] == said[1]
        assert said[0]


def test_scorers_by_name_take_handles(on_pair: xpulab.XPUCluster) -> None:
    rows = np.stack([SCORES, MANY], axis=1)
    X, y = on_pair.scatter(rows), on_pair.scatter(TWO.astype(np.float64))
    model = LogisticRegression().fit(rows, TWO)
    for name in ("roc_auc", "average_precision", "neg_log_loss", "neg_brier_score", "f1", "balanced_accuracy"):
        expected = sklearn.metrics.get_scorer(name)(model, rows, TWO)
        assert metrics.get_scorer(name)(model, X, y) == pytest.approx(expected)
    regressor = Ridge().fit(rows, SCORES)
    expected = sklearn.metrics.get_scorer("neg_median_absolute_error")(regressor, rows, TWO)
    scorer = metrics.get_scorer("neg_median_absolute_error")
    assert scorer(regressor, X, y) == pytest.approx(expected)
    assert metrics.get_scorer(scorer) is scorer
    expected = cross_val_score(model, rows, TWO, scoring="roc_auc", cv=2)
    assert cross_val_score(model, rows, TWO, scoring=metrics.get_scorer("roc_auc"), cv=2) == pytest.approx(expected)
    with pytest.raises(ValueError, match="scikit-learn's works on arrays"):
        metrics.get_scorer("top_k_accuracy")
    with pytest.raises(ValueError, match="'nothing' is not a valid scoring value"):
        metrics.get_scorer("nothing")
