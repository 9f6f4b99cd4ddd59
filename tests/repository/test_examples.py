"""The examples in the docstrings of public names run, on one cluster of two engines, and give what they show."""

from __future__ import annotations

import contextlib
import doctest
import importlib
import importlib.util
import inspect
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import xpulab

pytestmark = pytest.mark.cluster

PACKAGE = Path(xpulab.__file__).parent
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
