"""The catalogue of compiled kernels: SPIR-V in files that `python -m xpulab.kernels.compile.build` writes.

SPIR-V does not depend on the device, so one file is enough for all devices; the device's driver compiles it further. A
file has the kernels of a shelf. They are compressed together, because they are similar.
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

COMMAND = "python -m xpulab.kernels.compile.build"  # writes the catalogue
SUFFIX = ".kernels"

_MAGIC = b"xpulab kernels, format 1\n"


@dataclass(frozen=True)
class Compiled:
    """A compiled kernel.

    Attributes
    ----------
    entry : str
        Name of the function in the SPIR-V.
    digest : str
        `Kernel.digest` of the source.
    spirv : bytes
        The SPIR-V module.
    """

    entry: str
    digest: str
    spirv: bytes


def find(kernel: Kernel) -> Compiled:
    """Return the entry of the catalogue for a kernel.

    Raises
    ------
    KernelBuildError
        If the catalogue does not have the kernel, or has it from another source, or if the file is damaged.
    """
    path = shelf_file(kernel)
    compiled = _shelf(path).get(kernel.key)
    if compiled is None:
        raise KernelBuildError(f"{kernel.key} is not in the catalogue of kernels ({path}); type: {COMMAND}")
    if _may_change(kernel.folder) and compiled.digest != kernel.digest:
        raise KernelBuildError(f"{kernel.key} has changed since the catalogue of kernels was built; type: {COMMAND}")
    return compiled


def shelf_file(kernel: Kernel) -> Path:
    """Return the file of the catalogue that has a kernel."""
    return kernel.folder / (kernel.shelf + SUFFIX)


def pack(shelf: Mapping[str, Compiled], compiler: str) -> bytes:
    """Return a file's content: a line with the format, a line with a digest, and an index and the kernels, compressed.

    Parameters
    ----------
    shelf : mapping of str to Compiled
        `Kernel.key` -> compiled kernel.
    compiler : str
        Names and versions of the packages that compiled the kernels.

    Returns
    -------
    bytes
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
    """Return the kernels in the content of a file, by key, and the compiler.

    Raises
    ------
    ValueError
        If the content was not written by `pack`, or is damaged; the message says which.
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
    """Return whether the modules may change: they may in a clone of the repository, but not in an installed package."""
    return any((parent / "pyproject.toml").exists() for parent in folder.parents[1:3])
