"""Folders of users with files that have the names of modules: no process of xpulab imports them."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from xpulab.sharing.program import program

pytestmark = pytest.mark.cluster

#: Packages that xpulab's processes import, or look for.
PACKAGES = [
    "IPython", "cloudpickle", "dateutil", "debugpy", "decorator", "dpctl", "dpnp", "ipykernel", "ipyparallel",
    "ipywidgets", "joblib", "jupyter_client", "jupyter_core", "matplotlib", "mpi4py", "numba", "numpy", "packaging",
    "pandas", "psutil", "scipy", "sitecustomize", "skorch", "sklearn", "threadpoolctl", "torch", "tornado", "tqdm",
    "traitlets", "typing_extensions", "usercustomize", "xpulab", "zmq",
]  # fmt: skip

CELL = """
import mine, random, numpy, subprocess, sys
print(mine.found, random.randint(1, 1), numpy.ones(1).sum(), sys.path[-1] == mine.folder)
"""

DRIVER = f"""
import os, sys
import numpy as np
import xpulab
from xpulab.console.cells import run_cell
from xpulab.cluster import KMeans
from xpulab.doctor import doctor
os.chdir(sys.argv[1])
with xpulab.XPUCluster(1, display="none") as cluster:
    cell = run_cell(cluster, {CELL!r})
    print(KMeans(2, n_init=1, random_state=0).fit(np.arange(40.0).reshape(20, 2)).n_iter_ > 0)
    print(cluster.status().state)
print([check for check in doctor().checks if check.status == "fail"])
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a module of the user, and files with the names of all modules and packages."""
    folder = tmp_path_factory.mktemp("users")
    here = filter(importlib.util.find_spec, sys.stdlib_module_names - {"antigravity", "this"})
    for name in (*here, *PACKAGES):
        (folder / f"{name}.py").write_text(f"import os; os.write(2, b'imported {name} '); os._exit(99)")
    (folder / "mine.py").write_text(f"found, folder = 'the module of the user', {str(folder)!r}")
    return folder


def test_a_cluster_its_cells_and_the_doctor_work_in_any_folder(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "driver.py").write_text(DRIVER)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "driver.py"), str(folder)], capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["[0] the module of the user 1 1.0 True", "True", "running", "[]"]


def test_a_script_on_ranks_works_in_any_folder(folder: Path) -> None:
    (folder / "script.py").write_text(f"from mpi4py import MPI\nimport xpulab.spmd.cluster\n{CELL}")
    command = [str(Path(sys.executable).parent / "xpulab"), "run", "-n", "1", "script.py"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["[0] the module of the user 1 1.0 True"]


@pytest.mark.parametrize(
    "words",
    [
        ["xpulab.engine.devices"],
        ["xpulab.deploy.remote.describe_host", "intel", ""],
        ["xpulab.deploy.remote.agent"],
        ["xpulab.deploy.remote.relay"],
        ["xpulab.deploy.jobs.keeper"],
        ["xpulab.deploy.jobs.holder", "--help"],
        ["xpulab.deploy.processes.controller", "--help"],
        ["xpulab.engine", "--help"],
        ["xpulab.spmd", "--help"],
    ],
    ids=lambda words: words[0],
)
def test_each_program_starts_in_any_folder(words: list[str], folder: Path) -> None:
    environment = {**os.environ, "XPULAB_ENGINE": "{}"}
    done = subprocess.run(
        program(*words), cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    assert "imported" not in done.stderr
    assert done.returncode != 99


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="this Python imports modules before it runs what -c gives it")
def test_the_command_line_for_python_3_10_imports_nothing_from_the_folder(folder: Path) -> None:
    words = program("xpulab.deploy.jobs.holder", "--help", version=(3, 10))
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("usage: python -m xpulab.deploy.jobs.holder")
