"""Runs scikit-learn's own tests of an estimator with ours in the place of theirs."""

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
    """All tests pass, those that cannot fail, and enough of them call a proxy's fit.

    Parameters
    ----------
    folder : Path
        Empty, to run in.
    cluster : XPUCluster
        Whose engines compute. The tests run in a process of their own, which attaches to it.
    modules : sequence of str
        ``"sklearn.cluster.tests.test_k_means"``.
    proxies : sequence of str
        ``"xpulab.cluster:KMeans"``.
    least : int
        Tests that have to call a `fit` of them. Fewer: the swap has missed a name.
    cannot : mapping of str to str, optional
        Parts of test ids -> why those tests cannot pass.
    only : str
        Which tests, as pytest's ``-k``.
    timeout : float
        Seconds.
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
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # they take as long to import as scikit-learn
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
