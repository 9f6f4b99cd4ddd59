"""Check a machine, from its drivers to its loopback interface, and say what was found, what is missing, what to type.

Each check is a function that yields findings. An unexpected exception in a check is reported as a finding, so the
function `doctor` never raises an exception. It loads no driver into this process.
"""

from __future__ import annotations

import os
import platform
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

from xpulab.deploy.mpi import choice, intel
from xpulab.deploy.mpi.command import HERE, RanksOfHost
from xpulab.deploy.plan.probe import DeviceInfo, Probe, core_ranges, probe
from xpulab.deploy.processes.record import new_folder
from xpulab.exceptions import ClusterStartError
from xpulab.libraries import oneapi
from xpulab.report.rendering import Displayed, block, escape, format_size, plain, table_html

__all__ = ["Check", "DoctorReport", "doctor"]

Status = Literal["ok", "warn", "fail"]

_PYTHONS = tuple((3, minor) for minor in range(10, 15))
#: Loads the library of MPI, as an engine does, and prints the first line of its version.
_LOAD = """\
import ctypes, sys
text, length = ctypes.create_string_buffer(8192), ctypes.c_int()
ctypes.CDLL(sys.argv[1] or "libmpi.so.12").MPI_Get_library_version(text, ctypes.byref(length))
print(text.value.decode(errors="replace").splitlines()[0])
"""
_PACKAGES = ("impi-rt", "mpi4py", "ipyparallel", "ipywidgets", "scikit-learn", "matplotlib", "psutil")
_SHARED_MEMORY = 2**30  # bytes of free shared memory below which the doctor warns
_GPU_VENDORS = {"0x8086": "Intel", "0x10de": "NVIDIA", "0x1002": "AMD"}


@dataclass(frozen=True)
class Check:
    """One finding.

    Attributes
    ----------
    name : str
        What was checked.
    status : {"ok", "warn", "fail"}
        With "warn" xpulab works, but cannot use everything on this machine; with "fail" it does not work.
    found : str
        The result of the check.
    cure : str
        What to type or do; empty if there is nothing to do.
    """

    name: str
    status: Status
    found: str
    cure: str = ""


@dataclass(frozen=True)
class DoctorReport(Displayed):
    """The result of `doctor`. A notebook shows it as a table."""

    checks: tuple[Check, ...]

    @property
    def ready(self) -> bool:
        """Whether engines can be started here."""
        return all(check.status != "fail" for check in self.checks)

    @property
    def verdict(self) -> str:
        """One line, which begins with "ready" or "not ready"."""
        failed = [check.name for check in self.checks if check.status == "fail"]
        warned = [check.name for check in self.checks if check.status == "warn"]
        notes = f" (see {', '.join(warned)})" if warned else ""
        return f"not ready: {', '.join(failed)}" if failed else f"ready: engines can be started{notes}"

    def to_dict(self) -> dict[str, object]:
        """Return the report as JSON-serialisable values."""
        return {**asdict(self), "ready": self.ready, "verdict": self.verdict}

    def __str__(self) -> str:
        width = max(len(check.name) for check in self.checks)
        lines = []
        for check in self.checks:
            lines.append(f"{check.status:<4}  {check.name:<{width}}  {plain(check.found)}")
            lines += [f"{'':<{6 + width}}  -> {plain(check.cure)}"] if check.cure else []
        return "\n".join([*lines, self.verdict])

    def _repr_html_(self) -> str:
        rows = [(check.name, check.status, check.found, check.cure) for check in self.checks]
        table = table_html(("check", "status", "found", "what to do"), rows, "llll")
        return block("doctor", [table, f'<div class="xpu-note">{escape(self.verdict)}</div>'])


def doctor(root: Path = Path("/"), timeout: float = 20) -> DoctorReport:
    """Check this machine. The check takes about a second, and never raises an exception.

    Parameters
    ----------
    root : pathlib.Path
        Folder that holds ``sys``, ``dev``, ``etc`` and ``usr``.
    timeout : float
        Seconds after which a driver counts as hanging.

    Returns
    -------
    DoctorReport
    """
    asked: Probe | Exception
    try:
        asked = probe(timeout)
    except Exception as error:
        asked = error
    checks: dict[str, Callable[[], Iterable[Check]]] = {
        "python": _python,
        "packages": _packages,
        "kernels of your own": _own_kernels,
        "variables": _variables,
        "devices": lambda: _devices(asked),
        "GPUs": lambda: _gpus(root, asked.devices if isinstance(asked, Probe) else ()),
        "MPI": _mpi,
        "shared memory": lambda: _shared_memory(root),
        "files": _files,
        "cores": lambda: _cores(root),
        "loopback": _loopback,
    }
    return DoctorReport(tuple(found for name, check in checks.items() for found in _guarded(name, check)))


