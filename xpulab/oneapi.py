"""Find and load the oneAPI runtime and the MPI that pip installed.

The only file that knows the names of their libraries and variables.

The wheels' RPATHs and the OpenCL vendor files name folders of the machine that built them, so nothing is found by
itself. What works is to load each library with its full path, in the order of their needs, before dpctl is imported.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import sys
import sysconfig
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from pathlib import Path

from xpulab.exceptions import OneAPIError

__all__ = [
    "CPU_TARGET",
    "CPU_TARGETS",
    "CURRENT",
    "GPU_DRIVER_FILES",
    "GPU_DRIVER_FOLDERS",
    "INTERFERING",
    "MPIEXEC_ARGUMENTS",
    "MPIEXEC_ENVIRONMENT",
    "OPENCL",
    "OPENCL_VENDORS",
    "SELECTOR",
    "STACK",
    "WITH_COMPILER",
    "Stack",
    "confine",
    "cpu_target",
    "engine_environment",
    "library_folder",
    "load",
    "mpiexec",
    "processor",
]


@dataclass(frozen=True)
class Stack:
    """A set of releases that work together.

    Attributes
    ----------
    name : str
    pins : mapping of str to str
        Distribution -> the versions that work with the others, as pip reads them; the same as in pyproject.toml, which
        a test compares.
    libraries : tuple of str
        What `load` loads, in the order of their needs.
    for_dpnp : tuple of str
        What dpnp needs besides; loaded when it is imported.
    sycl : str
        The file of SYCL's library.
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

#: For Python 3.10 and 3.11: numba-dpex, which compiles kernels, was released for no later one, and fixes all others.
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
    },
    libraries=(*_INTEL, "libsycl.so.7", "libOpenCL.so.1", "libtbb.so.12"),
    for_dpnp=(  # MKL's libraries need each other in a circle: hence RTLD_LAZY in `load`
        "libmkl_core.so.2",
        "libmkl_tbb_thread.so.2",
        "libmkl_intel_ilp64.so.2",
        *(f"libmkl_sycl_{part}.so.4" for part in ("blas", "lapack", "rng", "stats", "dft", "vm")),
    ),
    sycl="libsycl.so.7",
    knows_processors=False,
)

#: For later ones.
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
    },
    libraries=(*_INTEL, "libtbb.so.12", "libOpenCL.so.1", "libsycl.so.9"),
    for_dpnp=(),  # its libraries find each other
    sycl="libsycl.so.9",
    knows_processors=True,
)

#: That of this interpreter.
STACK = WITH_COMPILER if sys.version_info < (3, 12) else CURRENT
OPENCL = "libOpenCL.so.1"

#: Which devices the runtime shows. A rank gets its own; the probe drops it, so that it numbers all devices.
SELECTOR = "ONEAPI_DEVICE_SELECTOR"
OPENCL_VENDORS = "OCL_ICD_FILENAMES"

#: Which processor the CPU device's compiler writes for. That of 2024 knows Intel's by itself; any other, AMD's
#: of today for one, it takes for one without vectors and fused multiply-adds: kernels are 150 times slower then.
CPU_TARGET = "CL_CONFIG_CPU_TARGET_ARCH"

#: Its names -> what Linux calls the instructions that such a processor has. The best one first.
CPU_TARGETS: Mapping[str, frozenset[str]] = {
    "skx": frozenset(["avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", "avx2", "bmi1", "bmi2", "fma"]),
    "core-avx2": frozenset(["avx2", "bmi1", "bmi2", "fma"]),
}

#: Variables of a user's shell that change what is found here -> how. The doctor shows those that are set.
INTERFERING: Mapping[str, str] = {
    SELECTOR: "is not used: each engine gets its own; choose with --devices",
    OPENCL_VENDORS: "replaces the list of OpenCL drivers, and with it the CPU device",
    CPU_TARGET: "is the processor that the CPU device's kernels are compiled for, whatever is here",
    "SETVARS_COMPLETED": "another oneAPI was activated in this shell, and its libraries may be found first",
    "I_MPI_ROOT": "another Intel MPI was activated in this shell, and its libraries may be found first",
}

#: Package of Intel's GPU driver -> a file of it, and where that may lie below the root folder.
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
        If no environment on the way from this interpreter to its base holds libsycl.
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
    """Load the oneAPI runtime into this process, so that `import dpctl` works, and `import dpnp` loads what it needs.

    Harmless when repeated.

    Returns
    -------
    pathlib.Path
        The folder the libraries were loaded from.

    Raises
    ------
    OneAPIError
        If a library is missing or does not load; the message names it and holds the loader's words.
    """
    folder = library_folder()
    if not os.environ.get(OPENCL_VENDORS):  # set but empty would hide the CPU device
        os.environ[OPENCL_VENDORS] = str(folder / "libintelocl.so")
    if not os.environ.get(CPU_TARGET):
        os.environ.pop(CPU_TARGET, None)  # set but empty would hide it too
        if not STACK.knows_processors and (target := cpu_target(Path("/proc/cpuinfo").read_text())):
            os.environ[CPU_TARGET] = target
    _load(folder, STACK.libraries)
    if STACK.for_dpnp and not any(isinstance(finder, _LoadsForDpnp) for finder in sys.meta_path):
        sys.meta_path.insert(0, _LoadsForDpnp(folder))
    return folder


