"""Find and load the oneAPI runtime and the MPI that pip installed.

This is the only file that knows the names of the runtime's libraries and environment variables. The environment
variables of MPI are in `xpulab.deploy.mpi`.

The RPATHs in the wheels and the OpenCL vendor files name folders of the machine on which the wheels were built, so the
dynamic loader does not find the libraries. Therefore `load` loads each library by its full path, dependencies first,
before dpctl is imported.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import re
import sys
import sysconfig
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from xpulab.exceptions import OneAPIError
from xpulab.libraries import libmpi
from xpulab.sharing.signals import interrupted_after

__all__ = [
    "CPU_TARGET",
    "CPU_TARGETS",
    "CURRENT",
    "GPU_DRIVER_FILES",
    "GPU_DRIVER_FOLDERS",
    "INTERFERING",
    "OPENCL",
    "OPENCL_VENDORS",
    "SELECTOR",
    "STACK",
    "WITH_COMPILER",
    "Stack",
    "after_torch",
    "confine",
    "cpu_target",
    "engine_environment",
    "library_folder",
    "load",
    "mpiexec",
    "processor",
    "to_install",
    "unlike_pins",
]


@dataclass(frozen=True)
class Stack:
    """A set of releases that work together.

    Attributes
    ----------
    name : str
        What the doctor calls it.
    pins : mapping of str to str
        The version specifier of each package, as pip reads it. A test checks that pyproject.toml has the same.
    libraries : tuple of str
        The libraries that `load` loads, dependencies first.
    for_dpnp : tuple of str
        The other libraries that dpnp needs; they are loaded when dpnp is imported.
    sycl : str
        File name of the SYCL library.
    knows_processors : bool
        Whether the CPU device's compiler knows the processors of all makers, see `CPU_TARGET`.
    """

    name: str
    pins: Mapping[str, str]
    libraries: tuple[str, ...]
    for_dpnp: tuple[str, ...]
    sycl: str
    knows_processors: bool


_INTEL = ("libintlc.so.5", "libirng.so", "libsvml.so", "libimf.so")

#: For Python 3.10 and 3.11. numba-dpex, the compiler of kernels, has no release for later Pythons; it determines the
#: versions of all other packages.
WITH_COMPILER = Stack(
    name="oneAPI 2024.2 with numba-dpex",
    pins={
        "numba-dpex": "==0.23.0",
        "dpctl": "==0.17.0",
        "dpnp": "==0.15.0",
        "numba": "==0.59.1",
        "numpy": "==1.26.4",
        "dpcpp-cpp-rt": "==2024.2.1",
        "intel-cmplr-lib-rt": "==2024.2.1",
        "mkl-dpcpp": "==2024.2.1",
        "dpcpp-llvm-spirv": "==2024.2.0",
        "intel-opencl-rt": "==2024.2.1",
        "pyarrow": ">=21,<25",  # later releases want NumPy 2
    },
    libraries=(*_INTEL, "libsycl.so.7", "libOpenCL.so.1", "libtbb.so.12"),
    for_dpnp=(  # MKL's libraries depend on each other in a circle, so `_load` uses RTLD_LAZY
        "libmkl_core.so.2",
        "libmkl_tbb_thread.so.2",
        "libmkl_intel_ilp64.so.2",
        *(f"libmkl_sycl_{part}.so.4" for part in ("blas", "lapack", "rng", "stats", "dft", "vm")),
    ),
    sycl="libsycl.so.7",
    knows_processors=False,
)

#: For Python 3.12 and later.
CURRENT = Stack(
    name="oneAPI 2026.1",
    pins={
        "dpctl": ">=0.22,<0.23",
        "dpnp": ">=0.20,<0.21",
        "numpy": ">=2.1,<3",
        "dpcpp-cpp-rt": ">=2026.1,<2026.2",
        "intel-cmplr-lib-rt": ">=2026.1,<2026.2",
        "intel-opencl-rt": ">=2026.1,<2026.2",
        "mkl": ">=2026.1,<2026.2",
        "pyarrow": ">=21,<27",
    },
    libraries=(*_INTEL, "libtbb.so.12", "libOpenCL.so.1", "libsycl.so.9"),
    for_dpnp=(),  # the libraries of this release find each other
    sycl="libsycl.so.9",
    knows_processors=True,
)

#: The set of releases for this interpreter.
STACK = WITH_COMPILER if sys.version_info < (3, 12) else CURRENT
OPENCL = "libOpenCL.so.1"

#: Variable that selects the devices that the runtime shows. A rank gets its own device. The probe removes the variable,
#: so that it sees and numbers all devices.
SELECTOR = "ONEAPI_DEVICE_SELECTOR"
OPENCL_VENDORS = "OCL_ICD_FILENAMES"

#: Variable that tells the CPU device's compiler for which processor to compile. The compiler of 2024 recognises Intel's
#: processors only. For any other processor, such as AMD's, it uses no vector instructions and no fused multiply-adds,
#: and kernels are 150 times slower.
CPU_TARGET = "CL_CONFIG_CPU_TARGET_ARCH"

#: Values of `CPU_TARGET`, best first -> Linux's names of the instructions that such a processor has.
CPU_TARGETS: Mapping[str, frozenset[str]] = {
    "skx": frozenset(["avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", "avx2", "bmi1", "bmi2", "fma"]),
    "core-avx2": frozenset(["avx2", "bmi1", "bmi2", "fma"]),
}

#: Environment variables of a user that change which runtime or devices are used -> their effect. The doctor shows those
#: that are set.
INTERFERING: Mapping[str, str] = {
    SELECTOR: "is not used: each engine gets its own; choose with --devices",
    OPENCL_VENDORS: "replaces the list of OpenCL drivers, and with it the CPU device",
    CPU_TARGET: "is the processor for which kernels of the CPU device are compiled, in place of this machine's",
    "SETVARS_COMPLETED": "another oneAPI was activated in this shell, and its libraries may be found first",
    "I_MPI_ROOT": "another Intel MPI was activated in this shell, and its libraries may be found first",
}

#: Package of Intel's GPU driver -> pattern of one of its files.
GPU_DRIVER_FILES: Mapping[str, str] = {
    "intel-opencl-icd": "intel*.icd",
    "libze-intel-gpu1": "libze_intel_gpu.so.1",
    "libze1": "libze_loader.so.1",
}
GPU_DRIVER_FOLDERS: tuple[str, ...] = ("etc/OpenCL/vendors", "usr/lib*", "usr/lib*/*", "usr/local/lib*")


def library_folder() -> Path:
    """Folder of the oneAPI libraries that pip installed.

    Raises
    ------
    OneAPIError
        If none of the folders into which pip may have installed the runtime has SYCL's library.
    """
    schemes = [sysconfig.get_path("data"), sys.prefix, sysconfig.get_path("data", "posix_user"), sys.base_prefix]
    folders = list(dict.fromkeys(Path(scheme) / "lib" for scheme in schemes if scheme))
    for folder in folders:
        if (folder / STACK.sycl).exists():
            return folder
    raise OneAPIError(
        f"the oneAPI runtime ({STACK.sycl}) was not found in "
        + ", ".join(map(str, folders))
        + f"; type: {_reinstall('dpcpp-cpp-rt')}"
    )


def load() -> Path:
    """Load the oneAPI runtime into this process, so that dpctl and dpnp can be imported. Repeated calls do nothing.

    Returns
    -------
    pathlib.Path
        The folder that the libraries were loaded from.

    Raises
    ------
    OneAPIError
        If a library is missing or does not load; the message has its name and the loader's reason.
    """
    folder = library_folder()
    if not os.environ.get(OPENCL_VENDORS):  # an empty value would hide the CPU device
        os.environ[OPENCL_VENDORS] = str(folder / "libintelocl.so")
    if not os.environ.get(CPU_TARGET):
        os.environ.pop(CPU_TARGET, None)  # an empty value would hide the CPU device, too
        if not STACK.knows_processors and (target := cpu_target(Path("/proc/cpuinfo").read_text())):
            os.environ[CPU_TARGET] = target
    _load(folder, STACK.libraries)
    if STACK.for_dpnp and not any(isinstance(finder, _LoadsForDpnp) for finder in sys.meta_path):
        sys.meta_path.insert(0, _LoadsForDpnp(folder))
    if not any(isinstance(finder, _KeepsTorchApart) for finder in sys.meta_path):
        sys.meta_path.insert(0, _KeepsTorchApart())
    return folder


class _LoadsForDpnp(MetaPathFinder):
    """An import hook that loads dpnp's libraries just before dpnp is imported. Most engines never import dpnp."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def find_spec(self, name: str, *_: object) -> None:
        if name == "dpnp":
            sys.meta_path.remove(self)
            _load(self._folder, STACK.for_dpnp)


