"""Failures around the engines or on some of them give one error, no rank keeps waiting, and the next fit is right."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from strikes import pressed_when
from trials import forget, remember

import xpulab
from xpulab.cluster import KMeans
from xpulab.exceptions import ClusterStartError, EngineError, KernelLaunchError

pytestmark = pytest.mark.cluster

X = np.random.default_rng(0).normal(size=(5000, 4)).astype(np.float32)
FIT: dict[str, Any] = {"n_clusters": 6, "random_state": 0, "max_iter": 20, "tol": 0}


@pytest.fixture
def engines(pair: xpulab.XPUCluster) -> Iterator[xpulab.XPUCluster]:
    """Two engines, which are repaired after the test, and then give the right result."""
    pair.activate()
    right = KMeans(**FIT).fit(X)
    yield pair
    again = KMeans(**FIT).fit(X)
    np.testing.assert_array_equal(again.labels_, right.labels_)
    np.testing.assert_array_equal(again.cluster_centers_, right.cluster_centers_)


def _break(task: Any, where: str, after: int, ranks: list[int], error: Any) -> None:
    """Make a function of the package raise an exception once on some ranks, after this number of calls."""
    import pkgutil
    from unittest import mock

    owner, name = where.rsplit(".", 1)
    target = pkgutil.resolve_name(owner)
    usual, calls = getattr(target, name), iter(range(after))

    def broken(*given: Any, **named: Any) -> Any:
        if next(calls, None) is None:
            patch.stop()
            raise error
        return usual(*given, **named)

    patch = mock.patch.object(target, name, broken)
    if task.comm.rank in ranks:
        patch.start()


@pytest.mark.parametrize("ranks", [[0], [1], [0, 1]])
@pytest.mark.parametrize(
    ("where", "after"),
    [
        ("xpulab.kernels.kmeans.dense.lloyd_step", 5),
        ("xpulab.engine.algorithms.clustering.kmeans.rows_of", 0),
        ("xpulab.engine.algorithms.clustering.kmeans.write_block", 0),
    ],
)
def test_an_exception_in_the_middle_of_a_fit(
    engines: xpulab.XPUCluster, where: str, after: int, ranks: list[int]
) -> None:
    engines.run(_break, where, after, ranks, ZeroDivisionError("broken"))
    with pytest.raises(EngineError) as caught:
        KMeans(**FIT).fit(X)
    first, second, *_ = str(caught.value).splitlines()
    # If two ranks are to raise, one may see the exception of the other, and leave before it raises.
    raised = [each for each in (ranks, [0], [1]) if set(each) <= set(ranks)]
    assert (first, second.partition(" on ")[0]) in [
        (f"{len(each)} of 2 engines raised ZeroDivisionError", f"rank {', '.join(map(str, each))}") for each in raised
    ]
    assert str(caught.value).count("ZeroDivisionError: broken") == 1


def test_a_kernel_that_one_device_does_not_take(engines: xpulab.XPUCluster) -> None:
    engines.run(
        _break,
        "xpulab.kernels.runtime.launch.Prepared.__call__",
        3,
        [1],
        KernelLaunchError("the device did not take it"),
    )
    with pytest.raises(KernelLaunchError, match=r"the device did not take it \[rank 1 on .*\]") as caught:
        KMeans(**FIT).fit(np.tile(X, (4, 1)))  # a pass over fewer rows launches no kernel
    assert "xpulab/engine/" in str(caught.value.__cause__)


@pytest.mark.parametrize("tune", ["0", "all"])
def test_an_interrupt_while_kernels_compile_or_launch_shapes_are_tried(
    engines: xpulab.XPUCluster, tmp_path: Path, tune: str
) -> None:
    engines.run(forget, str(tmp_path), tune)
    board = engines.engines.board
    assert board is not None
    before = board.ranks["task"].tolist()

    def have_begun() -> bool:
        return all(now not in (0, last) for now, last in zip(board.ranks["task"].tolist(), before, strict=True))

    with pytest.raises(KeyboardInterrupt), pressed_when(have_begun):
        KMeans(**FIT).fit(X)
    assert not any(engines.run(_is_prepared, X.dtype, X.shape[1], FIT["n_clusters"]))
    engines.run(remember)


def _is_prepared(task: Any, dtype: Any, n_features: int, n_clusters: int) -> bool:
    """Return whether all kernels of a fit are compiled, or, if launch shapes are tried, all of them were tried."""
    tuner = task.engine.tuner
    if tuner.mode == "all":
        return not tuner.missing(dtype, n_features, n_clusters)
    return len(task.device.programs) > 8


@pytest.mark.parametrize("ranks", [[1], [0, 1]])
def test_shared_memory_that_is_full_on_the_way_back(engines: xpulab.XPUCluster, ranks: list[int]) -> None:
    fitted = KMeans(**FIT).fit(X)
    right = fitted.transform(X)
    engines.run(_break, "os.pwrite", 0, ranks, OSError(28, "No space left on device"))
    with pytest.raises(MemoryError, match=r"no shared memory for .* bytes more: \[Errno 28\] No space left on device"):
        fitted.transform(X)
    np.testing.assert_array_equal(fitted.transform(X), right)


def test_shared_memory_that_is_full_on_the_way_there(
    engines: xpulab.XPUCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.pwrite", refuse)
        for call in (KMeans(**FIT).fit, engines.scatter):
            with pytest.raises(MemoryError, match="No space left on device"):
                call(X)


def test_without_a_free_port_the_error_has_the_controllers_message(
    tmp_path: Path, environment: Callable[..., None]
) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import socket, sys\n"
        "def refuse(*_): raise OSError(98, 'Address already in use')\n"
        "if any('xpulab.deploy.processes.controller' in word for word in sys.orig_argv): socket.socket.bind = refuse\n"
    )
    environment(PYTHONPATH=os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")])))
    with pytest.raises(ClusterStartError, match=r"(?s)controller ended while .*Address already in use"):
        xpulab.XPUCluster(1, timeout=30).start()


def test_a_cluster_works_where_no_cache_can_be_written(
    engines: xpulab.XPUCluster, tmp_path: Path, environment: Callable[..., None]
) -> None:
    right = KMeans(**FIT).fit(X)
    place = tmp_path / "cache"
    place.write_text("no folder")  # not a question of rights: root may write anywhere
    environment(XPULAB_CACHE=str(place), XPULAB_TUNE="1")
    with xpulab.XPUCluster(1):
        fitted = KMeans(**FIT).fit(X)
    np.testing.assert_array_equal(fitted.labels_, right.labels_)
    np.testing.assert_allclose(fitted.cluster_centers_, right.cluster_centers_, rtol=1e-5)
    assert place.read_text() == "no folder"


def test_damaged_caches_count_as_missing(engines: xpulab.XPUCluster, tmp_path: Path) -> None:
    right = KMeans(**FIT).fit(X)
    (tmp_path / "launch_shapes.json").write_bytes(b'{"speeds": {"float32')
    programs = Path(engines.run(_programs)[0])
    (tmp_path / "programs").mkdir()
    for program in programs.glob("?" * 64):  # without files that other processes are about to write
        (tmp_path / "programs" / program.name).write_bytes(program.read_bytes()[:-100])
    engines.run(forget, str(tmp_path), "1")
    engines.run(lambda task: task.engine.tuner._take_over())
    fitted = KMeans(**FIT).fit(X)
    np.testing.assert_array_equal(fitted.labels_, right.labels_)
    np.testing.assert_array_equal(fitted.cluster_centers_, right.cluster_centers_)
    mended = [file for file in (tmp_path / "programs").iterdir() if _whole(file.read_bytes())]
    assert len(mended) >= 3
    engines.run(remember)


def _whole(program: bytes) -> bool:
    """Return whether a file of the cache is undamaged."""
    digest, content = program.split(b"\n", 1)
    return hashlib.sha256(content).hexdigest().encode() == digest


def _programs(task: Any) -> str:
    """Return the folder of the programs that the compiler of this rank's device has made."""
    from xpulab.kernels.runtime.cache import folder

    return str(folder("programs"))
