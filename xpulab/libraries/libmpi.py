"""Load the MPI library that goes with mpiexec, and notice if it does not: each rank then is alone.

mpi4py's wheel takes a library of Open MPI's or of MPICH's ABI. The variable MPI4PY_LIBMPI says which. mpi4py's module
then asks the dynamic loader for the file name that the library has upstream. If the library has another name, as
Debian's MPICH, the loader finds it only by an alias with that name.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.util
import os
import struct
import sys
import threading
from collections.abc import Iterator, Mapping
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

__all__ = [
    "LABELS",
    "LIBMPI",
    "Alone",
    "checked_at_import",
    "leave",
    "load",
    "refuse_processes",
    "replaced",
    "require_together",
    "unlink_files",
]

#: Variable with which mpi4py finds the library.
LIBMPI = "MPI4PY_LIBMPI"

_ABI = "MPI4PY_MPIABI"
_UNSET = f"del os.environ['{LIBMPI}'] (in a shell: unset {LIBMPI})"
#: Name of an MPI -> what users call it.
LABELS = {"intel": "Intel MPI", "openmpi": "Open MPI", "mpich": "MPICH"}

#: What the version of a library begins with -> the name of its MPI.
_VERSIONS = {"Open MPI": "openmpi", "Intel": "intel", "MPICH": "mpich"}

#: Files of impi-rt that other packages of MPI install, too: pip lets them replace each other without a word.
_SHARED = ("hydra_pmi_proxy", "libmpi.so.12", "mpiexec", "mpiexec.hydra")


class Alone(Exception):
    """The library is not that of the mpiexec that has started this process; the message says what to type."""


def load(expected: Mapping[str, Any]) -> None:
    """Load the library that MPI4PY_LIBMPI names, so that mpi4py's module finds it. Without it, mpi4py decides.

    Parameters
    ----------
    expected : mapping
        ``mpi``, the name of the MPI whose mpiexec has started this process; ``n``, the number of ranks.

    Raises
    ------
    Alone
        If the file is no library of MPI, or one that cannot belong to this mpiexec.
    """
    path = os.environ.get(LIBMPI, "")
    if not os.path.isfile(path):  # mpi4py takes lists and folders, too
        return
    os.environ.pop(_ABI, None)  # with it, mpi4py would not read the other variable
    try:
        library = ctypes.CDLL(path, os.RTLD_LAZY)
        version = _version(library)
    except (OSError, AttributeError) as error:
        raise Alone(f"{LIBMPI} names {path}, which is no library of MPI: {error}; type: {_UNSET}") from None
    is_openmpi = version.startswith("Open MPI")
    if is_openmpi != (expected["mpi"] == "openmpi"):
        raise Alone(_words(expected, version))
    name = "libmpi.so.40" if is_openmpi else "libmpi.so.12"
    with contextlib.suppress(OSError):
        ctypes.CDLL(name, os.RTLD_LAZY | os.RTLD_NOLOAD)  # loaded under this name
        return
    descriptor = os.memfd_create(f"xpulab {name}")
    with open(descriptor, "wb") as file:
        file.write(_alias(name, os.path.realpath(path)))
        file.flush()
        ctypes.CDLL(f"/proc/self/fd/{descriptor}", os.RTLD_LAZY)


def replaced() -> str:
    """Say which files of impi-rt another package has replaced, or removed with its own, and what to type; or ""."""
    from importlib import metadata  # an engine does not wait for it

    try:
        own = metadata.distribution("impi-rt")
    except metadata.PackageNotFoundError:
        return ""
    others = dict.fromkeys(("mpich", "openmpi"), "")
    for name in others:
        with contextlib.suppress(metadata.PackageNotFoundError):
            others[name] = metadata.version(name)
    there = [name for name, version in others.items() if version]
    changed = {  # without another MPI, a file of another size is one that a site has stripped
        str(path)
        for file in own.files or ()
        if file.name in _SHARED and file.size is not None
        for path in [Path(str(file.locate())).resolve()]
        if not path.exists() or (there and path.stat().st_size != file.size)
    }
    if not changed:
        return ""
    who = " and ".join(f"{name} {others[name]}" for name in there) or "a package that was removed since then"
    pip = f"{sys.executable} -m pip"
    remove = f"{pip} uninstall -y {' '.join(there)} && " if there else ""
    return (
        f"{who} replaced files of impi-rt {own.version} in this environment: {', '.join(sorted(changed))}. Each MPI "
        f"needs an environment of its own; type: {remove}{pip} install --force-reinstall --no-deps "
        f"impi-rt=={own.version}"
    )


def require_together(expected: Mapping[str, Any], MPI: ModuleType) -> None:
    """Raise `Alone` if MPI has another number of ranks than mpiexec has started."""
    if MPI.Is_initialized() and MPI.COMM_WORLD.size != expected["n"]:
        raise Alone(_words(expected, MPI.Get_library_version()))


def unlink_files() -> None:
    """Unlink MPICH's files in /dev/shm after all ranks have mapped them, because a killed rank does not do this."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = line.split(maxsplit=5)[-1]
        if path.startswith("/dev/shm/mpich_shm_"):
            Path(path).unlink(missing_ok=True)


@contextlib.contextmanager
def checked_at_import(expected: Mapping[str, Any]) -> Iterator[None]:
    """Open a context in which the first import of mpi4py.MPI raises `Alone` if it does not go with mpiexec."""
    finder = _Finder(expected)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            sys.meta_path.remove(finder)


class _Finder(MetaPathFinder):
    """An import hook for mpi4py.MPI."""

    def __init__(self, expected: Mapping[str, Any]) -> None:
        self._expected = expected

    def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
        if name != "mpi4py.MPI":
            return None
        sys.meta_path.remove(self)
        load(self._expected)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _Checking(spec.loader, self._expected)
        return spec


