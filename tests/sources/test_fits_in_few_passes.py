"""Fits that need one pass or a few: the result is that of rows in memory, on one engine and on three."""

from __future__ import annotations

import contextlib
import re
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from constants import constants
from exported import numbers_of
from sklearn.base import clone
from strikes import die_on_rank_1, meetings, pressed_when, strike, wait_for_stop

import xpulab
from xpulab.basic_statistics import BasicStatistics
from xpulab.decomposition import PCA, IncrementalPCA, TruncatedSVD
from xpulab.discriminant_analysis import LinearDiscriminantAnalysis, QuadraticDiscriminantAnalysis
from xpulab.feature_extraction.text import TfidfTransformer
from xpulab.impute import SimpleImputer
from xpulab.linear_model import (
    IncrementalLinearRegression,
    LassoCV,
    LinearRegression,
    LogisticRegression,
    RidgeClassifierCV,
    RidgeCV,
)
from xpulab.mixture import GaussianMixture
from xpulab.naive_bayes import BernoulliNB, GaussianNB
from xpulab.preprocessing import (
    KBinsDiscretizer,
    OneHotEncoder,
    OrdinalEncoder,
    QuantileTransformer,
    RobustScaler,
    TargetEncoder,
)
from xpulab.scanning import Scan

pytestmark = pytest.mark.cluster

N, D = 10_007, 4
random = np.random.default_rng(0)
ROWS = random.normal(size=(N, D)) * [1, 5, 0.1, 20] + [0, 100, -3, 1000]
ROWS[:, 3] += 3 * ROWS[:, 0]
Y = ROWS @ [1.0, 2, -1, 0.5] + random.normal(size=N)
LABELS = np.digitize(ROWS[:, 0] + random.normal(size=N), [-0.5, 0.5])
WEIGHTS = random.integers(0, 3, N).astype(float)
HOLES = np.rint(ROWS)
HOLES[random.random((N, D)) < 0.1] = np.nan
WORDS = np.array(["blue", "green", "red"])[random.integers(0, 3, N)]
BUDGETS: dict[str, str | float] = {"40 %": f"{int(0.4 * ROWS.nbytes)}B", "nothing": 0}

#: Estimators, what their fit takes, whether the rows have NaN, and least numbers of passes.
FITS: dict[str, tuple[Any, dict[str, Any], bool, int]] = {
    "BasicStatistics": (BasicStatistics(), {}, False, 1),
    "BasicStatistics, weighted": (BasicStatistics(), {"sample_weight": WEIGHTS}, False, 1),
    "SimpleImputer": (SimpleImputer(), {}, True, 2),
    "SimpleImputer, median": (SimpleImputer(strategy="median"), {}, True, 9),
    "SimpleImputer, mode of numbers but 1000": (
        SimpleImputer(missing_values=1000.0, strategy="most_frequent"), {}, False, 2,
    ),
    "IncrementalPCA": (IncrementalPCA(2, batch_size=900), {}, False, 1),
    "TruncatedSVD": (TruncatedSVD(2, random_state=0), {}, False, 1),
    "TruncatedSVD, arpack": (TruncatedSVD(2, algorithm="arpack"), {}, False, 1),
    "PCA, full": (PCA(2, svd_solver="full"), {}, False, 1),
    "PCA, randomized": (PCA(2, svd_solver="randomized", random_state=0), {}, False, 1),
    "RobustScaler": (RobustScaler(unit_variance=True), {}, True, 9),
    "QuantileTransformer": (QuantileTransformer(n_quantiles=50, subsample=2000, random_state=0), {}, True, 1),
    "KBinsDiscretizer": (
        KBinsDiscretizer(4, strategy="uniform", subsample=3000, random_state=0), {}, False, 1,
    ),
    "OneHotEncoder": (OneHotEncoder(), {}, True, 1),
    "OrdinalEncoder": (OrdinalEncoder(), {}, True, 1),
    "TargetEncoder": (TargetEncoder(target_type="continuous"), {"y": Y}, False, 1),
    "BernoulliNB, weighted": (BernoulliNB(), {"y": LABELS, "sample_weight": WEIGHTS}, False, 1),
    "TfidfTransformer": (TfidfTransformer(), {}, False, 1),
    "GaussianNB": (GaussianNB(), {"y": LABELS}, False, 2),
    "GaussianNB, weighted": (GaussianNB(), {"y": LABELS, "sample_weight": WEIGHTS}, False, 2),
    "RidgeCV": (RidgeCV([0.1, 10.0]), {"y": Y}, False, 2),
    "RidgeCV, folds": (RidgeCV([0.1, 10.0], cv=3), {"y": Y}, False, 2),
    "RidgeClassifierCV, balanced": (
        RidgeClassifierCV([0.1, 10.0], class_weight="balanced"), {"y": LABELS, "sample_weight": WEIGHTS}, False, 2,
    ),
    "LinearDiscriminantAnalysis": (LinearDiscriminantAnalysis("lsqr"), {"y": LABELS}, False, 1),
    "LinearDiscriminantAnalysis, shrunk": (
        LinearDiscriminantAnalysis("lsqr", shrinkage="auto"), {"y": LABELS}, False, 2,
    ),
    "QuadraticDiscriminantAnalysis": (QuadraticDiscriminantAnalysis(reg_param=0.1), {"y": LABELS}, False, 1),
    "LassoCV": (LassoCV(cv=3, alphas=[0.1, 1.0]), {"y": Y}, False, 2),
    "IncrementalLinearRegression": (IncrementalLinearRegression(), {"y": Y}, False, 1),
}  # fmt: skip


