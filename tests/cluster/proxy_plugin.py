"""A pytest plugin (``-p``): scikit-learn's tests run against xpulab's KMeans, on two engines.

KMeans is swapped under every name that a loaded module of scikit-learn has for it, before the test module is imported,
so that `sklearn.cluster.k_means` and the tests themselves use the proxy. The last line says how many tests called its
`fit`: a test that never did says nothing about the proxy.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest
import sklearn.cluster
import sklearn.utils.estimator_checks
from sklearn.cluster import _bisect_k_means, _spectral

import xpulab
from xpulab.cluster import KMeans

_calling: set[str] = set()
_running = ""


class Counted(KMeans):
    """The proxy, which counts the tests; it goes by its own name."""

    __doc__ = KMeans.__doc__

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Counted:
        """As the proxy's."""
        _calling.add(_running)
        super().fit(X, y, sample_weight)
        return self


Counted.__name__ = Counted.__qualname__ = "KMeans"


def swap(ours: type, theirs: type) -> None:
    """Put `ours` for `theirs` into every loaded module of scikit-learn."""
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] == "sklearn":
            for key, value in list(vars(module).items()):
                if value is theirs:
                    setattr(module, key, ours)


def pytest_configure(config: pytest.Config) -> None:
    """Before any test module is imported."""
    assert _bisect_k_means
    assert _spectral
    swap(Counted, sklearn.cluster.KMeans)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say how many tests called the proxy."""
    passed = {report.nodeid for report in terminalreporter.stats.get("passed", [])}
    terminalreporter.write_line(f"{len(_calling & passed)} of {len(passed)} passed tests called the proxy's fit")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Remember which test runs."""
    global _running
    _running = item.nodeid
    return (yield)


@pytest.fixture(scope="session", autouse=True)
def cluster() -> Iterator[xpulab.XPUCluster]:
    """Two engines for the whole run."""
    with xpulab.XPUCluster(n=2) as started:
        yield started
