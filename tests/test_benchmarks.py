"""The benchmarks run, every system solves the same problem, and what it keeps can be read."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


@pytest.mark.cluster
def test_a_small_sample_against_scikit_learn(tmp_path: Path) -> None:
    command = [
        sys.executable,
        str(BENCHMARKS / "kmeans.py"),
        "--quick",
        "--systems",
        "xpulab,scikit-learn",
        "--out",
        str(tmp_path),
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    kept = json.loads((tmp_path / "kmeans.json").read_text())
    (case,) = kept["cases"]
    assert kept["limits"]["float32"] > 1
    assert set(case["seconds"]) == {"xpulab", "scikit-learn"}
    assert case["inertia"]["xpulab"] == pytest.approx(case["inertia"]["scikit-learn"], rel=1e-5)
    assert not case["notes"]
    assert (tmp_path / "kmeans.png").stat().st_size > 1000
    assert "x xpulab" in done.stdout
    assert "of FMA limit" in done.stdout


def printed(script: str, *options: str) -> str:
    command = [sys.executable, str(BENCHMARKS / script), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("script", "options", "words"),
    [
        (
            "estimators.py",
            "--quick --only StandardScaler LinearRegression --systems 'xpulab' 'xpulab, rows there' scikit-learn",
            ["2,000 x 20 float32", "LinearRegression", "geometric mean", "x, rows there"],
        ),
        (
            "explore.py",
            "--rows 2e4 --repeats 2",
            ["20,000 x 2, ms", "next iteration", "by scikit-learn and NumPy"],
        ),
        (
            "views.py",
            "--engines 1 --rows 2000 --seconds 0.3 --repeats 1",
            ["ratio of a pair", "the kernel's CPU time for views"],
        ),
        (
            "kernels.py",
            "--rows 3000 --features 14 --clusters 8 --iterations 3",
            ["the nearest centre of each row", "of fused multiply-adds"],
        ),
    ],
)
def test_a_small_sample_is_measured(script: str, options: str, words: list[str]) -> None:
    text = printed(script, *shlex.split(options))
    assert [word for word in words if word not in text] == []