def _guarded(name: str, check: Callable[[], Iterable[Check]]) -> Iterator[Check]:
    try:
        yield from check()
    except Exception as error:
        yield Check(name, "fail", f"the check itself failed: {type(error).__name__}: {error}")


def _from_error(name: str, status: Status, error: str) -> Check:
    """Split an error of `oneapi` or `probe` into finding and cure: such an error ends with what to type or do."""
    for mark in ("; type: ", "\n"):
        found, _, cure = error.rpartition(mark)
        if found:
            return Check(name, status, found, cure)
    return Check(name, status, error)


def _python() -> Iterator[Check]:
    found = (
        f"{platform.python_implementation()} {platform.python_version()} on {platform.system()} {platform.machine()}"
    )
    if sys.version_info[:2] not in _PYTHONS or platform.python_implementation() != "CPython":
        cure = "xpulab runs on CPython 3.10 to 3.14: python3.13 -m venv env && env/bin/pip install xpulab"
        yield Check("python", "fail", found, cure)
    elif (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        yield Check(
            "python",
            "fail",
            found,
            "xpulab needs Linux on x86_64: the packages for devices have no wheels for other systems",
        )
    else:
        yield Check("python", "ok", found)


def _packages() -> Iterator[Check]:
    names = (*oneapi.STACK.pins, *_PACKAGES)
    if wrong := oneapi.unlike_pins(names):
        yield Check("packages", "fail", "; ".join(wrong.values()), oneapi.to_install(wrong))
    else:
        found = ", ".join(f"{name} {metadata.version(name)}" for name in names)
        yield Check("packages", "ok", f"{oneapi.STACK.name}: {found}")


def _own_kernels() -> Iterator[Check]:
    """Say which kernels a user can write. xpulab's own kernels are compiled before it is installed."""
    if "numba-dpex" in oneapi.STACK.pins:
        found = "in %%xpu cells you can write kernels in Python with numba-dpex, or in OpenCL C for OpenCL devices"
    else:
        found = (
            "in %%xpu cells you can write kernels in OpenCL C for OpenCL devices, with "
            "dpctl.program.create_program_from_source; numba-dpex supports only Python 3.10 and 3.11"
        )
    yield Check("kernels of your own", "ok", found)


def _variables() -> Iterator[Check]:
    for name, effect in oneapi.INTERFERING.items():
        if os.environ.get(name):
            yield Check("variables", "warn", f"{name}={os.environ[name]} is set: {effect}", f"unset {name}")


def _devices(asked: Probe | Exception) -> Iterator[Check]:
    if not isinstance(asked, Probe):
        yield _from_error("drivers", "fail", str(asked))
        return
    if asked.libraries:
        yield Check("oneAPI", "ok", f"loaded from {asked.libraries}")
    for error in asked.errors:
        yield _from_error("oneAPI", "warn" if asked.devices else "fail", error)
    for device in asked.devices:
        yield Check(f"device {device.selector}", "ok", _device_line(device))
    if asked.libraries and not asked.devices:
        broken = os.environ.get(oneapi.OPENCL_VENDORS)
        cure = f"unset {oneapi.OPENCL_VENDORS}" if broken else _reinstall("intel-opencl-rt")
        yield Check("devices", "fail", "no SYCL device was found, not even the CPU", cure)


def _device_line(device: DeviceInfo) -> str:
    tiles = f", {device.sub_devices} sub-devices" if device.sub_devices else ""
    float64 = "float64" if device.float64 else "no float64"
    return (
        f"{device.kind.upper()} {device.name}, driver {device.driver}, {device.compute_units} units, "
        f"{format_size(device.memory)}, {float64}{tiles}"
    )


def _reinstall(package: str) -> str:
    return f'{sys.executable} -m pip install --force-reinstall "{package}{oneapi.STACK.pins[package]}"'


def _gpus(root: Path, devices: Iterable[DeviceInfo]) -> Iterator[Check]:
    offered = {device.pci_id for device in devices if device.kind == "gpu" and "intel" in device.vendor.lower()}
    gpus = [gpu for gpu in sorted((root / "sys/bus/pci/devices").glob("*")) if _read(gpu / "class").startswith("0x03")]
    known = [(gpu, _GPU_VENDORS[_read(gpu / "vendor")]) for gpu in gpus if _read(gpu / "vendor") in _GPU_VENDORS]
    for gpu, vendor in known:
        model = _read(gpu / "device")
        if vendor != "Intel":
            found = f"{vendor} {model}: the oneAPI runtime from pip does not support it; no engine will use it"
            yield Check(f"GPU {gpu.name}", "warn", found)
        elif model in offered or None in offered:
            yield Check(f"GPU {gpu.name}", "ok", f"Intel {model}, a driver offers it")
        else:
            missing, cure = _why_not_offered(root, gpu)
            yield Check(f"GPU {gpu.name}", "warn", f"Intel {model}, not usable: {missing}", cure)
    if not known:
        yield Check("GPUs", "ok", "none on the PCI bus")


def _read(file: Path) -> str:
    return file.read_text().strip()


def _why_not_offered(root: Path, gpu: Path) -> tuple[str, str]:
    """Return the first reason why an Intel GPU is no SYCL device, and what to do about it."""
    nodes = [root / "dev/dri" / path.name for path in (gpu / "drm").glob("renderD*")]
    if not nodes:
        return "the kernel's driver (i915 or xe) is not bound to it", "sudo modprobe xe || sudo modprobe i915"
    present = [node for node in nodes if node.exists()]
    if not present:
        return f"{nodes[0]} does not exist", "in a container: docker run --device /dev/dri …"
    if not any(os.access(node, os.R_OK | os.W_OK) for node in present):
        group = _group(present[0])
        return f"you may not open {present[0]}", f"sudo usermod -aG {group} $USER, and log in again"
    missing = [
        package
        for package, file in oneapi.GPU_DRIVER_FILES.items()
        if not any(match for place in oneapi.GPU_DRIVER_FOLDERS for match in root.glob(f"{place}/{file}"))
    ]
    if not missing:
        return "its driver is installed, but offers no device", "sudo dmesg | grep -iE 'i915|xe'"
    note = " (in older repositories: intel-level-zero-gpu)" if "libze-intel-gpu1" in missing else ""
    return f"missing {', '.join(missing)}", f"sudo apt install {' '.join(missing)}{note}"


def _group(node: Path) -> str:
    import grp

    try:
        return grp.getgrgid(node.stat().st_gid).gr_name
    except KeyError:
        return "render"


def _mpi() -> Iterator[Check]:
    try:
        found = choice.find("intel")
    except ImportError as error:
        yield _from_error("MPI", "fail", str(error))
        return
    mpiexec, command = found.mpiexec, intel.command([RanksOfHost(HERE, 1)])
    environment = {**os.environ, **command.environment}

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            words, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30
        )

    about = run(mpiexec, "--version").stdout.strip().partition("\n")[0]
    started = run(*command.words, "-n", "1", sys.executable, "-I", "-S", "-c", _LOAD, found.library)
    words = (started.stderr or started.stdout).strip()[-500:]
    if started.returncode:
        yield Check("MPI", "fail", f"{mpiexec} ({about}) cannot start a process that loads MPI: {words}")
    else:
        yield Check("MPI", "ok", f"{mpiexec} ({about}); library: {words}")


