"""What a type checker, and so an editor, knows of a user's lines."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import xpulab
from xpulab.estimator.proxy import Proxy

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]

#: Ten lines of a user's, of which a type checker has nothing to say.
LINES = """
import numpy as np
import xpulab
from xpulab.cluster import KMeans
from xpulab.preprocessing import StandardScaler
with xpulab.XPUCluster(2).start() as c:
    X = np.random.default_rng(0).normal(size=(1000, 2))
    scaler = StandardScaler().fit(c.scatter(X))
    km = KMeans(3).fit((X - scaler.mean_) / scaler.scale_)
    sizes = np.bincount(KMeans(2).fit(xpulab.scan("rows.parquet")).labels_)
    again = km.resume()
"""
TYPES = {
    "c": "XPUCluster",
    "scaler": "StandardScaler",
    "km": "KMeans",
    "km.report_": "FitReport",
    "again": "KMeans",
}


def _fits() -> Iterator[tuple[str, str]]:
    """Each class of estimators, and a call of its method `fit`."""
    for package in pkgutil.iter_modules(xpulab.__path__):
        if package.ispkg and package.name not in ("spmd", "torch"):
            module = importlib.import_module(f"xpulab.{package.name}")
            for name in getattr(module, "__all__", ()):
                kind = getattr(module, name)
                if inspect.isclass(kind) and issubclass(kind, Proxy):
                    y = inspect.signature(kind.fit).parameters.get("y")
                    arguments = "X, X" if y is not None and y.default is y.empty else "X"
                    yield name, f"xpulab.{package.name}.{name}().fit({arguments})"


def _said(checker: list[str], tmp_path: Path) -> str:
    """Return what a type checker says of the lines of a user's, and of a call of each `fit`."""
    packages = {call.rpartition(".fit(")[0].split(".")[1] for _, call in _fits()}
    imports = [f"import xpulab.{package}" for package in sorted(packages)]
    asked = [f"reveal_type({thing})" for thing in [*TYPES, *(call for _, call in _fits())]]
    (tmp_path / "lines.py").write_text("\n".join([*imports, LINES, *asked]) + "\n")
    done = subprocess.run([*checker, str(tmp_path / "lines.py")], capture_output=True, text=True, cwd=ROOT)
    return done.stdout + done.stderr


def _check(said: str, revealed: str) -> None:
    expected = [*TYPES.values(), *(name for name, _ in _fits())]
    assert [found.rpartition(".")[2] for found in re.findall(revealed, said)] == expected
    assert "error" not in re.sub("0 errors", "", said)


def test_mypy_knows_the_class_that_a_fit_returns(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    _check(_said([sys.executable, "-m", "mypy", "--no-color-output"], tmp_path), r'Revealed type is "([\w.]+)"')


def test_pyright_knows_the_class_that_a_fit_returns(tmp_path: Path) -> None:
    """pyright completes names in VS Code. basedpyright is the same with Node.js from PyPI."""
    checker = shutil.which("basedpyright", path=Path(sys.executable).parent)
    if checker is None:
        pytest.skip("basedpyright is not installed; type: pip install -e '.[test-more]'")
    _check(_said([checker, "--pythonpath", sys.executable], tmp_path), r'Type of ".*" is "([\w.]+)"')
