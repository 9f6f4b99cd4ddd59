"""`import xpulab` lets dpctl and dpnp find the runtime, in any process, and otherwise says why they do not."""

from __future__ import annotations

import subprocess
import sys

import pytest

from xpulab.libraries import oneapi


def run(source: str, *before: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*before, sys.executable, "-c", source], capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.parametrize("packages", ["dpctl", "dpnp", "dpctl.tensor", "dpnp, dpctl"])
def test_packages_for_devices_are_imported_after_xpulab(packages: str) -> None:
    done = run(f"import xpulab, {packages}; import dpctl; print(dpctl.get_devices()[0].name != '')")
    assert done.stdout == "True\n", done.stderr


@pytest.mark.slow
def test_ranks_of_a_plain_mpiexec_find_the_runtime() -> None:
    source = "import xpulab; import dpctl; from mpi4py import MPI; print(MPI.COMM_WORLD.allreduce(len(dpctl.__name__)))"
    done = run(source, str(oneapi.mpiexec()), "-hosts", "localhost", "-n", "2")
    assert done.stdout.count("10") == 2, done.stderr  # two ranks found each other


def test_xpulab_itself_imports_and_loads_nothing_for_devices() -> None:
    source = (
        "import sys, xpulab; print({'dpctl', 'ctypes', 'xpulab.libraries.oneapi', 'dataclasses'} & set(sys.modules))"
    )
    assert run(source).stdout == "set()\n"


def test_a_runtime_that_is_missing_is_explained() -> None:
    source = """
import xpulab, xpulab.libraries.oneapi
def load():
    raise xpulab.libraries.oneapi.OneAPIError("the runtime was not found; type: pip install it")
xpulab.libraries.oneapi.load = load
for _ in range(2):
    try:
        import dpctl
    except ImportError as error:
        print(type(error).__name__, error)
"""
    lines = run(source).stdout.splitlines()
    assert len(lines) == 2
    for line in lines:
        assert line.startswith("OneAPIError dpctl cannot be imported (libintlc.so.5: cannot open shared object")
        assert line.endswith("the runtime was not found; type: pip install it")
