"""k-means of files of which the engines keep all rows, some, or none: the result is that of all rows in memory."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from agreement import assert_same_fit
from constants import constants
from sent import nothing_sent
from sklearn.cluster import KMeans as Reference
from strikes import die_on_rank_1, meetings, pressed_when, strike, wait_for_stop

import xpulab
from xpulab.cluster import DBSCAN, KMeans
from xpulab.exceptions import NotEnoughMemoryError
from xpulab.scanning import Scan

pytestmark = pytest.mark.cluster

N, D, K = 10_007, 5, 9
ROWS = (np.random.default_rng(0).normal(size=(N, D)) + np.random.default_rng(1).integers(0, 5, (N, 1)) * 4).astype("f4")
WEIGHTS = np.random.default_rng(2).integers(0, 3, N) * 0.5

#: Memory of the engines for the rows of the file, beside which 12 bytes for each row and labels are kept.
BUDGETS = {"everything": None, "40 %": f"{int(0.4 * N * (4 * D * 31 / 30 + 12))}B", "nothing": 0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a Parquet file whose row groups fit nothing else, and the same as .npy."""
    folder = tmp_path_factory.mktemp("rows")
    pq.write_table(pa.table({f"c{f}": ROWS[:, f] for f in range(D)}), folder / "x.parquet", row_group_size=1337)
    np.save(folder / "x.npy", ROWS)
    return folder


@pytest.fixture
def rows(folder: Path) -> Scan:
    return xpulab.scan(folder / "x.parquet")


@pytest.fixture(params=BUDGETS)
def budget(request: pytest.FixtureRequest, current: xpulab.XPUCluster) -> Iterator[str]:
    """Give the engines memory for these rows, and have parts of 2,000 rows."""
    current.memory = BUDGETS[request.param]
    with constants(current, "xpulab.kernels.streamed", PIECE_BYTES=2000 * 4 * D):
        yield request.param
    current.memory = None


def said(estimator: Any) -> str:
    return "\n".join(estimator.report_.notes)


def with_all(fit: Callable[[], Any]) -> Any:
    """Return what a fit gives whose rows may all be in memory."""
    cluster = xpulab.current_cluster()
    memory, cluster.memory = cluster.memory, None
    try:
        return fit()
    finally:
        cluster.memory = memory


def require_said(estimator: KMeans, budget: str) -> None:
    """Check that the report says what was kept and read."""
    notes = said(estimator)
    assert ("of the rows were kept" in notes) == (budget != "everything")
    if budget == "nothing":
        assert "0 % of the rows were kept on the engines (0 of 10,007); the others were read again in" in notes
        assert re.search(r"passes of 195 KiB each, at \d+\.\d\d GB/s; an engine waited for them", notes)
    elif budget == "40 %":
        share = int(notes[notes.index("% of the rows") - 3 :].split(" ")[0])
        assert 30 <= share <= 40


@pytest.mark.fraction(3)
@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["alike", "weighted"])
@pytest.mark.parametrize("kind", ["parquet", "npy"])
def test_given_centres(budget: str, folder: Path, kind: str, weights: np.ndarray | None) -> None:
    X = xpulab.scan(folder / "x.parquet") if kind == "parquet" else np.load(folder / "x.npy", mmap_mode="r")
    theirs = Reference(K, init=ROWS[:K], n_init=1, max_iter=8, tol=0).fit(ROWS, sample_weight=weights)
    ours = KMeans(K, init=ROWS[:K], n_init=1, max_iter=8, tol=0).fit(X, sample_weight=weights)
    assert_same_fit(ROWS, ours, theirs)
    require_said(ours, budget)


def test_random_rows_of_several_runs_are_those_of_the_rows_in_memory(budget: str, rows: Scan) -> None:
    arguments: dict[str, Any] = {"init": "random", "n_init": 2, "random_state": 3, "max_iter": 20}
    ours, same = KMeans(K, **arguments).fit(rows), with_all(lambda: KMeans(K, **arguments).fit(ROWS))
    np.testing.assert_allclose(ours.inertia_, same.inertia_, rtol=1e-6)
    np.testing.assert_array_equal(ours.labels_, same.labels_)


