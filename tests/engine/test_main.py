"""The start of an engine's process."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

import xpulab


def test_a_rank_that_waits_for_ever_for_the_others_is_ended_without_pythons_lock(tmp_path: Path) -> None:
    (tmp_path / "mpi4py").mkdir()
    (tmp_path / "mpi4py" / "__init__.py").write_text("")
    # PyDLL keeps Python's lock, as MPI_Init does. The alarm is set to an earlier time.
    (tmp_path / "mpi4py" / "MPI.py").write_text(
        textwrap.dedent("""
            import ctypes, signal
            assert 60 < signal.getitimer(signal.ITIMER_REAL)[0] <= 600
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            ctypes.PyDLL(None).sleep(60)
        """)
    )
    mpi = {"mpi": "intel", "n": 1, "mpiexec": "mpiexec", "own": False}
    options = {"owner": 0, "relayed": False, "cwd": os.getcwd(), "mpi": mpi}
    environment = {**os.environ, "XPULAB_ENGINE": json.dumps(options)}
    environment["PYTHONPATH"] = os.pathsep.join([str(tmp_path), environment.get("PYTHONPATH", "")])
    done = subprocess.run([sys.executable, "-m", "xpulab.engine"], env=environment, capture_output=True, text=True)
    assert done.returncode == -signal.SIGALRM, done.stderr


def test_the_tasks_are_registered_without_the_libraries_that_take_seconds() -> None:
    code = (
        "import sys\n"
        "from xpulab.libraries import oneapi; oneapi.load()\n"
        "import xpulab.engine.tasks\n"
        "print({'sklearn', 'scipy', 'pandas', 'numba', 'dpnp', 'matplotlib'} & set(sys.modules))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


@pytest.mark.cluster
def test_an_engine_starts_without_the_debugger_that_a_cell_may_still_import(pair: xpulab.XPUCluster) -> None:
    def look(task: Any) -> tuple[bool, bool]:
        before = "debugpy" in sys.modules
        return before, hasattr(importlib.import_module("debugpy"), "__version__")

    assert pair.run(look) == [(False, True)] * 2
