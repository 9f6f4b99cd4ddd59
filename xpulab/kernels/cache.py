"""Compiled kernels on disk: numba takes 0.1 to 0.3 s for each, on every rank of every cluster; reading takes none.

SPIR-V does not depend on the device, so that a file serves them all; the device's own compiler runs in any case. The
key covers all that the code does: the sources of this package, the closure, the argument types and the versions. A
file that cannot be read, or that is not what was written, counts as none; a folder that cannot be written is let be.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numba
import numba_dpex
import platformdirs

__all__ = ["claimed", "folder", "key_of", "load", "store", "write"]

_LOOK = 0.02  # seconds between two looks at a lock
_PATIENCE = 30.0  # seconds; the process that has it may have been stopped


def folder(name: str = "kernels") -> Path:
    """Where the files are: in the user's cache folder, under ``XPULAB_CACHE`` if that is set."""
    return Path(os.environ.get("XPULAB_CACHE") or platformdirs.user_cache_dir("xpulab")) / name


def key_of(function: Callable[..., None], kinds: tuple[Any, ...]) -> str:
    """A name for the code of a kernel for arguments of these kinds."""
    closure = [str(cell.cell_contents) for cell in function.__closure__ or ()]
    code = function.__code__  # its own, for a kernel that is not of this package
    body = [code.co_code.hex(), repr(code.co_consts), code.co_names]
    what = [_sources(), function.__qualname__, body, closure, [str(kind) for kind in kinds]]
    return hashlib.sha256(json.dumps(what).encode()).hexdigest()


def load(key: str) -> tuple[str, bytes] | None:
    """The kernel's name in its SPIR-V, and that; None if it is not there."""
    try:
        digest, name, spirv = (folder() / key).read_bytes().split(b"\n", 2)
    except (OSError, ValueError):
        return None
    if digest != _digest(name, spirv):
        return None
    return name.decode(), spirv


def store(key: str, name: str, spirv: bytes) -> None:
    """Keep a kernel for the next process."""
    write(folder() / key, b"\n".join([_digest(name.encode(), spirv), name.encode(), spirv]))


def write(path: Path, content: bytes) -> None:
    """Make or replace a file as a whole, for other ranks may be writing it too, or reading; or let it be."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor, temporary = tempfile.mkstemp(dir=path.parent)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
            os.replace(temporary, path)
        except OSError:
            os.unlink(temporary)
            raise


@contextlib.contextmanager
def claimed(name: str, waiting: Callable[[], None]) -> Iterator[None]:
    """Compile something here while no other process does: several engines would all do the same, and share the cores.

    What it is for may be there once the block is entered. Where there are no locks nobody waits.

    Parameters
    ----------
    name : str
        Of what is compiled, fit for a file's name.
    waiting : callable
        Called now and then while another process has it; what it raises ends the wait.
    """
    path = folder("locks") / name
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        yield
        return
    try:
        until = time.monotonic() + _PATIENCE
        while time.monotonic() < until:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                waiting()
                time.sleep(_LOOK)
            except OSError:  # this file system has none
                break
        yield
    finally:
        with contextlib.suppress(OSError):
            path.unlink()  # those who wait for it still get it, one by one
        os.close(lock)


def _digest(name: bytes, spirv: bytes) -> bytes:
    return hashlib.sha256(name + b"\n" + spirv).hexdigest().encode()


@cache
def _sources() -> str:
    """A digest of this package's sources and of the versions of the compiler."""
    texts = [path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py"))]
    versions = f"{numba.__version__} {numba_dpex.__version__}".encode()
    return hashlib.sha256(b"\0".join([versions, *texts])).hexdigest()