def stored(path: Path, rows: np.ndarray) -> Scan:
    """Write rows as Parquet, whose row groups fit nothing else."""
    names = [f"c{f}" for f in range(rows.shape[1])]
    pq.write_table(pa.Table.from_pandas(pd.DataFrame(rows, columns=names)), path, row_group_size=1337)
    return xpulab.scan(path)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Scan]:
    """Rows with NaN, and rows without."""
    folder = tmp_path_factory.mktemp("rows")
    whole = np.hstack([ROWS[:, :2], np.rint(ROWS[:, 2:])])
    return {holes: stored(folder / f"{holes}.parquet", HOLES if holes else whole) for holes in (False, True)}


@pytest.fixture(params=[1, 3], ids=["1-engine", "3-engines"])
def engines(request: pytest.FixtureRequest, clusters: Callable[[int], xpulab.XPUCluster]) -> xpulab.XPUCluster:
    return clusters(request.param).activate()


@pytest.fixture(params=BUDGETS)
def budget(request: pytest.FixtureRequest, engines: xpulab.XPUCluster) -> Iterator[str]:
    """Give the engines memory for these rows, and have parts of 1,000 rows."""
    engines.memory = BUDGETS[request.param]
    with constants(engines, "xpulab.kernels.streamed", PIECE_BYTES=1000 * 8 * D):
        yield request.param
    engines.memory = None


@contextlib.contextmanager
def in_memory() -> Iterator[None]:
    """Have room for all rows meanwhile."""
    cluster = xpulab.current_cluster()
    memory, cluster.memory = cluster.memory, None
    try:
        yield
    finally:
        cluster.memory = memory


def numbers_by_column(estimator: Any) -> dict[str, np.ndarray]:
    """Return all fitted attributes that are numbers, also those that are a list of the arrays of each column."""
    found = numbers_of(estimator)
    for name in ("categories_", "encodings_", "bin_edges_"):
        for column, values in enumerate(getattr(estimator, name, ())):
            found[f"{name}[{column}]"] = values
    return found


