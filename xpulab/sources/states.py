"""States of files, which show whether a file is the same as before."""

from __future__ import annotations

import datetime
import os
import stat

__all__ = ["file_state", "require_same"]


def file_state(file: int | str) -> list[int]:
    """Return device, inode, time of the last change in ns, and size. They show whether a file is the same as before.

    Of a folder, they are those of its files.

    Parameters
    ----------
    file : int or str
        Descriptor or path of the file.
    """
    status = os.stat(file)
    if isinstance(file, str) and stat.S_ISDIR(status.st_mode):
        every = [os.stat(os.path.join(folder, name)) for folder, _, names in os.walk(file) for name in names]
        changed = max([status.st_mtime_ns, *(each.st_mtime_ns for each in every)])
        return [status.st_dev, status.st_ino, changed, sum(each.st_size for each in every)]
    return [status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size]


def require_same(path: str, state: list[int]) -> None:
    """Raise ValueError if a file is not as it was when it was scanned."""
    try:
        now = file_state(path)
    except FileNotFoundError:
        raise ValueError(f"{path} was removed since it was scanned: xpulab.scan the files again") from None
    if now != state:
        raise ValueError(
            f"{path} has changed since it was scanned: it was {_described(state)}, and is {_described(now)}; "
            "xpulab.scan the files again"
        )


def _described(state: list[int]) -> str:
    changed = datetime.datetime.fromtimestamp(state[2] / 1e9).isoformat(" ", "milliseconds")
    return f"{state[3]:,} bytes of {changed}"
