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
    return subprocess.check_output(words, env=environment, text=True, timeout=240).splitlines()


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


def asked(*folders: Path) -> str:
    """Return what a process with these folders of packages says about the mpiexec of its environment."""
    code = """
from xpulab.exceptions import OneAPIError
from xpulab.libraries import oneapi
try:
    print(oneapi.mpiexec())
except OneAPIError as error:
    print(error)
"""
    path = os.pathsep.join(map(str, (*folders, Path(libmpi.__file__).parents[2])))
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    return done.stdout.strip()


def packaged(folder: Path, name: str, version: str, record: str = "") -> None:
    """Write what pip notes of a package that it has installed."""
    (about := folder / f"{name}-{version}.dist-info").mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (about / "RECORD").write_text(record)


def test_a_second_mpi_in_the_environment_is_named_with_the_repair(tmp_path: Path) -> None:
    """pip lets packages replace files of each other; findings/two_mpis_in_one_environment.sh shows it."""
    assert asked().endswith("bin/mpiexec")
    packaged(tmp_path, "impi_rt", "2021.17.2", "bin/mpiexec,sha256=abc,7\n")
    program = tmp_path / "bin" / "mpiexec"
    program.parent.mkdir()
    program.write_text("1234567")
    assert asked(tmp_path).endswith("bin/mpiexec")
    program.write_text("1234")  # the site has stripped it
    assert asked(tmp_path).endswith("bin/mpiexec")
    program.unlink()
    repair = "-m pip install --force-reinstall --no-deps impi-rt==2021.17.2"
    said = asked(tmp_path)
    assert said.startswith(
        "a package that was removed since then replaced files of impi-rt 2021.17.2 in this environment"
    )
    assert str(program) in said
    assert said.endswith(repair)
    program.write_text("another MPI's")
    packaged(tmp_path, "mpich", "5.0.2")
    said = asked(tmp_path)
    assert said.startswith("mpich 5.0.2 replaced files of impi-rt 2021.17.2")
    assert "-m pip uninstall -y mpich && " in said
    program.unlink()
    assert asked(tmp_path).startswith("mpich 5.0.2 replaced files of impi-rt")