class _LoadsForDpnp(MetaPathFinder):
    """Finds no module; it loads dpnp's libraries before others find dpnp. Most engines never import it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def find_spec(self, name: str, *_: object) -> None:
        if name == "dpnp":
            sys.meta_path.remove(self)
            _load(self._folder, STACK.for_dpnp)


def _load(folder: Path, names: Iterable[str]) -> None:
    libc = ctypes.CDLL(None)
    libc.dlopen.restype = ctypes.c_void_p
    libc.dlopen.argtypes = [ctypes.c_char_p, ctypes.c_int]
    libc.dlerror.restype = ctypes.c_char_p
    for name in names:
        # ctypes.CDLL would add RTLD_NOW, which MKL's circle of libraries does not survive.
        if not libc.dlopen(str(folder / name).encode(), os.RTLD_LAZY | os.RTLD_GLOBAL):
            reason = (libc.dlerror() or b"no reason given").decode(errors="replace")
            raise OneAPIError(f"{name} did not load: {reason}; type: {_reinstall(*STACK.pins)}")


def _reinstall(*packages: str) -> str:
    wanted = " ".join(f'"{package}{STACK.pins[package]}"' for package in packages)
    return f"{sys.executable} -m pip install --force-reinstall {wanted}"


def cpu_target(cpuinfo: str) -> str | None:
    """What the CPU device's compiler has to be told of the processor; None where it finds out by itself.

    Parameters
    ----------
    cpuinfo : str
        As Linux has it in ``/proc/cpuinfo``.

    Returns
    -------
    str or None
        One of `CPU_TARGETS`, for a processor that is not Intel's.
    """
    facts = dict(re.findall(r"^(vendor_id|flags)\s*: (.*)$", cpuinfo, re.MULTILINE))
    if facts.get("vendor_id") == "GenuineIntel":
        return None
    has = set(facts.get("flags", "").split())
    return next((name for name, needs in CPU_TARGETS.items() if needs <= has), None)


def processor() -> list[str]:
    """What machine code for this CPU depends on: its maker, its model, its instructions, and what `CPU_TARGET` says."""
    facts = dict(
        re.findall(r"^(vendor_id|model name|flags)\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    )
    return [*facts.values(), os.environ.get(CPU_TARGET, "")]


def mpiexec() -> Path:
    """Full path of the mpiexec that belongs to this environment (it need not be on PATH).

    Raises
    ------
    OneAPIError
        If there is none.
    """
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
    """Environment variables that one rank needs before `load`.

    Parameters
    ----------
    selector : str
        The one device that the rank sees, e.g. ``"opencl:0"``, ``"level_zero:1"`` or ``"level_zero:0.1"`` (a tile).
        ``"level_zero:gpu:0"`` would be a parse error.
    """
    return {SELECTOR: selector}


def confine(cores: Iterable[int]) -> None:
    """Keep this process on these cores. Call it before `load`: the CPU device has as many units as it then finds cores.

    It is done here, by the rank itself, because it then works alike under every MPI and for ranks that share cores;
    Intel MPI's pinning (on or off) and MPI_Init leave it as it is.

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
        for thread in os.listdir("/proc/self/task"):  # libraries may have started threads; new ones inherit
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(int(thread), wanted)
    except OSError as error:
        raise OneAPIError(
            f"this process cannot be confined to the cores {sorted(wanted)}: {error.strerror}; "
            f"it may use {sorted(os.sched_getaffinity(0))}; restart the cluster, so that it is planned anew"
        ) from None


#: mpiexec's own sockets stay on loopback, and all ranks on this host: within a batch job it would take the job's hosts.
MPIEXEC_ARGUMENTS: tuple[str, ...] = ("-iface", "lo", "-hosts", "localhost")

#: Ranks of one host talk through shared memory, and confine themselves (`confine`). With I_MPI_OFFLOAD=1 in a user's
#: shell MPI_Init would crash where there is no Level Zero GPU; data is staged through the host. With CMA, which has the
#: kernel copy from another process, messages that do not block take up to twice as long as those that do; without it
#: both are as fast as those that block.
MPIEXEC_ENVIRONMENT: Mapping[str, str] = {
    "I_MPI_FABRICS": "shm",
    "I_MPI_PIN": "0",
    "I_MPI_OFFLOAD": "0",
    "I_MPI_SHM_CMA": "0",
    "I_MPI_HYDRA_BOOTSTRAP": "fork",  # within a batch job mpiexec would call srun or pbsdsh, for this host too
}
