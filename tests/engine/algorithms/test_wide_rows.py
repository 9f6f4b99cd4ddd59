"""The decomposition of fewer rows than columns, on ranks that each have some columns of all rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import xpulab
from xpulab.sharing.sources import bounds_of

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.parametrize("cluster", [1, 3], indirect=True, ids=["1-engine", "3-engines"]),
]


def _decomposed(here: Any, X: np.ndarray, weights: Any, bounds: list[int], centre: bool, exact: bool) -> Any:
    """On an engine: decompose rows, and count what is factorised and sent."""
    from xpulab.engine.algorithms.wide_rows import WideRows

    factorised: list[tuple[int, ...]] = []
    names = ("exchange_rows", "reduce", "gather_blocks", "allgather_arrays", "bcast_array", "allreduce")
    sent = dict.fromkeys(names, 0)

    def noting(home: Any, name: str) -> Any:
        function = getattr(home, name)

        def noted(values: Any, *rest: Any, **more: Any) -> Any:
            if home is np.linalg:
                factorised.append(values.shape)
            else:
                sent[name] += values.nbytes
            return function(values, *rest, **more)

        setattr(home, name, noted)
        return lambda: setattr(home, name, function)

    undo = [noting(here.task.comm, name) for name in sent]
    undo += [noting(np.linalg, name) for name in ("eigh", "svd", "inv", "qr", "cholesky", "solve")]
    try:
        mine = slice(*bounds[here.task.comm.rank : here.task.comm.rank + 2])
        given = None if weights is None else weights[mine].astype(X.dtype)
        none = np.empty((bounds[here.task.comm.rank + 1] - bounds[here.task.comm.rank], 0), X.dtype)
        rows = WideRows.exchanged(here.task, X[mine].copy(), given, none, centre, len(X))
        spectrum = rows.spectrum(exact=exact)
        right = None if spectrum is None else rows.right_vectors(spectrum)
        mean = rows.mean
    finally:
        for each in undo:
            each()
    return None if spectrum is None else vars(spectrum), right, mean, factorised, sent


def decomposed(
    cluster: xpulab.XPUCluster,
    X: np.ndarray,
    weights: Any = None,
    counts: Any = None,
    centre: bool = True,
    exact: bool = False,
) -> list[Any]:
    found = cluster.run(_decomposed, X, weights, bounds_of(len(X), cluster.size, counts), centre, exact)
    return found if isinstance(found, list) else [found]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("exact", [False, True], ids=["products", "triangle"])
def test_only_matrices_of_rows_are_factorised_and_each_number_is_sent_once(
    cluster: xpulab.XPUCluster, dtype: Any, exact: bool
) -> None:
    n, d, size = 12, 3000, cluster.size
    X = np.random.default_rng(0).normal(size=(n, d)).astype(dtype)
    for rank, (_, _, _, factorised, sent) in enumerate(decomposed(cluster, X, None, None, True, exact)):
        assert all(max(shape) <= n for shape in factorised)
        assert bool(factorised) == (rank == 0)
        assert sent["exchange_rows"] <= (X.nbytes // size if size > 1 else 0)
        # The right vectors and the means are those of all columns; all else is of rows x rows.
        gathered = sent["gather_blocks"] + sent["allgather_arrays"]
        assert gathered <= 8 * ((n + 1) * (d // size + 1) + n * n + n) + 8 * size
        assert sent["reduce"] + sent["bcast_array"] + sent["allreduce"] <= 8 * 4 * n * n


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_singular_values_and_right_vectors(data: st.DataObject, cluster: xpulab.XPUCluster) -> None:
    n = data.draw(st.integers(2, 14))
    d, dtype = data.draw(st.integers(n + 1, 60)), data.draw(st.sampled_from([np.float32, np.float64]))
    rank, centre, exact = data.draw(st.integers(1, n)), data.draw(st.booleans()), data.draw(st.booleans())
    random = np.random.default_rng(data.draw(st.integers(0, 99)))
    X = random.normal(size=(n, rank)) @ random.normal(size=(rank, d)) + data.draw(st.sampled_from([0.0, 1.0, 1e3]))
    X = X.astype(dtype)
    weights = random.integers(0, 3, n) + 1.0 * (np.arange(n) < 2) if data.draw(st.booleans()) else None
    counts = None if cluster.size == 1 or data.draw(st.booleans()) else [n - 1, 0, 1]
    (spectrum, right, mean, _, _), *_ = decomposed(cluster, X, weights, counts, centre, exact)
    w = np.ones(n) if weights is None else weights
    middle = w @ X.astype(float) / w.sum() if centre else np.zeros(d)
    A = (X - middle) * np.sqrt(w)[:, None]
    values, vectors = spectrum["values"], spectrum["vectors"]
    expected = np.linalg.svd(A, compute_uv=False)
    tiny = 1e-12 * (expected[0] + np.abs(X).max())
    np.testing.assert_allclose(mean, middle, rtol=1e-10, atol=tiny)
    assert vectors.shape == (n, n - centre)
    np.testing.assert_allclose(values, expected[: len(values)], rtol=1e-9, atol=tiny)
    np.testing.assert_allclose(vectors.T @ vectors, np.eye(len(values)), atol=1e-12)
    np.testing.assert_allclose(right @ right.T, np.eye(len(values)), atol=1e-9)
    np.testing.assert_allclose((vectors * values) @ right, A, atol=1e5 * tiny)


def _columns(here: Any, source: Any, weights: Any, targets: Any) -> Any:
    """On an engine: return the columns of a data set, and what was exchanged and put onto the device for them."""
    from xpulab.engine.algorithms.wide_rows import WideRows
    from xpulab.engine.dataset import Data

    exchanged: list[int] = []
    exchange, comm = here.task.comm.exchange_rows, here.task.comm

    def noting(rows: np.ndarray, counts: np.ndarray) -> np.ndarray:
        exchanged.append(rows.nbytes)
        found: np.ndarray = exchange(rows, counts)
        return found

    comm.exchange_rows = noting
    try:
        data = Data(here.task, source, weights, targets)
        rows = WideRows.of(here.task, data, False)
    finally:
        comm.exchange_rows = exchange
    return rows.rows, rows.own, rows.targets, rows.roots, exchanged, "rows" in vars(data)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("d", [40, 50_000], ids=["copied", "read"])
def test_ranks_read_their_columns_where_the_rows_are(cluster: xpulab.XPUCluster, d: int, dtype: Any) -> None:
    """Nothing is exchanged, and the device gets no row; neither is so for rows that the device has."""
    n, random = 9, np.random.default_rng(0)
    X, y, weights = (random.uniform(1, 2, size=shape).astype(dtype) for shape in ((n, d), (n, 2), n))
    bounds = bounds_of(n, cluster.size, [0] * (cluster.size - 1) + [n])
    handle, target_handle = (cluster.scatter(each, counts=np.diff(bounds).tolist()) for each in (X, y))
    with cluster.outgoing() as outgoing:
        beside, sent = outgoing.send(weights), (outgoing.send_rows(X, bounds), outgoing.send_rows(y, bounds))
        for source, targets in (sent, (handle.source(cluster), target_handle.source(cluster))):
            answers = cluster.run(_columns, source, beside, targets)
            for rows, own, given_targets, roots, exchanged, on_device in answers:
                np.testing.assert_array_equal(rows, X[:, own] * roots[:, None])
                np.testing.assert_array_equal(given_targets, y * roots[:, None])
                np.testing.assert_array_equal(roots, np.sqrt(weights.astype(float)))
                assert on_device == (source not in sent)
                assert source not in sent or exchanged == []
            assert sorted(column for _, own, *_ in answers for column in range(own.start, own.stop)) == list(range(d))
