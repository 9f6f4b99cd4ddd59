"""Loading pip's oneAPI runtime, finding its MPI, and confining a process."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from xpulab.exceptions import OneAPIError
from xpulab.libraries import oneapi

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"
CPUINFO = Path("/proc/cpuinfo").read_text()
TARGET = None if oneapi.STACK.knows_processors else oneapi.cpu_target(CPUINFO)


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run Python code in a new process, with these variables in addition to the present ones."""
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=240)


@pytest.mark.parametrize(
    ("python", "stack"),
    [
        ("3.10", oneapi.WITH_COMPILER),
        ("3.11", oneapi.WITH_COMPILER),
        ("3.12", oneapi.CURRENT),
        ("3.13", oneapi.CURRENT),
        ("3.14", oneapi.CURRENT),
    ],
)
def test_pins_are_those_of_the_package(python: str, stack: oneapi.Stack) -> None:
    dependencies = PYPROJECT.read_text().partition("\ndependencies = [")[2].partition("\n]")[0]
    required = [Requirement(text) for text in re.findall(r'^ +"(.*?)",', dependencies, re.MULTILINE)]
    marked = {r.name: r.specifier for r in required if r.marker and r.marker.evaluate({"python_version": python})}
    assert marked == {name: SpecifierSet(pin) for name, pin in stack.pins.items()}


def test_the_stack_is_that_of_this_python() -> None:
    assert oneapi.STACK is (oneapi.WITH_COMPILER if sys.version_info < (3, 12) else oneapi.CURRENT)
    for name, pin in oneapi.STACK.pins.items():
        assert version(name) in SpecifierSet(pin)


def test_load_makes_dpctl_importable_again_and_again_and_leaves_scipy_alone() -> None:
    code = (
        "from xpulab.libraries import oneapi; assert oneapi.load() == oneapi.load() == oneapi.library_folder();"
        "import dpctl, numpy, scipy.linalg;"
        "numpy.testing.assert_allclose(scipy.linalg.inv(2 * numpy.eye(3)), numpy.eye(3) / 2);"
        "print(dpctl.SyclDevice('cpu').backend.name)"
    )
    done = run(code)
    assert done.stdout.strip() == "opencl", done.stderr


@pytest.mark.parametrize("value", ["", None])
def test_load_finds_the_cpu_device_when_the_list_of_drivers_is_empty(
    value: str | None, environment: Callable[..., None]
) -> None:
    environment(**{oneapi.OPENCL_VENDORS: None})
    variables = {} if value is None else {oneapi.OPENCL_VENDORS: value}
    done = run(
        "from xpulab.libraries import oneapi; oneapi.load(); import dpctl; print(len(dpctl.get_devices('opencl')))",
        **variables,
    )
    assert int(done.stdout) >= 1, done.stderr


def test_load_keeps_the_list_of_drivers_that_a_user_gave() -> None:
    code = "import os; from xpulab.libraries import oneapi; oneapi.load(); print(os.environ[oneapi.OPENCL_VENDORS])"
    assert run(code, **{oneapi.OPENCL_VENDORS: "/opt/mine.so"}).stdout.strip() == "/opt/mine.so"


ZEN3 = "fpu sse4_2 avx avx2 bmi1 bmi2 fma f16c"
ZEN5 = f"{ZEN3} avx512f avx512dq avx512cd avx512bw avx512vl avx512_vnni"


@pytest.mark.parametrize(
    ("vendor", "flags", "target"),
    [
        ("AuthenticAMD", ZEN5, "skx"),
        ("AuthenticAMD", ZEN3, "core-avx2"),
        ("AuthenticAMD", "fpu sse4_2 avx", None),
        ("GenuineIntel", ZEN5, None),
    ],
)
def test_compiler_gets_a_target_for_unknown_processors(vendor: str, flags: str, target: str | None) -> None:
    one = f"processor\t: 0\nvendor_id\t: {vendor}\ncpu family\t: 26\nflags\t\t: {flags}\nbugs\t\t: spectre_v1\n\n"
    assert oneapi.cpu_target(2 * one) == target


def test_compiler_gets_no_target_for_processors_that_are_not_x86() -> None:
    assert oneapi.cpu_target("processor\t: 0\nFeatures\t: fp asimd\n") is None


@pytest.mark.parametrize(("given", "expected"), [("core-avx2", "core-avx2"), ("", TARGET or "")])
def test_load_keeps_the_processor_that_a_user_gave(given: str, expected: str) -> None:
    code = "import os; from xpulab.libraries import oneapi; oneapi.load(); print(os.environ.get(oneapi.CPU_TARGET, ''))"
    assert run(code, **{oneapi.CPU_TARGET: given}).stdout.strip() == expected


