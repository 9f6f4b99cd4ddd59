"""What the tests of clusters over several hosts share: rows, calls whose rows travel in all ways, and waiting."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import zarr
from machines import Host
from scipy import sparse
from waiting import until, until_none

import xpulab
from xpulab.cluster import DBSCAN, BisectingKMeans, KMeans, MiniBatchKMeans
from xpulab.decomposition import PCA
from xpulab.ensemble import RandomForestClassifier, RandomForestRegressor
from xpulab.impute import SimpleImputer
from xpulab.linear_model import LogisticRegression, Ridge
from xpulab.metrics import silhouette_samples
from xpulab.mixture import GaussianMixture
from xpulab.neighbors import KNeighborsRegressor, NearestNeighbors
from xpulab.preprocessing import OneHotEncoder, QuantileTransformer
from xpulab.scanning import Scan

__all__ = ["WEIGHTS", "X", "Y", "busy", "interrupted_when", "require_clean", "require_same", "results"]

RANDOM = np.random.RandomState(0)
X = np.concatenate([RANDOM.randn(4_000, 6) + centre for centre in (0, 5, 11)]).astype(np.float32)
RANDOM.shuffle(X)
Y = (X[:, 0] > 5).astype(int)
WEIGHTS = RANDOM.rand(len(X))


def busy(cluster: xpulab.XPUCluster, iterations: int = 0) -> bool:
    """Whether all ranks are in the same task, and in this iteration at least."""
    assert cluster.engines.board is not None
    ranks = cluster.engines.board.ranks
    return bool(ranks["task"][0] and len({*ranks["task"]}) == 1 and (ranks["iteration"] >= iterations).all())


def require_clean(host: Host) -> None:
    until_none(lambda: [*host.processes().values(), *host.files()])


def results(cluster: xpulab.XPUCluster, folder: Path, shared: Path) -> dict[str, Any]:
    """Results of calls whose rows, weights and results travel in all ways that there are.

    All hosts see the `shared` folder, and only this host the other one.
    """
    cluster.activate()
    in_rows, in_columns = folder / "rows.npy", folder / "columns.npy"
    np.save(in_rows, X)
    np.save(in_columns, np.asfortranarray(X))
    table = pa.table({f"c{column}": X[:, column] for column in range(X.shape[1])})
    pq.write_table(table, folder / "rows.parquet", row_group_size=1_000)
    stored = zarr.open_array(str(folder / "rows.zarr"), mode="w", shape=X.shape, chunks=(1_000, 4), dtype=X.dtype)
    stored[:] = X
    found: dict[str, Any] = {}
    for name, rows in {
        "array": X,
        "float64": X.astype(np.float64),
        "few": X[:1],
        "file": np.load(in_rows, mmap_mode="r"),
        "file in columns": np.load(in_columns, mmap_mode="r")[:, 1:],
        "parquet": xpulab.scan(folder / "rows.parquet"),
        "zarr": xpulab.scan(folder / "rows.zarr"),
        "sparse": sparse.csr_matrix(np.where(X > 4, X, 0)),
        "handle": cluster.scatter(X, counts=[1_000, *[0] * (cluster.size - 2), 11_000]),
    }.items():
        model = KMeans(1 if name == "few" else 3, random_state=0).fit(rows)
        found[f"{name} centres"], found[f"{name} labels"] = model.cluster_centers_, model.labels_
        found[f"{name} predicted"] = model.predict(rows)
    found["weights"] = KMeans(3, random_state=0).fit(X, sample_weight=WEIGHTS).cluster_centers_
    pca = PCA(3).fit(X)
    found["components"], found["variance"] = pca.components_, pca.explained_variance_
    made = pca.transform(X)  # in shared memory that the engines have written, from where the next call reads it
    found["transformed"] = made
    found["fit of transformed"] = KMeans(3, random_state=0).fit(made).cluster_centers_
    handle = cluster.scatter(X)
    found["gathered"] = handle.gather()
    found["kept"] = pca.transform(handle).gather()
    nearest = NearestNeighbors(n_neighbors=4).fit(X)
    found["distances"], found["indices"] = nearest.kneighbors(X[:500])
    found["density"] = DBSCAN(eps=0.9, min_samples=5).fit(X).labels_
    found["coefficients"] = LogisticRegression().fit(X, Y).coef_
    found["means"] = GaussianMixture(3, random_state=0).fit(handle).means_
    found["batches"] = MiniBatchKMeans(3, random_state=0, batch_size=256).fit(X).cluster_centers_
    found["tree"] = BisectingKMeans(3, random_state=0).fit(handle).labels_
    found["silhouettes"] = silhouette_samples(X[:1_500], found["array labels"][:1_500])
    encoder = OneHotEncoder(sparse_output=False, dtype=np.float32, max_categories=5)
    found["codes"] = encoder.fit_transform(cluster.scatter(X.round())).gather()
    holed = cluster.scatter(np.where(X > 11, np.nan, X).astype(np.float32), allow_nan=True)
    found["imputed"] = SimpleImputer(strategy="median").fit_transform(holed).gather()
    found["quantiles"] = QuantileTransformer(n_quantiles=50, random_state=0).fit_transform(handle).gather()
    missing = np.where(X > 11, np.nan, X)
    forest = RandomForestClassifier(40, max_depth=6, oob_score=True, random_state=0).fit(missing, Y)
    found["thresholds"] = np.concatenate([tree.tree_.threshold for tree in forest.estimators_])
    found["out of bag"], found["classes"] = forest.oob_decision_function_, forest.predict(cluster.scatter(X))
    regressor = RandomForestRegressor(5, max_leaf_nodes=50, random_state=0).fit(handle, cluster.scatter(X[:, :2]))
    found["regression"] = regressor.predict(cluster.scatter(X))
    shutil.copy(folder / "rows.parquet", shared / "rows.parquet")
    for name, place in {"sent": folder, "shared": shared}.items():
        file = xpulab.scan(place / "rows.parquet")
        found[f"{name} components"] = PCA(3).fit(file).components_
        found[f"{name} batches"] = MiniBatchKMeans(3, random_state=0, batch_size=256).fit(file).cluster_centers_
        columns, target = file[["c0", "c1", "c2"]], file["c3"]
        found[f"{name} slopes"] = Ridge().fit(columns, target).coef_
        found[f"{name} near"] = KNeighborsRegressor().fit(columns, target).predict(columns[:500])
    return found | _in_passes(cluster, xpulab.scan(shared / "rows.parquet"))


def _in_passes(cluster: xpulab.XPUCluster, rows: Scan) -> dict[str, Any]:
    """Results of calls in which the engines of each host keep no rows of a file, and read them in each pass."""
    cluster.memory, begun = 0, np.repeat([[0.0], [5.0], [11.0]], 6, axis=1)
    try:
        model = KMeans(3, random_state=0).fit(rows)
        assert any("0 % of the rows were kept" in note for note in model.report_.notes), model.report_.notes
        return {
            "centres of passes": model.cluster_centers_,
            "labels of passes": model.labels_,
            "means of passes": GaussianMixture(3, means_init=begun).fit(rows).means_,
            "components of passes": PCA(3).fit(rows).components_,
            "coefficients of passes": LogisticRegression().fit(rows, Y).coef_,
        }
    finally:
        cluster.memory = None


def require_same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    """Compare the results of two clusters."""
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        if value.dtype.kind == "f":
            np.testing.assert_allclose(found[name], value, rtol=1e-3, atol=1e-3, err_msg=name)
        else:
            np.testing.assert_array_equal(found[name], value, err_msg=name)
    np.testing.assert_array_equal(found["gathered"], X)


def interrupted_when(condition: Callable[[], Any]) -> threading.Thread:
    """Start a thread that sends SIGINT to this process as soon as the condition becomes true.

    The board of this host may show the call before for a tenth of a second.
    """

    def interrupt() -> None:
        until(condition)
        os.kill(os.getpid(), signal.SIGINT)

    until(lambda: not condition())
    thread = threading.Thread(target=interrupt)
    thread.start()
    return thread
