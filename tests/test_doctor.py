"""The doctor, on this machine, and on machines that each have one defect.

The ``sys``, ``dev``, ``etc`` and ``usr`` folders of machines with GPUs are written by hand, not copied from real ones.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

from xpulab import doctor as module
from xpulab.deploy.plan.probe import Probe
from xpulab.doctor import Check, DoctorReport, doctor
from xpulab.exceptions import DeviceError, OneAPIError
from xpulab.libraries import oneapi

MACHINES = Path(__file__).parent / "deploy" / "plan" / "probes"
ARC = "0x56a0"


def machine(name: str) -> Probe:
    return Probe.from_dict(json.loads((MACHINES / f"{name}.json").read_text()))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The folders of a machine with shared memory and without a GPU."""
    (tmp_path / "dev/shm").mkdir(parents=True)
    (tmp_path / "sys/bus/pci/devices").mkdir(parents=True)
    return tmp_path


@pytest.fixture(autouse=True)
def probed(monkeypatch: pytest.MonkeyPatch, environment: Callable[..., None]) -> Callable[[Probe], None]:
    """A function that sets what the probe finds. Tests of the real probe run it in a separate process."""
    answer = machine("cpu_only")

    def finds(other: Probe) -> None:
        nonlocal answer
        answer = other

    monkeypatch.setattr(module, "probe", lambda timeout: answer)
    environment(**dict.fromkeys(oneapi.INTERFERING))
    return finds


def found(report: DoctorReport, name: str) -> Check:
    matching = [check for check in report.checks if check.name == name]
    assert len(matching) == 1, report
    return matching[0]


def add_gpu(root: Path, address: str, vendor: str, model: str, node: str = "", kind: str = "0x030000") -> None:
    folder = root / "sys/bus/pci/devices" / address
    folder.mkdir()
    for name, value in (("class", kind), ("vendor", vendor), ("device", model)):
        (folder / name).write_text(f"{value}\n")
    if node:
        (folder / "drm" / node).mkdir(parents=True)


def add_node(root: Path, node: str = "renderD128") -> None:
    (root / "dev/dri").mkdir(exist_ok=True)
    (root / "dev/dri" / node).touch()


def add_packages(root: Path, *packages: str) -> None:
    places = {
        "intel-opencl-icd": "etc/OpenCL/vendors/intel.icd",
        "libze-intel-gpu1": "usr/lib/x86_64-linux-gnu/libze_intel_gpu.so.1",
        "libze1": "usr/lib/x86_64-linux-gnu/libze_loader.so.1",
    }
    for package in packages:
        file = root / places[package]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()


def real(code: str = "print(doctor())", **environment: str) -> str:
    """Return the output of the real doctor in a separate process."""
    command = [sys.executable, "-c", f"from xpulab.doctor import doctor\n{code}"]
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


# This machine.


@pytest.mark.slow
def test_this_machine_is_ready_and_the_last_line_says_so() -> None:
    text, _, document = (
        real("import json; r = doctor(); print(r); print(json.dumps(r.to_dict()))").strip().rpartition("\n")
    )
    assert text.splitlines()[-1].startswith("ready: ")
    checks = {check["name"]: check for check in json.loads(document)["checks"]}
    assert all(checks[name]["status"] == "ok" for name in ("python", "packages", "oneAPI", "MPI", "loopback"))
    assert {"shared memory", "cores"} <= checks.keys()
    assert any(name.startswith("device opencl:") for name in checks)
    assert checks["packages"]["found"].startswith(f"{oneapi.STACK.name}: ")
    assert f"intel-opencl-rt {version('intel-opencl-rt')}" in checks["packages"]["found"]
    assert checks["kernels of your own"]["status"] == "ok"
    assert str(oneapi.mpiexec()) in checks["MPI"]["found"]
    assert "; library: Intel(R) MPI Library 20" in checks["MPI"]["found"]


# Drivers.


def test_missing_opencl_drivers_are_traced_to_the_variable_that_hides_them() -> None:
    text = real(OCL_ICD_FILENAMES="/nowhere/libdriver.so")
    assert "warn  variables" in text
    assert "OCL_ICD_FILENAMES=/nowhere/libdriver.so is set" in text
    assert "no SYCL device was found, not even the CPU" in text
    assert "-> unset OCL_ICD_FILENAMES" in text
    assert text.splitlines()[-1] == "not ready: devices"