class _KeepsTorchApart(MetaPathFinder):
    """An import hook with which PyTorch's libraries use their own symbols before those of other libraries.

    The libraries that `load` loads are global in this process, and oneMKL's functions among them take integers of 64
    bits. Without the hook PyTorch's calls of BLAS reach these functions, and end the process.
    """

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != "torch":
            return None
        if _torch:
            return ModuleSpec(name, _Imported(), is_package=True)
        others = (finder for finder in sys.meta_path if finder is not self)
        spec = next(filter(None, (finder.find_spec(name, path, target) for finder in others)), None)
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            loader.exec_module = functools.partial(_bound_to_itself, loader.exec_module)
        return spec


class _Imported(Loader):
    """Gives the PyTorch that was imported to its end, but whose import statement Ctrl-C has ended."""

    def __init__(self) -> None:
        self._spec = _torch[0].__spec__

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _torch[0]

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec


_torch: list[ModuleType] = []  # PyTorch, after it was imported to its end
_after_torch: list[Callable[[], None]] = []


def after_torch(action: Callable[[], None]) -> None:
    """Call a function when PyTorch has been imported in this process, which has called `load`."""
    if "torch" in sys.modules:
        action()
    else:
        _after_torch.append(action)


def _bound_to_itself(execute: Callable[[ModuleType], None], module: ModuleType) -> None:
    """Import PyTorch. Ctrl-C waits for the end: a process cannot import PyTorch again after it has left the import."""
    flags = sys.getdlopenflags()
    sys.setdlopenflags(os.RTLD_NOW | os.RTLD_DEEPBIND)
    with interrupted_after():
        try:
            execute(module)
            sys.setdlopenflags(flags)
            _torch.append(module)
            for action in _after_torch:
                action()
        finally:
            sys.setdlopenflags(flags)


