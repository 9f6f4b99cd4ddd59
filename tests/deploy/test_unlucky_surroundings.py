"""A start says what around it is wrong."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version

import pytest

import xpulab
from xpulab.exceptions import XpulabWarning
from xpulab.libraries import oneapi

pytestmark = pytest.mark.cluster


def test_too_few_open_files_are_named_with_what_to_type() -> None:
    code = "import xpulab; xpulab.XPUCluster(1).start()"
    limited = ["bash", "-c", 'ulimit -n 64; exec "$0" -c "$1"', sys.executable, code]
    done = subprocess.run(limited, capture_output=True, text=True)
    assert done.returncode == 1
    error = done.stderr.rpartition("ClusterStartError: ")[2]
    assert error.startswith("a process of the cluster may have only 64 open files, and needed more; raise your user's")
    assert "type: ulimit -n 4096 in the shell that starts Python or Jupyter\n" in error


@pytest.mark.parametrize("missing", [False, True])
def test_a_start_warns_of_a_package_that_is_not_as_pinned(missing: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def installed(name: str) -> str:
        if name == "dpctl" and missing:
            raise PackageNotFoundError(name)
        return "0.1" if name == "dpctl" else version(name)

    pin = oneapi.STACK.pins["dpctl"]
    monkeypatch.setattr("importlib.metadata.version", installed)
    with pytest.raises(XpulabWarning) as warned:  # the filters of these tests make errors of warnings
        xpulab.XPUCluster(1).start()
    found = "dpctl is missing" if missing else f"dpctl is 0.1, not {pin}"
    assert str(warned.value).startswith(f"{found}: the engines may not start, or fail later; type: ")
    assert str(warned.value).endswith(f'-m pip install "dpctl{pin}"')
