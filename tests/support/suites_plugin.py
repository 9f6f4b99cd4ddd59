"""A pytest plugin (``-p``): scikit-learn's tests run against estimators of this package.

The environment has these variables:

- ``XPULAB_SUITE_CLUSTER`` is the name of the cluster whose engines compute.
- ``XPULAB_SWAP`` names estimators or functions: ``xpulab.cluster:KMeans xpulab.decomposition:PCA``. Each replaces what
  scikit-learn has of the same name, under every name that a loaded module of scikit-learn has for it. This happens
  before the test module is imported, so functions of scikit-learn and the tests themselves use the proxy.
- ``XPULAB_CANNOT`` is JSON: parts of test ids -> why these tests cannot pass. They are expected to fail, and if one of
  them passes, the run fails.
- ``XPULAB_EVERY`` is a number n: of the tests with parameters, one n-th runs, chosen by their ids, if there are many.
- ``XPULAB_WHOLE`` is a part of the ids of tests of which all combinations run.
- ``XPULAB_DEAR`` has names of tests that do not run.

The last lines of the output say how many tests called a `fit`, or one of the functions, of each proxy and in all: a
test that never did says nothing about the proxy.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import sys
import zlib
from collections.abc import Iterator
from typing import Any

import pytest

import xpulab

_calling: dict[str, set[str]] = {}  # tests that have called each proxy
_running = ""
_FEW = 30  # all of so few tests run
_every = 1


def counted(proxy: type) -> type:
    """Return a subclass of the proxy, with its name, that counts the tests that call `fit`."""

    def counting(name: str) -> Any:
        method = getattr(proxy, name)

        def fit(self: Any, *arguments: Any, **keywords: Any) -> Any:
            _calling[proxy.__name__].add(_running)
            return method(self, *arguments, **keywords)

        fit.__wrapped__ = method  # type: ignore[attr-defined]  # scikit-learn reads the signature
        fit.__name__, fit.__doc__ = name, method.__doc__
        return fit

    members: dict[str, Any] = {"__doc__": proxy.__doc__, "__module__": proxy.__module__}
    members |= {name: counting(name) for name in ("fit", "partial_fit") if hasattr(proxy, name)}
    return type(proxy.__name__, (proxy,), members)


def counted_function(ours: Any) -> Any:
    """Return the function, wrapped so that it counts the tests that call it."""

    @functools.wraps(ours)
    def call(*arguments: Any, **keywords: Any) -> Any:
        _calling[ours.__name__].add(_running)
        return ours(*arguments, **keywords)

    return call


def swap(ours: Any, theirs: Any) -> None:
    """Replace `theirs` by `ours` in every loaded module of scikit-learn."""
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] == "sklearn":
            for key, value in list(vars(module).items()):
                if value is theirs:
                    setattr(module, key, ours)


def pytest_configure(config: pytest.Config) -> None:
    """Swap the classes before any test module is imported."""
    for module in ("sklearn.cluster._spectral", "sklearn.pipeline", "sklearn.compose", "sklearn.decomposition"):
        importlib.import_module(module)  # so that the names in these modules are swapped, too
    for word in os.environ["XPULAB_SWAP"].split():
        home, _, name = word.partition(":")
        theirs = getattr(importlib.import_module(home.replace("xpulab", "sklearn", 1)), name)
        ours = getattr(importlib.import_module(home), name)
        _calling[ours.__name__] = set()
        swap(counted(ours) if isinstance(ours, type) else counted_function(ours), theirs)


@pytest.hookimpl(trylast=True)  # after `-k` has removed tests
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave combinations of parameters out, and mark the tests that cannot pass as expected to fail."""
    global _every
    _every = int(os.environ.get("XPULAB_EVERY", "1")) if len(items) > _FEW else 1
    dear = os.environ.get("XPULAB_DEAR", "").split()
    whole = os.environ.get("XPULAB_WHOLE") or "\n"  # which is in no id
    items[:] = [
        item
        for item in items
        if item.name.partition("[")[0] not in dear
        and ("[" not in item.nodeid or whole in item.nodeid or zlib.crc32(item.nodeid.encode()) % _every == 0)
    ]
    for part, reason in json.loads(os.environ.get("XPULAB_CANNOT", "{}")).items():
        for item in items:
            if part in item.nodeid:
                item.add_marker(pytest.mark.xfail(reason=reason, strict=True))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say how many tests called the proxy."""
    passed = {report.nodeid for report in terminalreporter.stats.get("passed", [])}
    calling = set().union(*_calling.values())
    each = json.dumps({name: len(tests & passed) for name, tests in _calling.items()})
    terminalreporter.write_line(f"calls of each proxy: {each}")
    terminalreporter.write_line(
        f"{len(calling & passed)} of {len(passed)} passed tests called the proxy's fit, of one in {_every}"
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Remember which test runs."""
    global _running
    _running = item.nodeid
    return (yield)


@pytest.fixture(scope="session", autouse=True)
def cluster() -> Iterator[xpulab.XPUCluster]:
    """The cluster of the process that started this one, for the whole run."""
    with xpulab.XPUCluster.attach(os.environ["XPULAB_SUITE_CLUSTER"]) as attached:
        yield attached