def _load(folder: Path, names: Iterable[str]) -> None:
    libc = ctypes.CDLL(None)
    libc.dlopen.restype = ctypes.c_void_p
    libc.dlopen.argtypes = [ctypes.c_char_p, ctypes.c_int]
    libc.dlerror.restype = ctypes.c_char_p
    for name in names:
        # ctypes.CDLL would add RTLD_NOW, with which libraries that depend on each other in a circle do not load.
        if not libc.dlopen(str(folder / name).encode(), os.RTLD_LAZY | os.RTLD_GLOBAL):
            reason = (libc.dlerror() or b"no reason given").decode(errors="replace")
            raise OneAPIError(f"{name} did not load: {reason}; type: {_reinstall(*STACK.pins)}")


def unlike_pins(names: Iterable[str]) -> dict[str, str]:
    """Return which packages are missing, or are other releases than the stack needs, and what is installed.

    Parameters
    ----------
    names : iterable of str
        Names of packages; each release is right of those that the stack does not have.

    Returns
    -------
    dict of str to str
        ``{"numpy": "numpy is 2.3.0, not ==1.26.4"}``
    """
    from importlib import metadata

    from packaging.specifiers import SpecifierSet

    wrong = {}
    for name in names:
        pin = STACK.pins.get(name, "")
        try:
            have = metadata.version(name)
        except metadata.PackageNotFoundError:
            wrong[name] = f"{name} is missing"
            continue
        if not SpecifierSet(pin).contains(have, prereleases=True):
            wrong[name] = f"{name} is {have}, not {pin}"
    return wrong


