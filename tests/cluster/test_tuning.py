"""Real engines tune, report it, and store the results for the next cluster."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import platformdirs
import pytest

import xpulab
from xpulab.cluster import KMeans

X = np.random.default_rng(0).normal(size=(4000, 3)).astype(np.float32)


@pytest.fixture
def shapes(tmp_path: Path, environment: Callable[..., None]) -> Path:
    """An empty folder of launch shapes, and the kernels that were compiled before."""
    kernels = Path(os.environ.get("XPULAB_CACHE") or platformdirs.user_cache_dir("xpulab")) / "kernels"
    kernels.mkdir(parents=True, exist_ok=True)
    (tmp_path / "kernels").symlink_to(kernels)
    environment(XPULAB_CACHE=str(tmp_path))
    return tmp_path / "launch_shapes"


def fitted(n_clusters: int = 5) -> Any:
    return KMeans(n_clusters, init=X[:n_clusters], n_init=1, max_iter=7, tol=0).fit(X)


def _stored_shapes(task: Any) -> list[str]:
    """On an engine: name the files of launch shapes in its folder."""
    from xpulab.kernels.runtime.cache import folder

    return sorted(map(str, folder("launch_shapes").glob("*")))


def _spend_more(task: Any) -> None:
    from xpulab.kernels.kmeans import tune

    tune._SHARE = 1e5


@pytest.mark.cluster
def test_a_fit_tunes_and_the_next_cluster_uses_the_result(
    on_pair: xpulab.XPUCluster, shapes: Path, environment: Callable[..., None]
) -> None:
    """The engines of `on_pair` started with tuning off, as all of the tests' processes do."""
    assert os.environ["XPULAB_TUNE"] == "0"
    stored = on_pair.run(_stored_shapes)
    plain = fitted()
    assert plain.report_.launch_shapes in [f"{rows}x4x16, span 4096 (default, tuning is off)" for rows in (2, 4)]
    assert on_pair.status().launch_shape_files == ()
    assert "tuning is off" in str(on_pair.status())
    assert on_pair.run(_stored_shapes) == stored

    environment(XPULAB_TUNE="all")
    with xpulab.XPUCluster(2) as cluster:
        assert "cuts its work: no k-means yet\n" in str(cluster.status())
        first = fitted()
        assert first.report_.launch_shapes.endswith(" (tuned)")
        assert "the engines tried 8 launch shapes in between" in str(first.report_)
        assert "tried" not in str(fitted().report_)
        (file,) = shapes.iterdir()
        assert cluster.status().launch_shape_files == (str(file),)
        assert str(file) in str(cluster.status())
        assert [engine.launch_shape for engine in cluster.status().engines] == [
            f"{first.report_.launch_shapes}, measured for 1 range of sizes"
        ] * 2
        assert "(tuned)" in cluster.status()._repr_html_()
    assert len(json.loads(file.read_text())["speeds"]["float32 d<=4 k<=8"]) == 8

    environment(XPULAB_TUNE="1")
    with xpulab.XPUCluster(2) as cluster:
        assert "no k-means yet, measured for 1 range of sizes" in str(cluster.status())
        second = fitted()
        assert second.report_.launch_shapes == first.report_.launch_shapes
        assert "tried" not in str(second.report_)
        assert second.report_.launch_shapes in second.report_._repr_html_()
        second.score(X)
        assert cluster.last_report is not None
        assert cluster.last_report.launch_shapes == first.report_.launch_shapes
        # Fits together spend about a twentieth of their time on tuning: after short fits there is no time for it yet.
        assert "tried" not in str(fitted(9).report_)
        cluster.run(_spend_more)
        third = fitted(9)
        assert "tried 8 launch shapes" in str(third.report_)
        assert len(third.report_.iterations) == 7
        assert "tried" not in str(fitted(9).report_)
        np.testing.assert_allclose(third.cluster_centers_, fitted(9).cluster_centers_, rtol=1e-5)
    for other in (first, second):
        np.testing.assert_array_equal(other.labels_, plain.labels_)
        np.testing.assert_array_equal(other.cluster_centers_, plain.cluster_centers_)
