"""Loading the library of MPI on a rank: under the name that mpi4py asks for, and only if it goes with mpiexec."""

from __future__ import annotations

import ctypes
import ctypes.util
import mmap
import os
import subprocess
import sys
from pathlib import Path

import pytest
from mpis import with_mpi

from xpulab.deploy.mpi import choice
from xpulab.libraries import libmpi

CHECK = """
import os, sys
from xpulab.libraries import libmpi
try:
    libmpi.load({"mpi": sys.argv[1], "n": 2, "mpiexec": "/some/mpiexec", "own": True})
    import mpi4py.MPI
    print(mpi4py.MPI.Get_library_version())
except libmpi.Alone as alone:
    print(alone)
print("MPI4PY_MPIABI" in os.environ, "mpi4py" in sys.modules)
"""


def said(mpi: str, library: str) -> list[str]:
    """What a process that is a rank of this MPI says about a library."""
    environment = {**os.environ, "MPI4PY_LIBMPI": library, "MPI4PY_MPIABI": "wrong"}
    words = [sys.executable, "-c", CHECK, mpi]
    return subprocess.check_output(words, env=environment, text=True, timeout=60).splitlines()


def test_an_alias_is_a_library_that_loads_another_one(tmp_path: Path) -> None:
    name = "libxpulab-test-alias.so.7"
    (tmp_path / "alias").write_bytes(libmpi._alias(name, str(ctypes.util.find_library("m"))))
    alias = ctypes.CDLL(str(tmp_path / "alias"))
    alias.sqrt.restype, alias.sqrt.argtypes = ctypes.c_double, [ctypes.c_double]
    assert alias.sqrt(9.0) == 3.0
    assert ctypes.CDLL(name, os.RTLD_NOLOAD | os.RTLD_LAZY)._handle == alias._handle


@pytest.mark.parametrize("mpi", ["intel", "openmpi", "mpich"])
def test_mpi4py_gets_the_library_that_the_variable_names(mpi: str) -> None:
    found = choice.find(with_mpi(mpi)).library
    first, *_, last = said(mpi, found)
    assert first.startswith({"intel": "Intel(R) MPI", "openmpi": "Open MPI", "mpich": "MPICH"}[mpi])
    assert last == "False True"


def test_a_library_of_another_kind_is_refused_before_mpi_is_initialised() -> None:
    library = choice.find(with_mpi("openmpi")).library
    words, last = said("mpich", library)
    assert words.startswith(
        "the 2 ranks cannot find each other: mpiexec is MPICH's (/some/mpiexec), and the library is "
    )
    assert f"(which MPI4PY_LIBMPI names: {library}); type: del os.environ['MPI4PY_LIBMPI'] (in a shell: unset" in words
    assert words.endswith(", or choose --mpi openmpi")
    assert last == "False False"


def test_a_file_that_is_no_library_of_mpi_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no library")
    (tmp_path / "alias").write_bytes(libmpi._alias("libxpulab-test.so.8", str(ctypes.util.find_library("m"))))
    for path in (tmp_path / "text", tmp_path / "alias"):
        words, _ = said("intel", str(path))
        assert words.startswith(f"MPI4PY_LIBMPI names {path}, which is no library of MPI: ")
        assert "type: del os.environ['MPI4PY_LIBMPI']" in words


def test_mpichs_files_are_unlinked() -> None:
    mine, other = Path(f"/dev/shm/mpich_shm_test_{os.getpid()}"), Path(f"/dev/shm/mpich_shm_other_{os.getpid()}")
    for path in (mine, other):
        path.write_bytes(bytes(4096))
    with mine.open("r+b") as file, mmap.mmap(file.fileno(), 4096):
        libmpi.unlink_files()
        assert not mine.exists()
        assert other.exists()  # this process does not map it
    other.unlink()