def test_driver_that_crashes_is_a_finding_with_its_words(tmp_path: Path) -> None:
    (tmp_path / "dpctl.py").write_text(
        "import os, sys\nsys.stderr.write('i915: lost\\n'); sys.stderr.flush()\nos.abort()\n"
    )
    text = real(PYTHONPATH=str(tmp_path))
    assert "was ended by SIGABRT; its last output: i915: lost" in text
    assert "-> The usual cause is a driver that was partly updated or removed" in text
    assert text.splitlines()[-1] == "not ready: drivers"


@pytest.mark.slow
def test_driver_that_hangs_is_a_finding(tmp_path: Path) -> None:
    (tmp_path / "dpctl.py").write_text("import time\ntime.sleep(3600)\n")
    text = real("print(doctor(timeout=2))", PYTHONPATH=str(tmp_path))
    assert "did not answer within 2 s" in text
    assert text.splitlines()[-1] == "not ready: drivers"


def test_runtime_that_does_not_load_is_a_finding_with_what_to_type(root: Path, probed: Callable[[Probe], None]) -> None:
    error = "OneAPIError: libsycl.so.7 did not load: too short; type: pip install dpcpp-cpp-rt"
    probed(replace(machine("no_device"), libraries="", errors=(error,)))
    report = doctor(root)
    assert found(report, "oneAPI") == Check(
        "oneAPI", "fail", "OneAPIError: libsycl.so.7 did not load: too short", "pip install dpcpp-cpp-rt"
    )
    assert not report.ready


def test_no_device_at_all_says_which_package_holds_the_cpu_device(root: Path, probed: Callable[[Probe], None]) -> None:
    probed(machine("no_device"))
    check = found(doctor(root), "devices")
    assert check.status == "fail"
    assert f' "intel-opencl-rt{oneapi.STACK.pins["intel-opencl-rt"]}"' in check.cure


def test_one_lost_device_among_several_is_a_warning(root: Path, probed: Callable[[Probe], None]) -> None:
    lost = "level_zero:0: RuntimeError: ZE_RESULT_ERROR_DEVICE_LOST"
    probed(replace(machine("cpu_only"), errors=(lost,)))
    report = doctor(root)
    assert [check.status for check in report.checks if check.found == lost] == ["warn"]
    assert report.ready


def test_devices_are_told_with_driver_memory_float64_and_sub_devices(
    root: Path, probed: Callable[[Probe], None]
) -> None:
    probed(machine("two_tile_gpus_composite"))
    assert found(doctor(root), "device level_zero:1").found == (
        "GPU Intel(R) Data Center GPU Max 1550, driver 1.3.30049, 1024 units, 128 GiB, float64, 2 sub-devices"
    )
    probed(machine("laptop"))
    assert "no float64" in found(doctor(root), "device level_zero:0").found


# GPUs on the PCI bus.


def test_gpu_that_its_driver_offers_is_ok(root: Path, probed: Callable[[Probe], None]) -> None:
    add_gpu(root, "0000:03:00.0", "0x8086", ARC, "renderD128")
    probed(machine("arc_beside_igpu"))
    assert found(doctor(root), "GPU 0000:03:00.0").status == "ok"


def test_gpu_without_a_driver_is_found_beside_one_of_another_model(root: Path, probed: Callable[[Probe], None]) -> None:
    add_gpu(root, "0000:00:02.0", "0x8086", "0x4680", "renderD128")
    add_gpu(root, "0000:04:00.0", "0x8086", "0xe20b")
    probed(machine("arc_beside_igpu"))
    report = doctor(root)
    assert found(report, "GPU 0000:00:02.0").status == "ok"
    assert found(report, "GPU 0000:04:00.0").status == "warn"


def test_gpu_without_a_kernel_driver(root: Path) -> None:
    add_gpu(root, "0000:03:00.0", "0x8086", ARC)
    report = doctor(root)
    check = found(report, "GPU 0000:03:00.0")
    assert check.status == "warn"
    assert f"Intel {ARC}, not usable: the kernel's driver (i915 or xe) is not bound" in check.found
    assert "modprobe" in check.cure
    assert report.ready
    assert "GPU 0000:03:00.0" in report.verdict