def _shared_memory(root: Path) -> Iterator[Check]:
    folder = root / "dev/shm"
    if not os.access(folder, os.W_OK):
        yield Check(
            "shared memory",
            "fail",
            f"{folder} does not exist, or you may not write to it",
            "sudo mount -t tmpfs tmpfs /dev/shm",
        )
        return
    usage = shutil.disk_usage(folder)
    found = f"{format_size(usage.free)} free of {format_size(usage.total)} in {folder}"
    if usage.free < _SHARED_MEMORY:
        cure = "sudo mount -o remount,size=8G /dev/shm; in a container: docker run --shm-size=8g …"
        yield Check("shared memory", "warn", found, cure)
    else:
        yield Check("shared memory", "ok", found)


def _files() -> Iterator[Check]:
    """Check whether a cluster can write its connection files and logs."""
    try:
        folder = Path(new_folder())
    except ClusterStartError as error:
        yield _from_error("files", "fail", str(error))
        return
    folder.rmdir()
    usage = shutil.disk_usage(folder.parent)
    yield Check("files", "ok", f"connection files and logs go to {folder.parent}, {format_size(usage.free)} free")


def _cores(root: Path) -> Iterator[Check]:
    cores = os.sched_getaffinity(0)
    found = f"{len(cores)} ({core_ranges(cores)})"
    try:  # "200000 100000" is two cores' worth of time; "max 100000" is no limit
        quota, period = map(int, (root / "sys/fs/cgroup/cpu.max").read_text().split())
    except (OSError, ValueError):
        quota, period = len(cores), 1
    if quota < len(cores) * period:
        most = max(1, quota // period)
        found += f", but the container gets only the time of {quota / period:g} of them"
        yield Check(
            "cores",
            "warn",
            found,
            f"limit Jupyter to as many cores: taskset -c {core_ranges(sorted(cores)[:most])} jupyter lab",
        )
    else:
        yield Check("cores", "ok", found)


def _loopback() -> Iterator[Check]:
    try:
        with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname(), 5):
            server.accept()[0].close()
    except OSError as error:
        cure = "allow connections to 127.0.0.1: sudo ip link set lo up"
        yield Check("loopback", "fail", f"cannot connect to 127.0.0.1: {error}", cure)
    else:
        yield Check("loopback", "ok", "a connection to a port on 127.0.0.1 works")
