"""The benchmarks run, every system solves the same problem, and the files that are written can be read."""

from __future__ import annotations

import importlib
import json
import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import xpulab

SCALING = Path(__file__).parents[2] / "benchmarks" / "scaling"

pytestmark = pytest.mark.cluster

#: Of the benchmarks that start a process for each system. .ci/run sets the variable for this file.
with_processes = pytest.mark.skipif(
    not os.environ.get("XPULAB_BENCHMARKS"), reason="XPULAB_BENCHMARKS is not set, with which all benchmarks are tried"
)


@with_processes
def test_a_small_sample_against_scikit_learn(
    pair: xpulab.XPUCluster, run_benchmark: Callable[..., str], tmp_path: Path
) -> None:
    text = run_benchmark(
        "kmeans.py", "--quick", "--systems", "xpulab,scikit-learn", "--out", str(tmp_path), cluster=pair
    )
    kept = json.loads((tmp_path / "kmeans.json").read_text())
    (case,) = kept["cases"]
    assert kept["limits"]["float32"] > 1
    assert set(case["seconds"]) == {"xpulab", "scikit-learn"}
    assert case["inertia"]["xpulab"] == pytest.approx(case["inertia"]["scikit-learn"], rel=1e-5)
    assert not case["notes"]
    assert (tmp_path / "kmeans.png").stat().st_size > 1000
    assert "x xpulab" in text
    assert "of FMA limit" in text


@pytest.mark.parametrize(
    ("script", "options", "words"),
    [
        pytest.param(
            "estimators.py",
            "--quick --only Standard Logistic --systems 'xpulab' 'xpulab, rows there' scikit-learn",
            ["2,000 x 20 float32", "LogisticRegression", "5 classes", "geometric mean", "x, rows there"],
            marks=with_processes,
        ),
        pytest.param(
            "density.py",
            "--quick --systems xpulab scikit-learn",
            ["3,000 x 3", "xpulab", "scikit-learn", "1.000000"],
            marks=with_processes,
        ),
        pytest.param(
            "mixture.py",
            "--quick --types full --systems xpulab scikit-learn",
            ["3,000 x 4", "full", "x xpulab"],
            marks=with_processes,
        ),
        pytest.param(
            "scores.py", "--quick", ["2,000 x 20 float32", "silhouette_score", "x scikit-learn"], marks=with_processes
        ),
        pytest.param(
            "boosting.py",
            "--quick --systems xpulab scikit-learn",
            ["2,000 x 28", "xpulab", "scikit-learn"],
            marks=with_processes,
        ),
        pytest.param(
            "forests.py",
            "--quick --systems xpulab scikit-learn",
            ["2,000 x 20", "xpulab", "scikit-learn"],
            marks=with_processes,
        ),
        pytest.param(
            "shapes/wide.py",
            "--quick",
            ["20 x 300 float64", "newton-cholesky", "PCA(10)", "x scikit-learn"],
            marks=with_processes,
        ),
        ("minibatch.py", "--quick", ["MiniBatchKMeans", "BisectingKMeans", "scikit-learn"]),
        pytest.param(
            "neighbors.py",
            "--quick --systems xpulab scikit-learn",
            ["2,000 x 32", "xpulab", "scikit-learn", "1.000000"],
            marks=with_processes,
        ),
        pytest.param(
            "scaling/searches.py",
            "--rows 500 --candidates 4 --turns 1",
            ["12 fits of 500 x 20", "LogisticRegression", "RandomForestClassifier", "side by side"],
            marks=with_processes,
        ),
        ("small_calls.py", "--repeats 2", ["an empty task", "%%xpu, x = 1", "KMeans(3, n_init=10)", "scikit-learn"]),
        (
            "streaming.py",
            "--quick --peers",
            ["300,000 x 14", "polars' streaming", "all rows were kept", "% of the rows were kept", "0 % of the"],
        ),
        pytest.param(
            "sparse/texts.py",
            "--quick",
            ["2,000 documents", "scikit-learn", "xpulab, rows on the engines", "inertia"],
            marks=with_processes,
        ),
        (
            "explore.py",
            "--rows 2e4 --repeats 2",
            [
                "20,000 x 2, ms",
                "next iteration",
                "row at the pointer",
                "inside of a lasso",
                "by scikit-learn and NumPy",
            ],
        ),
        pytest.param(
            "views.py",  # in a Jupyter kernel, which starts its own
            "--engines 1 --rows 2000 --seconds 0.3 --repeats 1",
            ["ratio of a pair", "the kernel's CPU time for views"],
            marks=with_processes,
        ),
        (
            "scaling/engines.py",
            "--engines 2 --rows 3000 --repeats 1 --turns 1",
            ["2 engines", "start", "rows there", "memory"],
        ),
        ("accel.py", "-n 2 --quick --only Ridge MinMaxScaler", ["| Ridge | ", "| MinMaxScaler | ", "at 1,000 rows"]),
        ("accel.py", "-n 2 --quick --repeated", ["10 fits of 900 x 2", "with accel"]),
        (
            "messages.py",
            "--bytes 1024,65536 --repeats 5 --rounds 1",
            ["Allreduce", "64.0 KiB", "plain, median"],
        ),
    ],
)
def test_a_small_sample_is_measured(
    pair: xpulab.XPUCluster, run_benchmark: Callable[..., str], script: str, options: str, words: list[str]
) -> None:
    text = run_benchmark(script, *shlex.split(options), cluster=pair)
    assert [word for word in words if word not in text] == []


