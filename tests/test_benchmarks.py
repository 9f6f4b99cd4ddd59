"""The benchmarks run, every system solves the same problem, and what it keeps can be read."""

from __future__ import annotations

import json
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


@pytest.mark.cluster
def test_the_explorer_and_scikit_learn_count_the_same_picture() -> None:
    command = [sys.executable, str(BENCHMARKS / "explore.py"), "--rows", "2e4", "--repeats", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    assert "20,000 x 2, ms" in done.stdout
    assert "next iteration" in done.stdout
    assert "by scikit-learn and NumPy" in done.stdout


@pytest.mark.cluster
def test_the_views_are_measured() -> None:
    options = ["--engines", "1", "--rows", "2000", "--seconds", "0.3", "--repeats", "1"]
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / "views.py"), *options], capture_output=True, text=True, timeout=250
    )
    assert done.returncode == 0, done.stderr
    assert "ratio of a pair" in done.stdout
    assert "the kernel's CPU time for views" in done.stdout


@pytest.mark.cluster
def test_the_kernels_of_an_iteration_are_measured() -> None:
    options = ["--rows", "3000", "--features", "14", "--clusters", "8", "--iterations", "3"]
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / "kernels.py"), *options], capture_output=True, text=True, timeout=250
    )
    assert done.returncode == 0, done.stderr
    assert "the nearest centre of each row" in done.stdout
    assert "of fused multiply-adds" in done.stdout
