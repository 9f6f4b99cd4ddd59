"""Kernels that were compiled ahead of use: SPIR-V in files that `python -m xpulab.kernels.build` writes.

SPIR-V does not depend on the device, so that one file serves all; the device's own compiler finishes it. A file holds
the kernels of a shelf, compressed together since they are much alike.
"""

from __future__ import annotations

import hashlib
import json
import lzma
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from xpulab.exceptions import KernelBuildError
from xpulab.kernels.language import Kernel

__all__ = ["COMMAND", "SUFFIX", "Compiled", "find", "pack", "shelf_file", "unpack"]

COMMAND = "python -m xpulab.kernels.build"  # writes it all
SUFFIX = ".kernels"

_MAGIC = b"xpulab kernels, format 1\n"


@dataclass(frozen=True)
class Compiled:
    """A kernel as its compiler left it.

    Attributes
    ----------
    entry : str
        The function's name in the SPIR-V.
    digest : str
        `Kernel.digest` of what was compiled.
    spirv : bytes
    """

    entry: str
    digest: str
    spirv: bytes


def find(kernel: Kernel) -> Compiled:
    """The entry of the catalogue for a kernel.

    Raises
    ------
    KernelBuildError
        If it has none, or one of another source, or if its file is missing or damaged.
    """
    path = shelf_file(kernel)
    compiled = _shelf(path).get(kernel.key)
    if compiled is None:
        raise KernelBuildError(f"{kernel.key} is not in the catalogue of kernels ({path}); type: {COMMAND}")
    if _may_change(kernel.folder) and compiled.digest != kernel.digest:
        raise KernelBuildError(f"{kernel.key} has changed since the catalogue of kernels was built; type: {COMMAND}")
    return compiled


def shelf_file(kernel: Kernel) -> Path:
    """The file that holds a kernel."""
    return kernel.folder / (kernel.shelf + SUFFIX)


def pack(shelf: Mapping[str, Compiled], compiler: str) -> bytes:
    """The content of a file: a line that names the format, a digest, and then compressed an index and the kernels.

    Parameters
    ----------
    shelf : mapping of str to Compiled
        By `Kernel.key`.
    compiler : str
        The packages that compiled them, with their versions.
    """
    kernels = {key: shelf[key] for key in sorted(shelf)}
    index = {
        "compiler": compiler,
        "kernels": {key: [each.entry, each.digest, len(each.spirv)] for key, each in kernels.items()},
    }
    text = json.dumps(index).encode() + b"\n" + b"".join(each.spirv for each in kernels.values())
    packed = lzma.compress(text, preset=9 | lzma.PRESET_EXTREME)
    return _MAGIC + hashlib.sha256(packed).hexdigest().encode() + b"\n" + packed


def unpack(content: bytes) -> tuple[dict[str, Compiled], str]:
    """The kernels in a file's content by their key, and the compiler.

    Raises
    ------
    ValueError
        If it is not what `pack` writes; the message says in which way.
    """
    if not content.startswith(_MAGIC):
        start = content[: len(_MAGIC)].split(b"\n")[0].decode(errors="replace")
        raise ValueError(f'it begins with "{start}", and "{_MAGIC.decode().strip()}" was expected')
    digest, _, packed = content[len(_MAGIC) :].partition(b"\n")
    if hashlib.sha256(packed).hexdigest().encode() != digest:
        raise ValueError("its content is not what was written")
    head, _, rest = lzma.decompress(packed).partition(b"\n")
    index, found, at = json.loads(head), {}, 0
    for key, (entry, digest_, length) in index["kernels"].items():
        found[key] = Compiled(entry, digest_, rest[at : at + length])
        at += length
    return found, index["compiler"]


@cache
def _shelf(path: Path) -> dict[str, Compiled]:
    try:
        return unpack(path.read_bytes())[0]
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise KernelBuildError(
            f"{path} cannot be read: {error}; install xpulab again, or in a clone of its repository type: {COMMAND}"
        ) from error


@cache
def _may_change(folder: Path) -> bool:
    """Whether its modules are being worked on: in a clone of the repository, as opposed to an installed package."""
    return any((parent / "pyproject.toml").exists() for parent in folder.parents[1:3])
