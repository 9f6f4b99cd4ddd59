"""Rows of this process that do not fit into the engines' memory go once to a file, which the engines read in passes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from constants import constants, constants_here
from exported import numbers_of
from leftovers import files_without_names
from sent import nothing_sent
from sklearn.base import clone
from strikes import die_on_rank_1, meetings, pressed_when, strike, wait_for_stop

import xpulab
from xpulab.cluster import BisectingKMeans, KMeans, MiniBatchKMeans
from xpulab.decomposition import PCA
from xpulab.estimator.sending import Packing
from xpulab.estimator.sent_once import SentOnce
from xpulab.exceptions import NotEnoughMemoryError
from xpulab.linear_model import LassoCV, LinearRegression, LogisticRegression, RidgeCV
from xpulab.metrics import davies_bouldin_score
from xpulab.mixture import GaussianMixture
from xpulab.naive_bayes import GaussianNB
from xpulab.preprocessing import RobustScaler, StandardScaler
from xpulab.report import progress

pytestmark = pytest.mark.cluster

N, D, K = 9_001, 5, 4
_drawn = np.random.default_rng(0)
MIDDLES = 8 * np.eye(K, D, dtype=np.float32)
Y = _drawn.integers(0, K, N)
ROWS = (MIDDLES[Y] + _drawn.normal(size=(N, D))).astype(np.float32)
NAMES = [f"c{f}" for f in range(D)]
BUDGETS: dict[str, str | float] = {"40 %": f"{int(0.4 * ROWS.nbytes)}B", "nothing": 0}
SPOOLED = "of rows were written to a file without a name"


def _blocks() -> Iterator[Any]:
    return iter(pa.table(dict(zip(NAMES, part.T, strict=True))) for part in np.array_split(ROWS, 7))


#: The rows in each form that a program may have.
FORMS: dict[str, Callable[[], Any]] = {
    "C order": lambda: ROWS,
    "Fortran order": lambda: np.asfortranarray(ROWS),
    "every second": lambda: np.repeat(ROWS, 2, axis=0)[::2],
    "table": lambda: xpulab.scan(pa.table(dict(zip(NAMES, ROWS.T, strict=True)))),
    "columns and rows of a table": lambda: xpulab.scan(
        pa.table({"more": np.zeros(N + 9)} | {name: np.r_[ROWS[:9, f], ROWS[:, f]] for f, name in enumerate(NAMES)})
    )[NAMES][9:],
    "function": lambda: xpulab.scan(_blocks),
    "dask": lambda: pytest.importorskip("dask.array").from_array(ROWS, chunks=(1000, 2)),
}

CENTRES = MIDDLES + 1
#: Estimators whose fit has the same result in passes, and what the fit takes.
FITS: dict[str, tuple[Any, dict[str, Any]]] = {
    "KMeans": (KMeans(K, init=CENTRES, n_init=1), {}),
    "BisectingKMeans": (BisectingKMeans(3, init="random", random_state=0), {}),
    "MiniBatchKMeans": (MiniBatchKMeans(K, init=CENTRES, n_init=1, random_state=0), {}),
    "GaussianMixture": (GaussianMixture(K, means_init=CENTRES, init_params="random", random_state=0), {}),
    "PCA": (PCA(2), {}),
    "LinearRegression": (LinearRegression(), {"y": ROWS @ np.arange(D) + Y}),
    "RidgeCV": (RidgeCV(), {"y": ROWS @ np.arange(D) + Y}),
    "LassoCV": (LassoCV(cv=3), {"y": ROWS @ np.arange(D) + Y}),
    "LogisticRegression": (LogisticRegression(tol=1e-7), {"y": Y, "sample_weight": 1.0 + Y}),
    "GaussianNB": (GaussianNB(), {"y": Y}),
    "RobustScaler": (RobustScaler(), {}),
}


@pytest.fixture(params=BUDGETS)
def budget(request: pytest.FixtureRequest, current: xpulab.XPUCluster) -> Iterator[str]:
    """Give the engines memory for a part of the rows, and have parts of 1,000 rows."""
    current.memory = BUDGETS[request.param]
    with constants(current, "xpulab.kernels.streamed", PIECE_BYTES=1000 * 4 * D):
        yield request.param
    current.memory = None


def _notes(estimator: Any) -> str:
    return "\n".join(estimator.report_.notes)


@pytest.mark.parametrize("name", FITS)
def test_the_result_is_that_of_rows_in_memory(budget: str, current: xpulab.XPUCluster, name: str) -> None:
    estimator, given = FITS[name]
    before = files_without_names()
    ours = clone(estimator).fit(ROWS, **given)
    current.memory, memory = None, current.memory
    same = clone(estimator).fit(ROWS, **given)
    current.memory = memory
    assert SPOOLED not in _notes(same)
    assert SPOOLED in _notes(ours)
    assert "of the rows were kept on the engines" in _notes(ours)
    for attribute, expected in numbers_of(same).items():
        if attribute == "n_iter_":
            continue  # sums of other parts differ in their last digits
        np.testing.assert_allclose(numbers_of(ours)[attribute], expected, rtol=1e-3, atol=1e-3, err_msg=attribute)
    assert files_without_names() == before


@pytest.mark.parametrize("form", FORMS)
def test_rows_of_each_form_are_written_in_their_order(budget: str, form: str) -> None:
    X, fitted = FORMS[form](), KMeans(K, init=CENTRES, n_init=1)
    assert SPOOLED in _notes(fitted.fit(X))
    np.testing.assert_array_equal(fitted.labels_, Y)
    np.testing.assert_array_equal(fitted.predict(X), Y)
    assert StandardScaler().fit(X).mean_ == pytest.approx(ROWS.mean(axis=0, dtype=float), rel=1e-5)


def test_the_report_shows_how_much_is_written(on_pair: xpulab.XPUCluster) -> None:
    about = "the rows do not fit into memory, and are written to a file: part "
    seen: list[tuple[str, float | None]] = []
    passes, shown = [], threading.Event()

    class View:
        def update(self, report: Any) -> None:
            if report.message.startswith(about):
                seen.append((report.message.removeprefix(about), report.fraction))
                shown.set()

        def close(self, report: Any) -> None: ...

    def blocks() -> Iterator[Any]:
        passes.append(1)
        for number, part in enumerate(np.array_split(ROWS, 4)):
            if len(passes) > 1 and number == 2:  # some parts are written before these rows
                shown.wait(60)
            yield part

    rows = xpulab.scan(blocks)
    on_pair.memory = 0
    unsubscribe = progress.subscribe(lambda report: View())
    with constants_here("xpulab.estimator.spooling", PIECE=ROWS.nbytes // 4 + 20):
        fitted = KMeans(K, init=CENTRES, n_init=1).fit(rows)
    unsubscribe()
    on_pair.memory = None
    assert seen[0] in [(f"{part + 1} of 4", part / 4) for part in range(4)]
    assert (fitted.report_.spooled, fitted.report_.message) == (True, "")


def test_a_score_of_two_arrays(budget: str, current: xpulab.XPUCluster) -> None:
    with constants_here("xpulab.deploy.tasks.rows", LEAST=0):  # so few rows are not checked for a score
        found = davies_bouldin_score(ROWS, Y)
    assert SPOOLED in "\n".join(current.last_report.notes)
    current.memory = None
    assert found == pytest.approx(davies_bouldin_score(ROWS, Y), rel=1e-9)


def test_methods_with_a_result_for_each_row_take_some_rows_after_the_others(on_pair: xpulab.XPUCluster) -> None:
    models = [
        PCA(3).fit(ROWS),
        StandardScaler().fit(ROWS),
        LogisticRegression().fit(ROWS, Y),
        GaussianNB().fit(ROWS, Y),
    ]
    methods = ["transform", "transform", "predict_proba", "predict_joint_log_proba"]
    expected = [getattr(model, method)(ROWS) for model, method in zip(models, methods, strict=True)]
    on_pair.memory = "100KB"
    with (
        constants_here("xpulab.estimator.parts", LEAST=1000),
        constants_here("xpulab.deploy.tasks.rows", LEAST=1000),
    ):
        for model, method, values in zip(models, methods, expected, strict=True):
            np.testing.assert_allclose(getattr(model, method)(ROWS), values, rtol=1e-5, atol=1e-6)
            assert on_pair.last_report.n_samples < N
    on_pair.memory = None


def test_a_wrong_number_is_named_as_in_memory(budget: str) -> None:
    X = ROWS.copy()
    X[8000, 3] = np.nan
    before = files_without_names()
    with pytest.raises(ValueError, match=r"Input X contains NaN.*(\n.*)*row 8000, column 3"):
        KMeans(3).fit(X)
    table = xpulab.scan(pa.table(dict(zip(NAMES, X.T, strict=True))))
    with pytest.raises(ValueError, match="null, NaN or infinity; the first such row is row 8000, column 'c3'"):
        KMeans(3).fit(table)
    np.testing.assert_allclose(StandardScaler().fit(X).mean_, np.nanmean(X, axis=0, dtype=float), rtol=1e-5)
    assert files_without_names() == before


def test_what_needs_all_rows_is_refused(on_pair: xpulab.XPUCluster) -> None:
    on_pair.memory = "40KB"
    refused = pytest.raises(
        NotEnoughMemoryError, match="takes 176 KiB, all of which this call needs at once, and memory="
    )
    with constants_here("xpulab.deploy.tasks.rows", LEAST=0), nothing_sent(on_pair), refused:
        xpulab.cluster.DBSCAN().fit(ROWS)
    on_pair.memory = None


def test_a_disk_without_space_is_told(
    on_pair: xpulab.XPUCluster, environment: Callable[..., None], tmp_path: Path
) -> None:
    environment(TMPDIR=str(tmp_path / "missing"))
    on_pair.memory = 0
    try:
        with nothing_sent(on_pair), pytest.raises(MemoryError, match=r"set the environment variable TMPDIR") as raised:
            KMeans(K).fit(ROWS)
    finally:
        on_pair.memory = None
    assert "180,020 bytes" in str(raised.value)


def test_calls_that_send_once_share_the_file_and_one_that_fails_frees_it(on_pair: xpulab.XPUCluster) -> None:
    once, before = SentOnce(ROWS), files_without_names()
    once.checked = ROWS

    def sent(fails: bool) -> Any:
        packing = Packing(KMeans(K), on_pair, ROWS, held=once, task="KMeans.fit", fits=True)
        packing.require_room()
        with on_pair.outgoing() as outgoing:
            source = packing(outgoing)["source"]
            if fails:
                raise RuntimeError("no such luck")
        return source.rows

    on_pair.memory = 0
    try:
        first, second = sent(fails=False), sent(fails=False)
        assert first is second
        assert files_without_names() == before + 1
        with pytest.raises(RuntimeError, match="no such luck"):
            sent(fails=True)
    finally:
        on_pair.memory = None
    assert once.spool is None
    assert files_without_names() == before  # although two variables hold it


def test_it_stops_and_resumes_and_survives_a_lost_engine(losable: xpulab.XPUCluster, tmp_path: Path) -> None:
    arguments: dict[str, Any] = {"init": ROWS[: 3 * K], "n_init": 1, "max_iter": 12, "tol": 0}
    whole = KMeans(3 * K, **arguments).fit(ROWS)
    losable.memory = BUDGETS["40 %"]
    try:
        stopped, lost = KMeans(3 * K, **arguments), KMeans(3 * K, **arguments)
        losable.run(strike, 1, wait_for_stop, str(tmp_path / "waits"), iterations=2)
        before = files_without_names()
        with pressed_when(tmp_path / "waits"), pytest.raises(KeyboardInterrupt):
            stopped.fit(ROWS)
        assert files_without_names() == before  # although the traceback has the call's variables
        losable.run(meetings)
        stopped.resume()
        losable.run(strike, 1, die_on_rank_1, pause=0.02, kept=str(tmp_path / "kept"))
        lost.fit(ROWS)
    finally:
        losable.memory = None
    for each in (stopped, lost):
        np.testing.assert_allclose(each.cluster_centers_, whole.cluster_centers_, rtol=1e-5)
    assert "went on from iteration" in _notes(lost)
