"""Programs that devices' compilers have made, in the user's cache folder: compiling a kernel takes 0.1 to 0.4 s.

A file that cannot be read, or that is not what was written, counts as none. Where the folder cannot be written, nothing
is kept.
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

_LOOK = 0.02  # seconds between two looks at a lock
_PATIENCE = 30.0  # seconds; the process that has it may have been stopped


def folder(name: str) -> Path:
    """Where files of a kind are: in the user's cache folder, under ``XPULAB_CACHE`` if that is set."""
    return Path(os.environ.get("XPULAB_CACHE") or platformdirs.user_cache_dir("xpulab")) / name


def load(key: str) -> bytes | None:
    """The content that is kept under a key; None if the cache has no such key."""
    try:
        digest, _, content = (folder("programs") / key).read_bytes().partition(b"\n")
    except OSError:
        return None
    return content if digest == _digest(content) else None


def store(key: str, content: bytes) -> None:
    """Keep something for the next process."""
    write(folder("programs") / key, _digest(content) + b"\n" + content)


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


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest().encode()