def test_labels_of_more_centres_than_a_byte_counts(budget: str, rows: Scan) -> None:
    def fit(X: Any) -> KMeans:
        return KMeans(300, init=ROWS[:300], n_init=1, max_iter=3, tol=0).fit(X)

    ours, same = fit(rows), with_all(lambda: fit(ROWS))
    assert same.labels_.max() > 255
    np.testing.assert_array_equal(ours.labels_, same.labels_)
    np.testing.assert_allclose(ours.cluster_centers_, same.cluster_centers_, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(ours.predict(rows), ours.labels_)


def test_an_empty_cluster_gets_the_farthest_row(budget: str, rows: Scan) -> None:
    init = np.concatenate([ROWS[:4], np.full((2, D), 1e3, np.float32)])
    ours, theirs = (kind(6, init=init, n_init=1, max_iter=5).fit(X) for kind, X in ((KMeans, rows), (Reference, ROWS)))
    assert_same_fit(ROWS, ours, theirs)


def test_rows_of_extreme_sizes(budget: str, tmp_path: Path) -> None:
    X = ROWS.astype(np.float64) * 1e200
    np.save(tmp_path / "x.npy", X)
    ours = KMeans(K, init=X[:K], n_init=1, max_iter=4).fit(xpulab.scan(tmp_path / "x.npy"))
    same = with_all(lambda: KMeans(K, init=X[:K], n_init=1, max_iter=4).fit(X))
    np.testing.assert_allclose(ours.cluster_centers_, same.cluster_centers_, rtol=1e-10)


def test_the_start_is_that_of_any_number_of_engines_and_nearly_as_good(
    clusters: Callable[[int], xpulab.XPUCluster], rows: Scan
) -> None:
    found = []
    for n in (1, 3):
        cluster = clusters(n).activate()
        for budget in ("40 %", "nothing"):
            cluster.memory = BUDGETS[budget]
            for weights in (None, WEIGHTS):
                ours = KMeans(K, random_state=0, max_iter=1, tol=0).fit(rows, sample_weight=weights)
                found.append([ours.inertia_, *ours.cluster_centers_.ravel()])
        cluster.memory = None
        assert "were drawn by k-means|| in 6 passes" in said(ours)
        assert "k-means||" not in said(KMeans(K, random_state=0, max_iter=1).fit(rows))
    np.testing.assert_allclose(found, [*found[:2]] * 4, rtol=1e-5)
    best = min(Reference(K, random_state=seed, max_iter=1).fit(ROWS).inertia_ for seed in range(5))
    assert found[0][0] < 1.1 * best


def test_more_centres_than_different_rows(on_pair: xpulab.XPUCluster, tmp_path: Path) -> None:
    X = np.repeat(ROWS[:3], 700, axis=0)
    np.save(tmp_path / "few.npy", X)
    on_pair.memory = 0
    try:
        with pytest.warns(match=r"distinct clusters \(3\)"):
            ours = KMeans(5, random_state=0).fit(xpulab.scan(tmp_path / "few.npy"))
    finally:
        on_pair.memory = None
    assert ours.inertia_ < 1e-6
    assert len(np.unique(ours.labels_)) == 3


def test_a_null_is_found_in_rows_that_are_not_kept(budget: str, tmp_path: Path) -> None:
    columns = {f"c{f}": list(ROWS[:3000, f].astype(float)) for f in range(2)}
    columns["c1"][2900] = None
    pq.write_table(pa.table(columns), tmp_path / "null.parquet", row_group_size=500)
    with pytest.raises(
        ValueError, match=r"contains null, NaN or infinity; the first such row is row 2900, column 'c1'"
    ):
        KMeans(3).fit(xpulab.scan(tmp_path / "null.parquet"))


def test_it_stops_and_resumes_and_survives_a_lost_engine(
    losable: xpulab.XPUCluster, rows: Scan, tmp_path: Path
) -> None:
    arguments: dict[str, Any] = {"init": ROWS[:K], "n_init": 1, "max_iter": 12, "tol": 0}
    whole = KMeans(K, **arguments).fit(ROWS)
    losable.memory = BUDGETS["40 %"]
    try:
        stopped, lost = KMeans(K, **arguments), KMeans(K, **arguments)
        losable.run(strike, 1, wait_for_stop, str(tmp_path / "waits"), iterations=4)
        with pressed_when(tmp_path / "waits"), pytest.raises(KeyboardInterrupt):
            stopped.fit(rows)
        losable.run(meetings)
        assert 0 < stopped.n_iter_ < 12
        stopped.resume()
        losable.run(strike, 1, die_on_rank_1, iterations=2, pause=0.02, kept=str(tmp_path / "kept"))
        lost.fit(rows)
    finally:
        losable.memory = None
    for each in (stopped, lost):
        np.testing.assert_allclose(each.cluster_centers_, whole.cluster_centers_, rtol=1e-5)
        np.testing.assert_array_equal(each.labels_, whole.labels_)
    assert "went on from iteration" in said(lost)


@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["alike", "weighted"])
def test_a_choice_of_the_first_centres_goes_on_with_its_passes(
    on_pair: xpulab.XPUCluster, rows: Scan, tmp_path: Path, weights: np.ndarray | None
) -> None:
    parameters: dict[str, Any] = {"n_init": 2, "max_iter": 3, "random_state": 0}
    on_pair.memory = 0
    try:
        whole, stopped = KMeans(K, **parameters).fit(rows, sample_weight=weights), KMeans(K, **parameters)
        first = KMeans(K, **parameters | {"n_init": 1}).fit(rows, sample_weight=weights)
        for run, fitted in enumerate([None, first]):
            waits = tmp_path / f"waits {run}"
            doing = "drawing the first centres by k-means||: pass 3"  # which has just looked whether to stop
            on_pair.run(strike, 1, wait_for_stop, str(waits), iterations=3 * run, doing=doing)
            with pressed_when(waits), pytest.raises(KeyboardInterrupt) as raised:
                stopped.fit(rows, sample_weight=weights)
            on_pair.run(meetings)
            where = f"after pass 3 of k-means||, which draws the first centres, run {run + 1} of 2; to go on, type"
            assert where in str(raised.value)
            if fitted is None:
                assert stopped.cluster_centers_.shape == (1 + 2 * 2 * K, D)
                assert stopped.inertia_ == pytest.approx(-stopped.score(rows, sample_weight=weights), rel=1e-4)
                assert stopped.n_iter_ == 0
            else:
                np.testing.assert_array_equal(stopped.cluster_centers_, fitted.cluster_centers_)
            stopped.resume()
            np.testing.assert_array_equal(stopped.cluster_centers_, whole.cluster_centers_)
            np.testing.assert_array_equal(stopped.labels_, whole.labels_)
    finally:
        on_pair.memory = None


