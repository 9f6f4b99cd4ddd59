"""Keeps programs that devices' compilers have made in the user's cache folder. Compiling a kernel takes 0.1 to 0.4 s.

A file that cannot be read, or that is damaged, counts as missing. If the folder cannot be written, nothing is kept.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import platformdirs

__all__ = ["claimed", "folder", "load", "store", "write"]

_LOOK = 0.02  # seconds between two attempts to get a lock
_PATIENCE = 30.0  # seconds to wait for a lock, because the process that has it may have been stopped


def folder(name: str) -> Path:
    """Return the folder `name` in the user's cache folder, or in ``XPULAB_CACHE`` if this variable is set."""
    return Path(os.environ.get("XPULAB_CACHE") or platformdirs.user_cache_dir("xpulab")) / name


def load(key: str) -> bytes | None:
    """Return the content that is stored under a key; None if there is none."""
    try:
        digest, _, content = (folder("programs") / key).read_bytes().partition(b"\n")
    except OSError:
        return None
    return content if digest == _digest(content) else None


def store(key: str, content: bytes) -> None:
    """Store content under a key, for other processes."""
    write(folder("programs") / key, _digest(content) + b"\n" + content)


def write(path: Path, content: bytes) -> None:
    """Create or replace a file atomically, because other ranks may read or write it. Errors are ignored."""
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
    """Open a context in which no other process compiles the same thing, because several engines would share the cores.

    Another process may have compiled the thing before the context is entered. If the file system has no locks, this
    function does not wait.

    Parameters
    ----------
    name : str
        Name of the thing to compile, which must be a valid file name.
    waiting : callable
        Called from time to time while another process has the lock. Its exceptions end the wait.
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
            except OSError:  # this file system has no locks
                break
        yield
    finally:
        with contextlib.suppress(OSError):
            path.unlink()  # waiting processes have the file open, and still get the lock
        os.close(lock)


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest().encode()