@pytest.mark.fraction(2)
@pytest.mark.parametrize("name", FITS)
def test_the_result_is_that_of_rows_in_memory(budget: str, files: dict[bool, Scan], name: str) -> None:
    estimator, arguments, holes, passes = FITS[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ours = clone(estimator).fit(files[holes], **arguments)
        with in_memory():
            same = clone(estimator).fit(files[holes], **arguments)
    found, expectations = numbers_by_column(ours), numbers_by_column(same)
    assert found.keys() == expectations.keys()
    assert found
    for attribute, expected in expectations.items():
        np.testing.assert_allclose(found[attribute], expected, rtol=1e-6, atol=1e-8, err_msg=attribute)
    notes = "\n".join(ours.report_.notes)
    assert "the others were read again in" in notes
    assert ("0 % of the rows were kept on the engines (0 of" in notes) == (budget == "nothing")
    assert int(notes[notes.index("again in ") + 9 :].split(" ")[0]) >= passes


def test_scores_take_rows_in_parts(budget: str, files: dict[bool, Scan]) -> None:
    rows = files[False]
    X = rows.read()
    scored: list[tuple[Any, tuple[Any, ...], tuple[Any, ...]]] = [
        (LinearRegression(), (Y,), (Y,)),
        (LogisticRegression(solver="newton-cholesky", tol=1.0), (LABELS,), (LABELS, WEIGHTS)),
        (GaussianMixture(2, max_iter=3, tol=10, random_state=0), (), ()),
        (PCA(2), (), ()),
    ]
    for estimator, given, beside in scored:
        with in_memory():
            estimator.fit(X, *given)
        found = estimator.score(rows, *beside)
        notes = "\n".join(xpulab.current_cluster().last_report.notes)
        assert "the others were read again in 1 pass of" in notes, estimator
        with in_memory():
            right = estimator.score(X, *beside)
        assert found == pytest.approx(right, rel=1e-9), estimator


def test_words_of_files_are_encoded_in_parts(budget: str, tmp_path: Path) -> None:
    table = pa.table({"word": WORDS, "number": np.rint(ROWS[:, 1])})
    pq.write_table(table, tmp_path / "words.parquet", row_group_size=1337)
    scan = xpulab.scan(tmp_path / "words.parquet")
    for kind in (OneHotEncoder, OrdinalEncoder):
        ours = kind().fit(scan)
        assert list(ours.categories_[0]) == ["blue", "green", "red"]
        np.testing.assert_array_equal(ours.categories_[1], np.unique(table["number"]))
        assert "the others were read again in 1 pass of" in "\n".join(ours.report_.notes)


@pytest.mark.parametrize("kind", [SimpleImputer, GaussianNB, TruncatedSVD, OneHotEncoder, RobustScaler])
def test_infinity_is_found_in_rows_that_are_not_kept(budget: str, tmp_path: Path, kind: Any) -> None:
    X = np.rint(ROWS)
    X[9000, 1] = np.inf
    y = (LABELS,) if kind is GaussianNB else ()
    with pytest.raises(ValueError, match="infinity"):
        kind().fit(stored(tmp_path / "x.parquet", X), *y)


@pytest.mark.fraction(2)
def test_row_groups_and_dictionaries_beside_the_rows_change_nothing(budget: str, tmp_path: Path) -> None:
    """Arrow cuts batches in other places where a file has a dictionary, and each writer has row groups of its own."""
    table = pa.table({f"c{f}": ROWS[:, f] for f in range(D)})
    with_words = table.append_column("word", pa.array(WORDS).dictionary_encode())
    found = []
    for group in (1000, 1229, N):
        for each in (table, with_words):
            pq.write_table(each, tmp_path / "x.parquet", row_group_size=group)
            rows = xpulab.scan(tmp_path / "x.parquet", columns=["c0", "c1", "c2", "c3"])
            scaler, statistics = RobustScaler().fit(rows), BasicStatistics().fit(rows)
            read = [re.findall(r"again in (.*) each", "".join(fit.report_.notes)) for fit in (scaler, statistics)]
            found.append((scaler.center_.tolist(), statistics.mean_.tolist(), read))
        assert found[-1] == found[-2], group
        np.testing.assert_array_equal(found[-1][0], found[0][0])
        np.testing.assert_allclose(found[-1][1], found[0][1], rtol=1e-12)  # ranks have other rows
        assert [passes.split(" of ")[0] for (passes,) in read] == ["9 passes", "1 pass"], read


@pytest.mark.parametrize(
    ("estimator", "given", "attribute"),
    [
        (GaussianMixture(2, init_params="random", tol=0, max_iter=8, random_state=0), (), "means_"),
        (LogisticRegression(C=1e-3, tol=1e-12, max_iter=30), (LABELS,), "coef_"),
    ],
    ids=["mixture", "classifier"],
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_a_fit_in_passes_resumes_and_survives_a_lost_engine(
    losable: xpulab.XPUCluster, files: dict[bool, Scan], tmp_path: Path, estimator: Any, given: tuple[Any, ...],
    attribute: str,
) -> None:  # fmt: skip
    rows = files[False]
    whole = clone(estimator).fit(rows.read(), *given)
    losable.memory = BUDGETS["40 %"]
    try:
        stopped, lost = clone(estimator), clone(estimator)
        losable.run(strike, 1, wait_for_stop, str(tmp_path / "waits"), iterations=4)
        with pressed_when(tmp_path / "waits"), pytest.raises(KeyboardInterrupt):
            stopped.fit(rows, *given)
        losable.run(meetings)
        assert np.max(stopped.n_iter_) < np.max(whole.n_iter_)
        stopped.resume()
        losable.run(strike, 1, die_on_rank_1, iterations=2, pause=0.02, kept=str(tmp_path / "kept"))
        lost.fit(rows, *given)
    finally:
        losable.memory = None
    for each in (stopped, lost):
        np.testing.assert_allclose(getattr(each, attribute), getattr(whole, attribute), rtol=1e-5, atol=1e-8)
    assert "the others were read again in" in "\n".join(stopped.report_.notes)
    assert "went on from iteration" in "\n".join(lost.report_.notes)


def test_a_fit_stops_between_passes(losable: xpulab.XPUCluster, files: dict[bool, Scan], tmp_path: Path) -> None:
    losable.memory = 0
    try:
        losable.run(strike, 3, wait_for_stop, str(tmp_path / "waits"))
        with pressed_when(tmp_path / "waits"), pytest.raises(KeyboardInterrupt):
            RobustScaler().fit(files[True])
        losable.run(meetings)
        same = RobustScaler().fit(files[True])
    finally:
        losable.memory = None
    np.testing.assert_allclose(same.center_, np.nanmedian(HOLES, axis=0))