def test_what_needs_all_rows_is_refused_with_the_numbers(on_pair: xpulab.XPUCluster, rows: Scan) -> None:
    on_pair.memory = "40KB"
    try:
        refused = pytest.raises(
            NotEnoughMemoryError, match=r"X of 10,007 × 5 .* takes 195 KiB, .* memory='40KB' has room"
        )
        with nothing_sent(on_pair), refused:
            DBSCAN().fit(rows)
        np.testing.assert_array_equal(KMeans(K, init=ROWS[:K], n_init=1).fit(rows).predict(rows).shape, (N,))
    finally:
        on_pair.memory = None


def test_init_size_takes_a_sample_of_rows_that_do_not_fit(
    clusters: Callable[[int], xpulab.XPUCluster], rows: Scan
) -> None:
    found = []
    for n in (1, 3):
        cluster = clusters(n).activate()
        for budget in ("40 %", "nothing"):
            cluster.memory = BUDGETS[budget]
            for weights in (None, WEIGHTS):
                ours = KMeans(K, random_state=0, max_iter=1, tol=0, init_size=500).fit(rows, sample_weight=weights)
                found.append([ours.inertia_, *ours.cluster_centers_.ravel()])
            assert "were drawn by k-means++ from 500 rows (init_size), because not all rows fit" in said(ours)
            assert "k-means||" not in said(ours)
        cluster.memory = None
        assert "init_size" not in said(KMeans(K, random_state=0, max_iter=1, init_size=500).fit(rows))
    np.testing.assert_allclose(found, [*found[:2]] * 4, rtol=1e-5)
    best = min(Reference(K, random_state=seed, max_iter=1).fit(ROWS).inertia_ for seed in range(5))
    assert found[0][0] < 1.2 * best
    plain = ours.to_sklearn()
    assert not hasattr(plain, "init_size")
    np.testing.assert_allclose(plain.cluster_centers_, ours.cluster_centers_)
    with pytest.raises(ValueError, match="'init_size' parameter of KMeans must be an int in the range"):
        KMeans(init_size=0).fit(ROWS)
