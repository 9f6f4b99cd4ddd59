"""What Tab offers in import statements of xpulab, with jedi on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from IPython.core.completer import provisionalcompleter

import xpulab
from xpulab.console import imports

FOLDER = Path(xpulab.__path__[0])
PUBLIC = set(dir(xpulab)) - {"__version__"}
MODULES = {name for name in PUBLIC if (FOLDER / name).is_dir()} | {"exceptions"}
OF_RANKS = {path.stem for path in (FOLDER / "spmd").glob("[!_]*.py")}
CLUSTERING = {"BisectingKMeans", "DBSCAN", "HDBSCAN", "KMeans", "MiniBatchKMeans"}


def completions(shell: Any, typed: str) -> dict[str, str]:
    """Return what Tab offers at the end of a cell, with the kind of each name."""
    shell.Completer.use_jedi = True
    imports.install(shell)
    imports.install(shell)
    with provisionalcompleter():
        return {each.text: each.type for each in shell.Completer.completions(typed, len(typed))}


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("from xpulab.", {f"xpulab.{name}" for name in MODULES}),
        ("import xpulab.", {f"xpulab.{name}" for name in MODULES}),
        ("import numpy as np, xpulab.clu", {"xpulab.cluster"}),
        ("X = 1; from xpulab.lin", {"xpulab.linear_model"}),
        ("from xpulab.spmd.", {f"xpulab.spmd.{name}" for name in OF_RANKS}),
        ("from xpulab import ", PUBLIC),
        ("from xpulab.cluster import ", CLUSTERING),
        ("from xpulab.cluster import (DBSCAN as D, KM", {"KMeans"}),
        ("%%xpu\nfrom xpulab.cluster import ", CLUSTERING),
        ("from xpulab.spmd import ", OF_RANKS),
        ("from xpulab.spmd.cluster import ", CLUSTERING),
        ("from xpulab.torch import Neural", {"NeuralNetClassifier", "NeuralNetRegressor"}),
        ("from xpulab.exceptions import Handle", {"HandleError"}),
    ],
)
def test_import_statements_offer_what_is_public(shell: Any, typed: str, expected: set[str]) -> None:
    found = completions(shell, typed)
    assert set(found) == expected
    assert set(found.values()) <= {"module", "class", "function"}


def test_modules_that_are_not_for_users_are_left_to_others(shell: Any) -> None:
    assert "xpulab.deploy.cluster" in completions(shell, "from xpulab.deploy.clu")
    assert "XPUCluster" in completions(shell, "from xpulab.deploy.cluster import XPUC")
    assert "numpy" in completions(shell, "import nump")


def test_names_of_a_list_are_found_without_an_import() -> None:
    script = """import sys, xpulab
from xpulab.console.imports import complete
from IPython.core.completer import CompletionContext

typed = "from xpulab.cluster import "
context = CompletionContext(token="", full_text=typed, cursor_position=len(typed), cursor_line=0, limit=None)
print(sorted(each.text for each in complete(context)["completions"]), "sklearn" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == f"{sorted(CLUSTERING)} False\n"