def to_install(names: Iterable[str]) -> str:
    """Return the command that installs packages in the releases that the stack needs."""
    wanted = [f'"{name}{STACK.pins[name]}"' if name in STACK.pins else name for name in names]
    return f"{sys.executable} -m pip install {' '.join(wanted)}"


def _reinstall(*packages: str) -> str:
    wanted = " ".join(f'"{package}{STACK.pins[package]}"' for package in packages)
    return f"{sys.executable} -m pip install --force-reinstall {wanted}"


def cpu_target(cpuinfo: str) -> str | None:
    """Return the value of `CPU_TARGET` for a processor; None if the compiler recognises the processor itself.

    Parameters
    ----------
    cpuinfo : str
        Content of ``/proc/cpuinfo``.

    Returns
    -------
    str or None
        For a processor that is not Intel's, the first of `CPU_TARGETS` whose instructions it has.
    """
    facts = dict(re.findall(r"^(vendor_id|flags)\s*: (.*)$", cpuinfo, re.MULTILINE))
    if facts.get("vendor_id") == "GenuineIntel":
        return None
    has = set(facts.get("flags", "").split())
    return next((name for name, needs in CPU_TARGETS.items() if needs <= has), None)


def processor() -> list[str]:
    """Return what machine code for this CPU depends on: maker, model, instructions, and the variable `CPU_TARGET`."""
    facts = dict(
        re.findall(r"^(vendor_id|model name|flags)\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    )
    return [*facts.values(), os.environ.get(CPU_TARGET, "")]


def mpiexec() -> Path:
    """Return the full path of the mpiexec of this environment, which need not be on PATH.

    Raises
    ------
    OneAPIError
        If the environment has no mpiexec, or if another MPI's package has replaced files of Intel MPI.
    """
    if said := libmpi.replaced():
        raise OneAPIError(said)
    folders = list(dict.fromkeys(Path(p) / "bin" for p in (sysconfig.get_path("data"), sys.prefix, sys.base_prefix)))
    for folder in folders:
        if (folder / "mpiexec").exists():
            return folder / "mpiexec"
    raise OneAPIError(
        "mpiexec was not found in "
        + ", ".join(map(str, folders))
        + f'; type: {sys.executable} -m pip install --force-reinstall "impi-rt>=2021.17,<2021.18"'
    )


def engine_environment(selector: str) -> dict[str, str]:
    """Return the environment variables that a rank needs before it calls `load`.

    Parameters
    ----------
    selector : str
        The only device that the rank sees, for example ``"opencl:0"``, ``"level_zero:1"`` or ``"level_zero:0.1"`` (a
        tile). The runtime does not accept the form ``"level_zero:gpu:0"``.

    Returns
    -------
    dict of str to str
    """
    return {SELECTOR: selector}


def confine(cores: Iterable[int]) -> None:
    """Bind all threads of this process to these cores. Call it before `load`, which makes a CPU device of these cores.

    Each rank does this itself. This works in the same way with every MPI, and for ranks that share cores. Neither Intel
    MPI's pinning nor MPI_Init changes it.

    Parameters
    ----------
    cores : iterable of int
        Numbers of logical CPUs.

    Raises
    ------
    OneAPIError
        If the operating system does not allow these cores to this process.
    """
    wanted = set(cores)
    try:
        for thread in os.listdir("/proc/self/task"):  # libraries may have started threads already
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(int(thread), wanted)
    except OSError as error:
        raise OneAPIError(
            f"this process cannot be confined to the cores {sorted(wanted)}: {error.strerror}; "
            f"it may use {sorted(os.sched_getaffinity(0))}; restart the cluster, which plans it anew"
        ) from None