MULTIPLY_ADD = """
from xpulab.libraries import oneapi
oneapi.load()
import dpctl, dpctl.memory
from dpctl.program import create_program_from_source

queue = dpctl.SyclQueue()
source = "kernel void f(global float* a) { size_t i = get_global_id(0); a[i] = fma(a[i], a[i], 1.0f); }"
program = create_program_from_source(queue, source)
memory = dpctl.memory.MemoryUSMDevice(256 * 4, queue=queue)
queue.submit(program.get_sycl_kernel("f"), [memory], [256]).wait()
"""


@pytest.mark.skipif("avx2" not in CPUINFO, reason="a processor without vectors of 256 bits")
def test_kernels_use_the_instructions_that_the_processor_has(tmp_path: Path, environment: Callable[..., None]) -> None:
    environment(**{oneapi.CPU_TARGET: None})
    has = CPUINFO.partition("flags")[2].partition("\n")[0].split()
    dump = {"CL_CONFIG_DUMP_ASM": "1", "CL_CONFIG_DUMP_FILE_NAME_PREFIX": str(tmp_path / "kernel")}
    done = run(MULTIPLY_ADD, **{oneapi.SELECTOR: "opencl:cpu"}, **dump)
    assert done.returncode == 0, done.stderr
    (assembly,) = tmp_path.glob("kernel*.s")
    register = "zmm" if "avx512f" in has else "ymm"
    assert re.search(rf"\bvfmadd\w+ps\b.*%{register}", assembly.read_text())


def test_an_error_about_a_broken_library_has_the_loaders_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, environment: Callable[..., None]
) -> None:
    environment(**{oneapi.OPENCL_VENDORS: "untouched"})
    monkeypatch.setattr(oneapi, "library_folder", lambda: tmp_path)
    library = oneapi.STACK.libraries[0]
    (tmp_path / library).write_bytes(b"not a library")
    with pytest.raises(OneAPIError, match=rf"{re.escape(library)} did not load: .*; type: .*pip install") as caught:
        oneapi.load()
    for name, pin in oneapi.STACK.pins.items():
        assert f' "{name}{pin}"' in str(caught.value)  # in quotes, because "<" would redirect in a shell


@pytest.mark.parametrize(("find", "missing"), [("library_folder", oneapi.STACK.sycl), ("mpiexec", "mpiexec")])
def test_environment_without_oneapi_is_an_error_that_says_what_to_type(
    find: str, missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oneapi.sysconfig, "get_path", lambda *_: str(tmp_path))
    monkeypatch.setattr(oneapi.sys, "prefix", str(tmp_path))
    monkeypatch.setattr(oneapi.sys, "base_prefix", str(tmp_path))
    with pytest.raises(OneAPIError, match=rf"{missing}.* was not found in {tmp_path}.*; type: .* -m pip install"):
        getattr(oneapi, find)()


def test_confine_moves_running_and_new_threads() -> None:
    core = max(os.sched_getaffinity(0))
    code = f"""
import os, threading
from xpulab.libraries import oneapi
running, done = threading.Event(), threading.Event()
seen = {{}}
def note(name):
    running.set()
    done.wait()
    seen[name] = sorted(os.sched_getaffinity(0))
early = threading.Thread(target=note, args=("early",)); early.start(); running.wait()
oneapi.confine([{core}])
late = threading.Thread(target=note, args=("late",)); late.start()
done.set(); early.join(); late.join()
print(seen["early"], seen["late"], sorted(os.sched_getaffinity(0)))
oneapi.load()
import dpctl
print(dpctl.SyclDevice("cpu").max_compute_units)
"""
    done = run(code)
    assert done.stdout.splitlines() == [f"[{core}] [{core}] [{core}]", "1"], done.stderr


def test_confine_to_missing_cores_is_an_error_that_lists_the_cores() -> None:
    with pytest.raises(OneAPIError) as caught:
        oneapi.confine([100_000])
    message = str(caught.value)
    assert message.startswith("this process cannot be confined to the cores [100000]: ")
    assert f"it may use {sorted(os.sched_getaffinity(0))}" in message


def test_engine_environment_selects_one_device() -> None:
    assert oneapi.engine_environment("level_zero:0.1") == {"ONEAPI_DEVICE_SELECTOR": "level_zero:0.1"}
