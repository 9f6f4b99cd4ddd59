"""The examples in the docstrings of public names give what they show, and those of the documentation's pages run."""

from __future__ import annotations

import contextlib
import doctest
import importlib
import importlib.util
import inspect
import os
import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import xpulab
from xpulab.magics import XPUMagics

pytestmark = pytest.mark.cluster

PACKAGE = Path(xpulab.__file__).parent
DOCS = Path(__file__).parents[2] / "docs"
TORCH = all(getattr(importlib.util.find_spec(name), "origin", None) for name in ("torch", "skorch"))


def examples() -> list[doctest.DocTest]:
    """Return the docstrings with examples of all modules in which users' names are, each once."""
    finder = doctest.DocTestFinder(exclude_empty=True)
    found: dict[str, doctest.DocTest] = {}
    for module in pkgutil.walk_packages(xpulab.__path__, "xpulab."):
        first = module.name.split(".")[1]
        if first in ("engine", "kernels", "__main__", "spmd") or (first == "torch" and not TORCH):
            continue
        for test in finder.find(importlib.import_module(module.name)):
            if test.examples:
                found[f"{test.filename}:{test.lineno}"] = test
    return sorted(found.values(), key=lambda test: test.name)


@contextlib.contextmanager
def shared(cluster: xpulab.XPUCluster) -> Iterator[xpulab.XPUCluster]:
    """The cluster of the tests, in place of one that an example starts."""
    yield cluster.activate()


@pytest.mark.parametrize("example", examples(), ids=lambda test: test.name)
def test_an_example_gives_what_it_shows(
    example: doctest.DocTest, pair: xpulab.XPUCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(xpulab, "XPUCluster", lambda n: shared(pair), raising=False)
    example.globs = {}
    said: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    runner.run(example, out=said.append)
    assert runner.tries == len(example.examples)  # none is skipped
    assert runner.failures == 0, "".join(said)


def test_no_example_is_skipped_and_every_estimator_of_the_quickest_start_has_one() -> None:
    assert [path.name for path in PACKAGE.rglob("*.py") if "doctest: +SKIP" in path.read_text()] == []
    have = {test.name.rpartition(".")[2] for test in examples()}
    for package in ("cluster", "mixture", "neighbors", "preprocessing", "ensemble", "impute", "decomposition"):
        module: Any = importlib.import_module(f"xpulab.{package}")
        classes = [name for name in module.__all__ if inspect.isclass(getattr(module, name))]
        assert [name for name in classes if name not in have] == []


#: Page, in the order in which they are run -> what its examples take for granted, as the cluster `c`, rows `X`, and
#: names of the reader's own.
PAGES = {
    "start/laptop.md": "",
    "start/your_own_table.md": "",
    "assistants.md": "",
    "guide/fit.md": """
import pathlib
import numpy as np, xpulab
from xpulab.cluster import KMeans
c = %xpu_cluster start -n 2
rng = np.random.default_rng(0)
X = rng.normal(size=(500, 4))
""",
    "guide/side_by_side.md": "y = np.arange(500) % 2",
    "guide/save.md": "import joblib\nmodel = KMeans(2, random_state=0).fit(X)",
    "guide/mpi_programs.md": "X = rng.normal(size=500)",
    "guide/data.md": """
import pandas, polars, sqlite3
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.pipeline import make_pipeline
from xpulab.linear_model import LinearRegression, LogisticRegression
from xpulab.model_selection import train_test_split
from xpulab.preprocessing import OneHotEncoder, StandardScaler
X = rng.integers(0, 4, (500, 2)).astype(float)
np.save("rows.npy", X)
encoder = OneHotEncoder(sparse_output=False).fit(X)
df = pandas.DataFrame(rng.normal(size=(500, 2)), columns=["distance", "delay"])
df["carrier"], df["late"] = rng.choice(["AA", "UA"], 500), (df.delay > 0).astype(int)
pathlib.Path("flights").mkdir()
polars.from_pandas(df).write_parquet("flights/all.parquet")
texts = [" ".join(words) for words in rng.choice(["sun", "rain", "wind", "snow"], (100, 6))]
df.to_sql("flights", sqlite3.connect("flights.db"))
days, query = [0, 1], "SELECT distance, delay FROM flights WHERE late = {}".format
""",
    "start/server.md": "%xpu_cluster stop",
    "guide/accel.md": "%xpu_cluster stop\nX = rng.normal(size=(500, 4))",
}
#: What stands before an example that is a part of a cell or script: its first words -> the lines before it.
BEFORE = {"import dpctl, dpnp": "%%xpu\nimport numpy as np\nmine = np.random.default_rng(rank).normal(size=(50, 3))\n"}
#: Pages whose examples other tests run: a Stop in a fit, and PyTorch.
ELSEWHERE = {"guide/stop_and_resume.md", "guide/pytorch.md"}

RUN = """
import sys
from pathlib import Path
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
for cell in Path(sys.argv[1]).read_text().split("\\0"):
    done = shell.run_cell(cell)
    if not done.success:
        sys.exit(f"does not run:\\n{cell}")
"""


def blocks(page: Path) -> list[str]:
    """Return the examples in Python of a page."""
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


def test_every_page_with_examples_is_run() -> None:
    pages = {str(page.relative_to(DOCS)) for part in (".", "start", "guide") for page in (DOCS / part).glob("*.md")}
    assert {page for page in pages if blocks(DOCS / page)} == {*PAGES, *ELSEWHERE}


def test_assistants_find_a_page_and_its_errors_exist() -> None:
    linked = re.findall(r"^- \[.+\]\((\S+)\): .+$", (DOCS / "llms.txt").read_text(), re.MULTILINE)
    assert "assistants.md" in linked
    assert [page for page in linked if not (DOCS / page).is_file()] == []
    text = (DOCS / "assistants.md").read_text()
    named = set(re.findall(r"`(\w+(?:Error|Interrupted))`", text)) - {"ValueError", "TypeError", "NotFittedError"}
    assert named
    assert named == {each for each in named if hasattr(xpulab.exceptions, each)}
    offered = {action for group in re.findall(r"`%xpu_cluster (\w+)", text) for action in group.split()}
    offered |= set(re.findall(r"`(\w+)`", next(line for line in text.splitlines() if "`%xpu_cluster start`" in line)))
    assert offered <= set(re.findall(r"\w+", XPUMagics(None).parser().format_help()))


@pytest.mark.slow
@pytest.mark.skipif(
    not os.environ.get("XPULAB_BENCHMARKS"), reason="XPULAB_BENCHMARKS is not set, with which examples of pages run"
)
def test_the_examples_of_the_pages_run_as_they_stand(tmp_path: Path) -> None:
    """In IPython, one after the other."""
    cells = []
    for page, given in PAGES.items():
        cells.append(given)
        for each in blocks(DOCS / page):
            if each.startswith("import mlflow") and importlib.util.find_spec("mlflow") is None:
                continue
            before = next((lines for words, lines in BEFORE.items() if each.startswith(words)), "")
            cells.append(before + each)
    (tmp_path / "cells").write_text("\0".join(cells))
    command = [sys.executable, "-c", RUN, str(tmp_path / "cells")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
