"""A session of IPython in a pseudo-terminal: text views, Ctrl-C, and no process that is left at the end."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pexpect
import platformdirs
import psutil
import pytest

pytestmark = pytest.mark.cluster

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r")


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[pexpect.spawn]:
    environment = {"IPYTHONDIR": str(tmp_path), "TERM": "xterm", "HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    environment["XPULAB_TUNE"] = "0"  # as in all tests, see conftest.py
    environment["XPULAB_CACHE"] = os.environ.get("XPULAB_CACHE") or platformdirs.user_cache_dir("xpulab")
    options = ["-m", "IPython", "--simple-prompt", "--no-banner", "--colors=NoColor", "--no-confirm-exit"]
    child = pexpect.spawn(
        sys.executable,
        options,
        env=environment,
        timeout=60,
        encoding="utf-8",
        dimensions=(50, 160),
    )
    child.expect(r"In \[1\]: ")
    yield child
    child.close(force=True)


def typed(terminal: pexpect.spawn, line: str) -> str:
    """Type a line, and return the output until the next prompt."""
    terminal.sendline(line)
    terminal.expect(r"In \[\d+\]: ")
    return _ESCAPES.sub("", terminal.before or "")


def test_a_session_with_an_interrupt(terminal: pexpect.spawn) -> None:
    typed(terminal, "import numpy as np; from sklearn.cluster import KMeans as Reference")
    typed(terminal, "%load_ext xpulab")
    assert "Plan: 2 engines" in typed(terminal, "%xpu_cluster plan -n 2")
    assert "running, 2 engines" in typed(terminal, "%xpu_cluster start -n 2")
    processes = psutil.Process(terminal.pid).children(recursive=True)
    assert len(processes) >= 5
    typed(terminal, "from xpulab.cluster import KMeans; X = np.random.RandomState(0).normal(size=(20_000, 14))")
    shown = typed(terminal, "km = KMeans(20, init=X[:20], n_init=1, max_iter=20).fit(X)")
    assert "KMeans.fit: finished" in shown
    assert "communicate" in shown

    terminal.sendline("km = KMeans(200, init='random', n_init=10**5, max_iter=10**6, tol=0, random_state=0).fit(X)")
    terminal.expect(r"iteration \d+/1000000")
    terminal.sendintr()
    terminal.expect(r"In \[\d+\]: ")
    shown = _ESCAPES.sub("", terminal.before or "")
    assert "KMeans.fit: interrupted" in shown
    said = shown[shown.index("line 1: km = KMeans(200") :].strip().splitlines()
    assert len(said) == 2
    ways = (
        "to go on, type: model = %xpu_cluster resume; to have it as it is: import xpulab; model = xpulab.interrupted()"
    )
    where = r"was interrupted in iteration \d+ of 1000000, run \d+ of 100000"
    assert re.fullmatch(rf"KeyboardInterrupt: KMeans\.fit {where}; {re.escape(ways)}", said[1])
    assert typed(terminal, "%xpu_cluster status").strip().endswith(said[1].partition(": ")[2])
    terminal.sendline("model = %xpu_cluster resume")
    terminal.expect(r"iteration \d+/1000000")
    terminal.sendintr()
    terminal.expect(r"In \[\d+\]: ")
    again = _ESCAPES.sub("", terminal.before or "").strip().splitlines()[-1]
    assert re.fullmatch(rf"KeyboardInterrupt: %xpu_cluster resume {where}; {re.escape(ways)}", again)

    typed(terminal, "a = KMeans(5, random_state=0).fit(X[:999]); b = Reference(5, random_state=0).fit(X[:999])")
    assert "True" in typed(terminal, "bool((a.labels_ == b.labels_).all())")
    assert "● idle" in typed(terminal, "%xpu_cluster status")
    assert "did you mean status" in typed(terminal, "%xpu_cluster statsu")
    terminal.sendline("exit")
    terminal.expect(pexpect.EOF)
    _, left = psutil.wait_procs(processes, timeout=120)
    assert not left


def test_the_debugger_opens_where_an_error_of_few_lines_was_raised(terminal: pexpect.spawn) -> None:
    typed(terminal, "import xpulab")
    typed(terminal, "%pdb on")
    terminal.sendline("xpulab.XPUCluster(n=2, devices='warp').plan()")
    terminal.expect("ipdb> ")
    shown = _ESCAPES.sub("", terminal.before or "")
    assert "line 1: xpulab.XPUCluster(n=2, devices='warp').plan()" in shown
    assert "DeviceNotFoundError: no device matches 'warp'" in shown
    assert "slots.py" in shown
    terminal.sendline("q")
    terminal.expect(r"In \[\d+\]: ")