@pytest.mark.parametrize("cluster", [1], indirect=True, ids=["1-engine"])
def test_the_kernels_of_one_engine_are_measured(cluster: xpulab.XPUCluster, run_benchmark: Callable[..., str]) -> None:
    options = "--rows 3000 --features 14 --clusters 8 --iterations 3"
    text = run_benchmark("kernels.py", *options.split(), cluster=cluster)
    assert "the nearest centre of each row" in text
    assert "of fused multiply-adds" in text


def test_scaling_refuses_numbers_of_engines_that_its_model_does_not_know(
    run_benchmark: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    cores = len(os.sched_getaffinity(0))
    for n in (0, 2 * cores + 1):
        with pytest.raises(SystemExit):
            run_benchmark("scaling/scaling.py", "--engines", str(n))
        assert f"received {n}; expected 1 to {cores}" in capsys.readouterr().err


@with_processes
def test_scaling_is_measured_and_predicted(run_benchmark: Callable[..., str], tmp_path: Path) -> None:
    options = ["--engines", "2", "--share", "0.005", "--repeats", "1", "--plot", str(tmp_path / "scaling.png")]
    text = run_benchmark("scaling/scaling.py", *options)
    assert "1 host: " in text
    for name in ("k-means", "PCA", "neighbours"):
        assert (
            len([line for line in text.splitlines() if line.startswith(name)]) == 4
        )  # measured twice, predicted twice
    assert (tmp_path / "scaling.png").stat().st_size > 10_000


class TestScalingModel:
    @pytest.fixture
    def model(self, monkeypatch: pytest.MonkeyPatch) -> Any:
        monkeypatch.syspath_prepend(str(SCALING))
        return importlib.import_module("scaling_model")

    def test_the_line_of_one_engine_is_found(self, model: Any) -> None:
        rows = [1000, 2000, 4000]
        found = model.Computation.fitted(rows, [0.01 + 2e-6 * n for n in rows])
        assert (found.fixed, found.per_row) == (pytest.approx(0.01), pytest.approx(2e-6))

    def test_collectives_cost_the_steps_of_their_algorithms(self, model: Any) -> None:
        link = model.Link(latency=1e-5, bandwidth=1e9, call=1e-4)
        assert model.Collective("sum", 800).seconds(1, link) == 0
        few = model.Collective("sum", 800, times=3).seconds(8, link)
        assert few == pytest.approx(3 * (3e-5 + 7 * 800 / 1e9 + 1e-4))
        many = model.Collective("sum", 1e6).seconds(5, link)
        assert many == pytest.approx(3 * (1e-5 + 2 * (1e-5 + 1e-3)) + 1e-4)
        exchange = model.Collective("exchange", 4e6).seconds(4, link)
        assert exchange == pytest.approx(3 * (1e-5 + 1e-3) + 1e-4)

    def test_cores_are_shared_and_messages_overtake_computing(self, model: Any) -> None:
        computation, link = model.Computation(0.01, 1e-6), model.Link(1e-5, 1e9, 0.0)
        assert model.predicted(computation, 1e6, 2, [], link) == pytest.approx(0.01 + 0.5)
        shared = model.Computation(0.02, 1.1e-6, engines=2)
        sums = [model.Collective("sum", 8, times=100)]
        between = model.messages(2, sums, link)
        assert model.predicted(shared, 1e6, 4, sums, link) == pytest.approx(0.02 + 0.55 + between)
        half = model.half_way(computation, 1e6, sums, link, 1 << 20)
        assert model.messages(half, sums, link) >= 1 / half
        assert model.messages(half // 2, sums, link) < 2 / half
        assert model.half_way(computation, 1e6, [], link, 1 << 20) is None
