"""Compile all kernels ahead of use: ``python -m xpulab.kernels.compile.build``.

The catalogue of compiled kernels is in the folder of the modules with kernels, and is part of the package. Only kernels
that have changed are compiled, on all cores. This needs numba-dpex, and therefore Python 3.11. The functions of the
host also need the linker `ld` from the package binutils.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import multiprocessing
import os
import pkgutil
import random
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from tqdm import tqdm

from xpulab.exceptions import KernelBuildError
from xpulab.kernels.language import Kernel
from xpulab.kernels.on_cpu import host
from xpulab.kernels.runtime.catalogue import COMMAND, SUFFIX, Compiled, find, pack, shelf_file, unpack
from xpulab.libraries import oneapi
from xpulab.sharing.program import program

__all__ = ["PYTHON", "build", "check", "compile_all", "kernels_of", "main"]

PYTHON = (3, 11)  # the version of Python that compiles the catalogue
_PACKAGE = "xpulab.kernels"


def main(arguments: list[str] | None = None) -> None:
    """Run the command with the arguments of the command line."""
    parser = argparse.ArgumentParser(prog=COMMAND, description="Compile all kernels ahead of use.")
    parser.add_argument("packages", nargs="*", default=[_PACKAGE], help=f"packages with kernels; by default {_PACKAGE}")
    parser.add_argument(
        "--all",
        action="store_true",
        help="also compile kernels, or with --check the host's functions, whose source is as it was",
    )
    parser.add_argument(
        "--check",
        type=int,
        metavar="N",
        help="change nothing; compare the sources with the catalogue, and compile N kernels again and compare them",
    )
    options = parser.parse_args(arguments)
    if sys.version_info[:2] != PYTHON:
        # Numba compiles bytecode, which differs between versions of Python. numba-dpex has no release for later ones.
        sys.exit("kernels are compiled with Python {}.{}, and this is {}.{}".format(*PYTHON, *sys.version_info[:2]))
    for package in options.packages:
        if options.check is None:
            build(package, options.all)
        elif wrong := check(package, options.check, options.all):
            sys.exit(
                f"{package}: the catalogue is not what its kernels compile to; type: {COMMAND}\n" + "\n".join(wrong)
            )


def build(package: str, everything: bool = False) -> None:
    """Bring the catalogue of a package up to date.

    Parameters
    ----------
    package : str
        Name of a package. Its modules with kernels have a function `every_kernel`, which returns all their kernels.
    everything : bool
        Whether to compile kernels that have not changed, too.
    """
    shelves: dict[Path, dict[str, Kernel]] = defaultdict(dict)
    for kernel in kernels_of(package):
        shelves[shelf_file(kernel)][kernel.key] = kernel
    from xpulab.kernels.compile.compiler import COMPILER  # this import needs the runtime, which is loaded by now

    known = {path: {} if everything else _known(path, COMPILER) for path in shelves}
    missing = {
        path: [key for key in kernels if key not in known[path] or known[path][key].digest != kernels[key].digest]
        for path, kernels in shelves.items()
    }
    made = compile_all([shelves[path][key] for path, keys in missing.items() for key in keys])
    for path, kernels in shelves.items():
        new = {key: next(made) for key in missing[path]}
        shelf = {key: new.get(key) or known[path][key] for key in kernels}
        if shelf != known[path]:
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(pack(shelf, COMPILER))
    for folder in {path.parent for path in shelves}:
        for path in set(folder.glob(f"*{SUFFIX}")) - shelves.keys():
            path.unlink()
    size = sum(path.stat().st_size for path in shelves)
    counts = (sum(map(len, kernels.values())) for kernels in (missing, shelves))
    print("{}: {} of {} kernels compiled; {:.2f} MB in all".format(package, *counts, size / 1e6))
    if package == _PACKAGE:
        for path, content in _stale_libraries():
            path.write_bytes(content)
            print(f"{path.name}: compiled")


def check(package: str, count: int, host_functions: bool = False) -> list[str]:
    """Compare the sources of a package with its catalogue, and compile a part of them again.

    Parameters
    ----------
    package : str
        Name of the package.
    count : int
        Number of kernels to compile, which are chosen at random.
    host_functions : bool
        Whether to compile the host's functions of a level that is chosen at random, which takes half a minute.

    Returns
    -------
    list of str
        Descriptions of differences: what has another source, and what compiles to something else.
    """
    kernels, wrong = list(kernels_of(package)), []
    for kernel in kernels:
        try:
            if find(kernel).digest != kernel.digest:
                wrong.append(f"{kernel.key} has changed")
        except KernelBuildError as error:
            wrong.append(str(error))
    if wrong:
        return wrong
    chosen = random.sample(kernels, min(count, len(kernels)))
    again = zip(chosen, compile_all(chosen), strict=True)
    wrong = [f"{kernel.key} compiles to something else" for kernel, compiled in again if compiled != find(kernel)]
    if package == _PACKAGE:
        source = f"xpulab-host-{_host_source()}".encode()
        libraries = map(host.library_file, host.LEVELS)
        wrong += [f"{path} has another source" for path in libraries if source not in path.read_bytes()]
    if host_functions and not wrong:
        level = random.choice([*host.LEVELS])
        wrong += [f"{path} is not what the host's functions compile to" for path, _ in _stale_libraries([level])]
    return wrong


def kernels_of(package: str) -> Iterator[Kernel]:
    """Yield all kernels of a package's modules, and of its packages' modules, in a fixed order, without repetition."""
    oneapi.load()
    top = importlib.import_module(package)
    for name in sorted(module.name for module in pkgutil.walk_packages(top.__path__, f"{package}.")):
        source = Path(top.__path__[0], *name.removeprefix(f"{package}.").split(".")).with_suffix(".py")
        if source.exists() and "\ndef every_kernel(" in source.read_text():
            module = importlib.import_module(name)
            yield from {kernel.key: kernel for kernel in module.every_kernel()}.values()


def compile_all(kernels: Sequence[Kernel]) -> Iterator[Compiled]:
    """Compile kernels, on all cores.

    A separate process compiles each kernel. All these processes begin in the same state, so the SPIR-V of a kernel does
    not depend on the other kernels.
    """
    if not kernels:
        return
    from xpulab.kernels.compile import compiler

    compiler.warm_up()
    context, cores = multiprocessing.get_context("fork"), len(os.sched_getaffinity(0))
    with context.Pool(cores, _begin, (kernels,), maxtasksperchild=1) as pool:
        done = pool.imap(_compile, range(len(kernels)), chunksize=1)
        yield from tqdm(done, "kernels", len(kernels), mininterval=1)


def _begin(kernels: Sequence[Kernel]) -> None:
    """Prepare a forked process, which inherits the kernels without pickling."""
    from xpulab.kernels.compile import compiler

    global _compiled
    compiler.renumber()
    _compiled = lambda number: compiler.compiled(kernels[number])  # noqa: E731


def _compile(number: int) -> Compiled:
    return _compiled(number)


_compiled: Callable[[int], Compiled]


def _known(path: Path, compiler: str) -> dict[str, Compiled]:
    """Return the kernels of a file of the catalogue, if this compiler has compiled them; otherwise none."""
    try:
        shelf, made_by = unpack(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return shelf if made_by == compiler else {}


# --- the host's functions

_HOST_SOURCES = ("on_cpu/*_functions.py", "compile/host_compiler.py", "compile/host_vectors.py")


def _host_source() -> str:
    """Return a digest of the source of the host's functions, which their libraries contain, too."""
    folder = Path(__file__).parents[1]
    paths = (path for pattern in _HOST_SOURCES for path in sorted(folder.glob(pattern)))
    return hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()[:16]


def _stale_libraries(levels: Iterable[str] = host.LEVELS) -> Iterator[tuple[Path, bytes]]:
    """Yield, for each of these levels of x86-64 whose library is out of date, its path and the new library."""
    for level in levels:
        path = host.library_file(level)
        with tempfile.TemporaryDirectory() as folder:
            code, library = Path(folder, "host.o"), Path(folder, "host.so")
            subprocess.run(program("xpulab.kernels.compile.host_compiler", level, str(code)), check=True)
            # Linkers differ, so the code before linking is compared: the library contains its digest.
            name = f"xpulab-host-{_host_source()}-{hashlib.sha256(code.read_bytes()).hexdigest()}"
            if path.exists() and name.encode() in path.read_bytes():
                continue
            if shutil.which("ld") is None:
                sys.exit("the linker ld is not on PATH; type: sudo apt install binutils")
            subprocess.run(["ld", "-shared", "-s", "--build-id=none", "-soname", name, "-o", library, code], check=True)
            yield path, library.read_bytes()


if __name__ == "__main__":
    main()