def test_gpu_whose_device_file_a_container_lacks(root: Path) -> None:
    add_gpu(root, "0000:03:00.0", "0x8086", ARC, "renderD128")
    check = found(doctor(root), "GPU 0000:03:00.0")
    assert "renderD128 does not exist" in check.found
    assert "--device /dev/dri" in check.cure


def test_gpu_that_the_user_may_not_open(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import grp

    add_gpu(root, "0000:03:00.0", "0x8086", ARC, "renderD129")
    add_node(root, "renderD129")
    allowed = os.access
    monkeypatch.setattr(module.os, "access", lambda path, mode: "renderD" not in str(path) and allowed(path, mode))
    monkeypatch.setattr(grp, "getgrgid", lambda gid: grp.struct_group(("render", "x", gid, [])))
    check = found(doctor(root), "GPU 0000:03:00.0")
    assert f"you may not open {root}/dev/dri/renderD129" in check.found
    assert check.cure == "sudo usermod -aG render $USER, and log in again"


@pytest.mark.parametrize(
    ("installed", "missing"),
    [
        ((), "intel-opencl-icd libze-intel-gpu1 libze1"),
        (("libze1",), "intel-opencl-icd libze-intel-gpu1"),
        (("intel-opencl-icd", "libze-intel-gpu1"), "libze1"),
    ],
)
def test_gpu_whose_driver_packages_are_missing(root: Path, installed: tuple[str, ...], missing: str) -> None:
    add_gpu(root, "0000:03:00.0", "0x8086", ARC, "renderD128")
    add_node(root)
    add_packages(root, *installed)
    check = found(doctor(root), "GPU 0000:03:00.0")
    assert f"missing {missing.replace(' ', ', ')}" in check.found
    assert f"sudo apt install {missing}" in check.cure


def test_gpu_that_has_everything_and_still_is_not_offered(root: Path) -> None:
    add_gpu(root, "0000:03:00.0", "0x8086", ARC, "renderD128")
    add_node(root)
    add_packages(root, "intel-opencl-icd", "libze-intel-gpu1", "libze1")
    assert "its driver is installed, but offers no device" in found(doctor(root), "GPU 0000:03:00.0").found


@pytest.mark.parametrize(("vendor", "name"), [("0x10de", "NVIDIA"), ("0x1002", "AMD")])
def test_gpu_of_another_vendor_is_reported_as_unsupported(root: Path, vendor: str, name: str) -> None:
    add_gpu(root, "0000:18:00.0", vendor, "0x2335", kind="0x030200")
    report = doctor(root)
    check = found(report, "GPU 0000:18:00.0")
    assert check.status == "warn"
    assert f"{name} 0x2335: the oneAPI runtime from pip does not support it" in check.found
    assert report.ready


def test_display_adapters_that_are_no_gpus_are_left_out(root: Path) -> None:
    add_gpu(root, "0000:00:01.0", "0x1234", "0x1111")  # a virtual machine's screen
    add_gpu(root, "0000:00:02.0", "0x8086", "0x10d3", kind="0x020000")  # a network card
    report = doctor(root)
    assert [check for check in report.checks if check.name.startswith("GPU ")] == []
    assert found(report, "GPUs").found == "none on the PCI bus"


# The rest of the machine.


@pytest.mark.parametrize("implementation", ["PyPy", "CPython"])
def test_python_that_has_no_wheels_is_not_ready(
    implementation: str, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module.platform, "python_implementation", lambda: implementation)
    if implementation == "CPython":
        monkeypatch.setattr(module, "_PYTHONS", ((3, 8),))
    report = doctor(root)
    assert found(report, "python").status == "fail"
    assert "xpulab runs on CPython 3.10 to 3.14: python3.13 -m venv" in found(report, "python").cure
    assert report.verdict == "not ready: python"


def test_system_that_has_no_wheels_is_not_ready(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.platform, "machine", lambda: "aarch64")
    assert "xpulab needs Linux on x86_64: " in found(doctor(root), "python").cure


def test_package_of_another_version_or_missing_is_named_with_the_command(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def installed(name: str) -> str:
        if name == "ipyparallel":
            raise PackageNotFoundError(name)
        return "99.1" if name == "dpnp" else version(name)

    monkeypatch.setattr("importlib.metadata.version", installed)
    check = found(doctor(root), "packages")
    assert check.status == "fail"
    pin = oneapi.STACK.pins["dpnp"]
    assert check.found == f"dpnp is 99.1, not {pin}; ipyparallel is missing"
    assert check.cure == f'{sys.executable} -m pip install "dpnp{pin}" ipyparallel'


@pytest.mark.parametrize(
    ("stack", "have", "wrong"),
    [
        (oneapi.WITH_COMPILER, {"numba": "0.60.0"}, "numba is 0.60.0, not ==0.59.1"),
        (oneapi.WITH_COMPILER, {}, ""),
        (oneapi.CURRENT, {"dpctl": "0.23.0"}, "dpctl is 0.23.0, not >=0.22,<0.23"),
        (oneapi.CURRENT, {"dpctl": "0.22.7", "numpy": "2.9.0rc1"}, ""),
    ],
)
def test_versions_are_compared_with_those_of_both_stacks(
    stack: oneapi.Stack, have: dict[str, str], wrong: str, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_least = {name: pin.lstrip("=>").partition(",")[0] for name, pin in stack.pins.items()}
    monkeypatch.setattr(oneapi, "STACK", stack)
    monkeypatch.setattr("importlib.metadata.version", lambda name: {**at_least, **have}.get(name, "1.0"))
    check = found(doctor(root), "packages")
    if wrong:
        assert (check.status, check.found) == ("fail", wrong)
    else:
        assert check.status == "ok"
        assert check.found.startswith(f"{stack.name}: {next(iter(stack.pins))} ")


@pytest.mark.parametrize(
    ("stack", "words"),
    [
        (oneapi.WITH_COMPILER, ("numba-dpex, or in OpenCL C",)),
        (oneapi.CURRENT, ("OpenCL C for OpenCL devices", "create_program_from_source", "only Python 3.10 and 3.11")),
    ],
)
def test_the_languages_for_users_kernels_are_named_for_both_stacks(
    stack: oneapi.Stack, words: tuple[str, ...], root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oneapi, "STACK", stack)
    check = found(doctor(root), "kernels of your own")
    assert (check.status, check.cure) == ("ok", "")
    assert all(word in check.found for word in words)


@pytest.mark.parametrize("name", sorted(oneapi.INTERFERING))
def test_variable_that_interferes_is_a_warning(name: str, root: Path, environment: Callable[..., None]) -> None:
    environment(**{name: "1"})
    check = found(doctor(root), "variables")
    assert (check.status, check.cure) == ("warn", f"unset {name}")
    assert check.found.startswith(f"{name}=1 is set: ")


def test_mpi_that_is_missing_is_not_ready(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> Path:
        raise OneAPIError("mpiexec was not found in /nowhere; type: pip install impi-rt")

    monkeypatch.setattr(oneapi, "mpiexec", missing)
    check = Check("MPI", "fail", "mpiexec was not found in /nowhere", "pip install impi-rt")
    assert found(doctor(root), "MPI") == check


def test_mpi_that_cannot_start_a_process_is_not_ready_and_says_why(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "mpiexec"
    broken.write_text(
        "#!/bin/sh\nif [ $1 = --version ]; then echo 'An MPI 1.0'; else echo 'no such host' >&2; exit 3; fi\n"
    )
    broken.chmod(0o755)
    monkeypatch.setattr(oneapi, "mpiexec", lambda: broken)
    check = found(doctor(root), "MPI")
    assert check.status == "fail"
    assert check.found == f"{broken} (An MPI 1.0) cannot start a process that loads MPI: no such host"


def test_a_library_of_mpi_that_cannot_be_loaded_is_not_ready(
    root: Path, tmp_path: Path, environment: Callable[..., None]
) -> None:
    (tmp_path / "libmpi.so.12").write_text("no library")
    environment(MPI4PY_LIBMPI=str(tmp_path / "libmpi.so.12"))
    check = found(doctor(root), "MPI")
    assert check.status == "fail"
    assert "cannot start a process that loads MPI: " in check.found
    assert "libmpi.so.12: " in check.found


def test_small_shared_memory_is_a_warning(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SHARED_MEMORY", 2**60)
    check = found(doctor(root), "shared memory")
    assert check.status == "warn"
    assert "free of" in check.found
    assert "--shm-size" in check.cure


def test_no_folder_for_the_files_of_a_cluster_is_not_ready(root: Path, environment: Callable[..., None]) -> None:
    assert found(doctor(root), "files").status == "ok"
    environment(XPULAB_RUNTIME_DIR="/proc")
    check = found(doctor(root), "files")
    assert check.status == "fail"
    assert check.found.startswith("no folder has room for the connection files and logs of a cluster (/proc: ")
    assert check.cure.startswith("free some space, or set the variable TMPDIR")


def test_missing_shared_memory_is_not_ready(root: Path) -> None:
    (root / "dev/shm").rmdir()
    assert found(doctor(root), "shared memory").status == "fail"


@pytest.mark.parametrize(
    ("quota", "status"),
    [("max 100000", "ok"), ("50000 100000", "warn"), ("100000000 100000", "ok"), ("nonsense", "ok")],
)
def test_cores_are_held_against_the_containers_quota(quota: str, status: str, root: Path) -> None:
    (root / "sys/fs/cgroup").mkdir(parents=True)
    (root / "sys/fs/cgroup/cpu.max").write_text(f"{quota}\n")
    check = found(doctor(root), "cores")
    assert check.status == status
    assert check.found.startswith(f"{len(os.sched_getaffinity(0))} (")
    assert ("the container gets only the time of 0.5 of them" in check.found) == (status == "warn")


def test_closed_loopback_is_not_ready(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError("Network is down")

    monkeypatch.setattr(module.socket, "create_server", refuse)
    report = doctor(root)
    assert "Network is down" in found(report, "loopback").found
    assert report.verdict == "not ready: loopback"


def test_check_that_fails_itself_is_a_finding_beside_the_others(root: Path) -> None:
    (root / "sys/bus/pci/devices/0000:99:00.0").mkdir()  # a folder without any file
    report = doctor(root)
    assert found(report, "GPUs").status == "fail"
    assert "the check itself failed: FileNotFoundError" in found(report, "GPUs").found
    assert found(report, "loopback").status == "ok"


def test_a_machine_on_which_every_check_fails_gets_a_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(module, "probe", broken)
    for owner, name in ((oneapi, "mpiexec"), (oneapi, "unlike_pins"), (module.os, "sched_getaffinity")):
        monkeypatch.setattr(owner, name, broken)
    report = doctor(tmp_path / "nowhere")
    assert not report.ready
    assert str(report).splitlines()[-1].startswith("not ready: packages, drivers, MPI, shared memory, cores")


# What a reader sees.

REPORT = DoctorReport(
    (
        Check("python", "ok", "CPython 3.11"),
        Check("GPU 0000:03:00.0", "warn", "Intel <b>GPU</b>\nmissing libze1", "sudo apt install libze1"),
    )
)


def test_text_puts_the_cure_below_its_check_and_ends_with_the_verdict() -> None:
    assert str(REPORT).splitlines() == [
        "ok    python            CPython 3.11",
        "warn  GPU 0000:03:00.0  Intel <b>GPU</b> missing libze1",
        "                        -> sudo apt install libze1",
        "ready: engines can be started (see GPU 0000:03:00.0)",
    ]


def test_html_is_escaped_and_ends_with_the_verdict() -> None:
    html = REPORT._repr_mimebundle_()["text/html"]
    assert "<b>GPU" not in html
    assert "Intel &lt;b&gt;GPU&lt;/b&gt;" in html
    assert "sudo apt install libze1" in html
    assert REPORT.verdict in html


def test_report_is_plain_values_for_json() -> None:
    document = json.loads(json.dumps(REPORT.to_dict()))
    assert document["ready"] is True
    assert document["checks"][1]["cure"] == "sudo apt install libze1"


def test_probe_error_is_taken_as_it_is(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(timeout: float) -> Probe:
        raise DeviceError("the process was ended by SIGSEGV; its last output:\nfirst\nsecond\nreinstall it")

    monkeypatch.setattr(module, "probe", crash)
    check = found(doctor(root), "drivers")
    assert (check.found.splitlines()[-1], check.cure) == ("second", "reinstall it")
