"""Runs scikit-learn's own tests with xpulab's estimators in the place of scikit-learn's."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import xpulab

__all__ = ["run_suite"]


def run_suite(
    folder: Path,
    cluster: xpulab.XPUCluster,
    modules: Sequence[str],
    proxies: Sequence[str],
    least: int,
    cannot: Mapping[str, str] | None = None,
    only: str = "",
    timeout: float = 280,
) -> None:
    """Check that all tests pass except those that cannot, and that enough tests call a proxy's fit.

    Parameters
    ----------
    folder : Path
        An empty folder in which the tests run.
    cluster : XPUCluster
        The cluster whose engines compute. The tests run in a separate process, which attaches to the cluster.
    modules : sequence of str
        Modules of tests, such as ``"sklearn.cluster.tests.test_k_means"``.
    proxies : sequence of str
        Estimators, such as ``"xpulab.cluster:KMeans"``.
    least : int
        Smallest number of tests that must call a `fit` of these estimators. If there are fewer, the swap has missed a
        name.
    cannot : mapping of str to str, optional
        Parts of test ids -> why those tests cannot pass.
    only : str
        Selects tests, as pytest's ``-k``.
    timeout : float
        Seconds after which the run fails.
    """
    assert cluster._processes is not None
    run = subprocess.run(
        [
            sys.executable, "-m", "pytest", "-q", "-p", "suites_plugin", "-p", "no:cacheprovider", "--tb=short",
            *(["-k", only] if only else []), "--pyargs", *modules,
        ],
        cwd=folder,
        env={
            **os.environ,
            "SKLEARN_RUN_FLOAT32_TESTS": "1",
            "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # importing the plugins takes as long as importing scikit-learn
            "XPULAB_SWAP": " ".join(proxies),
            "XPULAB_SUITE_CLUSTER": cluster._processes.record.name,
            "XPULAB_CANNOT": json.dumps(dict(cannot or {})),
        },
        capture_output=True,
        text=True,
        timeout=timeout,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout[-5000:] + run.stderr
    counted = re.search(r"(\d+) of \d+ passed tests called the proxy's fit", run.stdout)
    assert counted
    print(counted[0])
    assert int(counted[1]) >= least