class _Checking(Loader):
    """A loader that compares the number of ranks after the module has initialised MPI."""

    def __init__(self, loader: Loader, expected: Mapping[str, Any]) -> None:
        self._loader, self._expected = loader, expected

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        require_together(self._expected, module)
        _prepare_reductions(module)
        _replace_world_and_self(module, self._expected)


def leave(errorcode: int) -> NoReturn:
    """End this process at once, as `Abort` does, with a status that is known as this rank's."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(errorcode)


def refuse_processes(name: str, who: str, instead: str) -> NoReturn:
    """Refuse to start processes by MPI in words, before the call reaches MPI.

    A pool of mpi4py.futures, whose thread makes the call, is told that it is broken: its results would be waited for
    for ever.

    Parameters
    ----------
    name : str
        Name of the method.
    who : str
        Who cannot start any.
    instead : str
        What to type.

    Raises
    ------
    RuntimeError
    """
    what = f"{name} starts processes by MPI, such as those of a new MPIPoolExecutor"
    words = f"{what}, and {who} cannot start any. {instead}"
    pool: Any = next(iter(getattr(threading.current_thread(), "_args", ())), None)
    if hasattr(pool, "broken"):
        pool.size = 0  # as mpi4py says of a broken pool; `Pool.map` divides its tasks by it
        pool.broken(words)
        raise SystemExit
    raise RuntimeError(words)


_IN_A_SCRIPT = (
    "The ranks themselves can work for it: on all ranks, with mpi4py.futures.MPICommExecutor() as executor; or type: "
    "xpulab run -n 4 -m mpi4py.futures script.py, as python -m mpi4py.futures"
)


def _replace_world_and_self(MPI: Any, expected: Mapping[str, Any]) -> None:
    """Let `Abort` leave by `os._exit`, which tells the status: launchers name another rank, or none.

    With Intel MPI's library of pip, processes that MPI would start are refused.
    """

    def made(name: str) -> Any:
        class Intracomm(MPI.Intracomm):
            __module__ = MPI.__name__

            def Abort(self, errorcode: int = 0) -> NoReturn:
                leave(errorcode)

            def __reduce__(self) -> str:
                return name

        if expected["mpi"] == "intel":
            for each in ("Spawn", "Spawn_multiple"):
                setattr(Intracomm, each, functools.partialmethod(_refuse_in_a_script, each))
        return Intracomm(getattr(MPI, name))

    MPI.COMM_WORLD, MPI.COMM_SELF = made("COMM_WORLD"), made("COMM_SELF")


def _refuse_in_a_script(_: object, name: str, *__: object, **___: object) -> NoReturn:
    refuse_processes(name, "Intel MPI's ranks", _IN_A_SCRIPT)


def _prepare_reductions(MPI: ModuleType) -> None:
    """Let mpi4py make the communicator with which it reduces Python objects; all ranks import it together.

    Otherwise the first such reduction makes it, and holds Python's lock while it waits for the other ranks: then no
    thread of this rank could tell that it waits.
    """
    if MPI.Is_initialized() and MPI.COMM_WORLD.size > 1:
        MPI.COMM_WORLD.allreduce(0)


def _version(library: ctypes.CDLL) -> str:
    """Return the library's version in words, which MPI tells before it is initialised."""
    buffer, length = ctypes.create_string_buffer(8192), ctypes.c_int()
    library.MPI_Get_library_version(buffer, ctypes.byref(length))
    return buffer.value.decode(errors="replace")


def _words(expected: Mapping[str, Any], version: str) -> str:
    """Return what is wrong if library and mpiexec do not go together, and what to type."""
    label, path = LABELS[expected["mpi"]], os.environ.get(LIBMPI, "")
    first = " ".join(version.splitlines()[0].rstrip(" ,\0").split())
    other = next((name for start, name in _VERSIONS.items() if version.startswith(start)), "")
    other = f", or choose --mpi {other}" if other not in ("", expected["mpi"]) else ""
    where = f"which {LIBMPI} names: {path}" if expected["own"] else path or "which mpi4py has found"
    cure = _UNSET if expected["own"] else f"export {LIBMPI}=FILE before you start Jupyter, with the library of {label}"
    return (
        f"the {expected['n']} ranks cannot find each other: mpiexec is {label}'s ({expected['mpiexec']}), and the "
        f"library is {first} ({where}); type: {cure}{other}"
    )


def _alias(name: str, library: str) -> bytes:
    """Return a shared library with this name that has no code, and needs another library (ELF for x86-64)."""
    strings = b"\0" + name.encode() + b"\0" + library.encode() + b"\0"
    at = 64 + 3 * 56  # behind the header and the headers of three segments
    entries = 7 * 16
    symbols = at + entries
    needed, own, end = (1, 2 + len(name)), (14, 1), (0, 0)
    tables = (needed, own, (5, symbols + 24), (10, len(strings)), (6, symbols), (11, 24), end)
    dynamic = b"".join(struct.pack("<QQ", *entry) for entry in tables)
    whole = at + entries + 24 + len(strings)
    writable = 6
    segments = (
        struct.pack("<IIQQQQQQ", 1, writable, 0, 0, 0, whole, whole, 4096),
        struct.pack("<IIQQQQQQ", 2, writable, at, at, at, entries, entries, 8),
        struct.pack("<IIQQQQQQ", 0x6474E551, writable, 0, 0, 0, 0, 0, 16),  # no executable stack
    )
    identity = b"\x7fELF\2\1\1" + bytes(9)
    head = identity + struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 64, 0, 0, 64, 56, len(segments), 64, 0, 0)
    return head + b"".join(segments) + dynamic + bytes(24) + strings  # the only symbol is the empty one
