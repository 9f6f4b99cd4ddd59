"""Runs scikit-learn's own tests with xpulab's estimators in the place of scikit-learn's."""

from __future__ import annotations

import functools
import json
import os
import re
import select
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import xpulab

__all__ = ["end_suites", "run_suite"]


@functools.cache
def _server() -> subprocess.Popen[str]:
    """The process of which each run is a fork: imports take longer than many suites."""
    program = [sys.executable, str(Path(__file__).with_name("suites_server.py"))]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    return subprocess.Popen(program, start_new_session=True, **pipes)


def end_suites() -> None:
    """End the process that runs suites, if there is one."""
    if _server.cache_info().currsize:
        _server().communicate()
        _server.cache_clear()


def run_suite(
    folder: Path,
    cluster: xpulab.XPUCluster,
    modules: Sequence[str],
    proxies: Sequence[str],
    least: int | Mapping[str, int],
    cannot: Mapping[str, str] | None = None,
    only: str = "",
    whole: str = "",
    dear: Sequence[str] = (),
    timeout: float = 280,
) -> None:
    """Check that all tests pass except those that cannot, and that enough tests call a proxy's fit.

    Of a test with parameters, a third of the combinations runs, and all if ``XPULAB_ALL_COMBINATIONS`` is set.

    Parameters
    ----------
    folder : Path
        An empty folder in which the tests run.
    cluster : XPUCluster
        The cluster whose engines compute. The tests run in a separate process, which attaches to the cluster; see
        `suites_server`.
    modules : sequence of str
        Modules of tests, such as ``"sklearn.cluster.tests.test_k_means"``.
    proxies : sequence of str
        Estimators, such as ``"xpulab.cluster:KMeans"``.
    least : int or mapping of str to int
        Smallest number of tests that must call a `fit` of these estimators if all combinations run. If there are
        fewer, the swap has missed a name. A mapping has the number of each estimator.
    cannot : mapping of str to str, optional
        Parts of test ids -> why those tests cannot pass.
    only : str
        Selects tests, as pytest's ``-k``.
    whole : str
        A part of the ids of tests of which all combinations run in any case.
    dear : sequence of str
        Names of tests that take long and of which tests of this package check more. They run if all combinations do.
    timeout : float
        Seconds after which the run fails.
    """
    assert cluster.engines.processes is not None
    every = 1 if os.environ.get("XPULAB_ALL_COMBINATIONS") else 3
    output = folder / "output"
    output.touch()
    run = {
        "folder": str(folder),
        "arguments": [
            # Other tracebacks parse the whole file of the test, also of each test that is expected to fail.
            "-q", "-p", "suites_plugin", "-p", "no:cacheprovider", "--tb=native", "--color=no",
            *(["-k", only] if only else []),
            "--pyargs", *modules,
        ],
        "variables": {
            **os.environ,
            "SKLEARN_RUN_FLOAT32_TESTS": "1",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # importing the plugins takes as long as importing scikit-learn
            "XPULAB_SWAP": " ".join(proxies),
            "XPULAB_SUITE_CLUSTER": cluster.engines.processes.record.name,
            "XPULAB_CANNOT": json.dumps(dict(cannot or {})),
            "XPULAB_EVERY": str(every),
            "XPULAB_WHOLE": whole,
            "XPULAB_DEAR": "" if every == 1 else " ".join(dear),
        },
        "output": str(output),
    }  # fmt: skip
    server = _server()
    assert server.stdin is not None
    assert server.stdout is not None
    print(json.dumps(run), file=server.stdin, flush=True)
    if not select.select([server.stdout], [], [], timeout)[0]:
        os.killpg(server.pid, signal.SIGKILL)
        end_suites()
        raise AssertionError(f"the tests have not ended within {timeout:g} s: {output.read_text()[-5000:]}")
    said = server.stdout.readline(), output.read_text()
    assert said[0] == "0\n", said[1][-5000:]
    counted = re.search(r"(\d+) of \d+ passed tests called the proxy's fit, of one in (\d)", said[1])
    assert counted
    print(counted[0])
    each = re.search(r"^calls of each proxy: (.*)$", said[1], re.MULTILINE)
    assert each
    found = json.loads(each[1]) if isinstance(least, Mapping) else {"": int(counted[1])}
    for name, number in (least if isinstance(least, Mapping) else {"": least}).items():
        assert found[name] >= (number if counted[2] == "1" else 0.8 * number / int(counted[2])), name
