"""The probe, on this host, and with replacements for drivers that misbehave.

A replacement is a module named ``dpctl`` on PYTHONPATH. The subprocess imports it instead of the real module.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from leftovers import runs

from xpulab.deploy.plan.probe import Probe, core_ranges, probe
from xpulab.exceptions import DeviceError
from xpulab.libraries import oneapi


@pytest.fixture
def driver(tmp_path: Path, environment: Callable[..., None]) -> Path:
    """The file for a replacement."""
    environment(PYTHONPATH=str(tmp_path))
    return tmp_path / "dpctl.py"


def test_probe_finds_this_hosts_cores_memory_and_cpu_device_and_travels_as_json() -> None:
    found = probe()
    assert found.errors == ()
    assert sorted(found.logical_cores) == sorted(os.sched_getaffinity(0))
    assert 0 < found.memory_available <= found.memory_total
    assert Path(found.libraries) == oneapi.library_folder()
    cpu = next(device for device in found.devices if device.kind == "cpu")
    assert cpu.backend == "opencl"
    assert cpu.usm
    assert cpu.float64
    assert cpu.sub_devices == 0
    assert 0 < cpu.max_allocation <= cpu.memory
    assert cpu.local_memory > 0
    assert cpu.max_work_group_size > 0
    assert cpu.selector == f"opencl:{cpu.index}"
    assert Probe.from_dict(json.loads(json.dumps(found.to_dict()))) == found


def test_the_users_shell_selects_no_device_and_files_in_the_users_folder_are_not_imported(
    environment: Callable[..., None], empty_folder: Path
) -> None:
    environment(ONEAPI_DEVICE_SELECTOR="level_zero:7")
    (empty_folder / "dpctl.py").write_text("raise SystemExit('the wrong dpctl')")
    assert any(device.kind == "cpu" for device in probe().devices)


def test_probe_sees_only_the_cores_that_the_notebook_may_use() -> None:
    core = min(os.sched_getaffinity(0))
    code = (
        f"import os; os.sched_setaffinity(0, {{{core}}})\n"
        "from xpulab.deploy.plan.probe import probe; print(probe().cores)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"(({core},),)"


def test_notebook_side_and_subprocess_import_only_what_they_need() -> None:
    code = (
        "import sys\n"
        "heavy = {'numba', 'numba_dpex', 'dpnp', 'mpi4py', 'ipyparallel', 'sklearn', 'IPython', 'ipywidgets'}\n"
        "import xpulab.deploy.plan.plan, xpulab.doctor\n"
        "assert heavy.isdisjoint(sys.modules) and 'dpctl' not in sys.modules, heavy & set(sys.modules)\n"
        "from xpulab.engine.devices import describe\n"
        "assert describe()['devices'] and 'dpctl' in sys.modules\n"
        "assert heavy.isdisjoint(sys.modules), heavy & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_driver_that_crashes_is_an_error_with_its_message(driver: Path) -> None:
    driver.write_text(
        "import os, signal, sys\n"
        "sys.stderr.write('level_zero: device lost\\n'); sys.stderr.flush()\n"
        "os.kill(os.getpid(), signal.SIGSEGV)\n"
    )
    with pytest.raises(DeviceError, match=r"was ended by SIGSEGV; its last output: level_zero: device lost"):
        probe()


def test_driver_that_ends_the_process_is_an_error_with_its_status(driver: Path) -> None:
    driver.write_text("import os\nos._exit(7)\n")
    with pytest.raises(DeviceError, match=r"ended with status 7 without an answer; its last output: nothing"):
        probe()


@pytest.mark.slow
def test_driver_that_hangs_is_an_error_and_its_process_is_gone(driver: Path, tmp_path: Path) -> None:
    driver.write_text(
        "import os, sys, time\n"
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\n"
        "sys.stderr.write('i915: waiting\\n'); sys.stderr.flush()\n"
        "time.sleep(3600)\n"
    )
    with pytest.raises(DeviceError, match=r"did not answer within 6 s; its last output: i915: waiting"):
        probe(timeout=6)
    assert not runs(int((tmp_path / "pid").read_text()))


def test_driver_that_raises_is_a_field_and_the_rest_of_the_answer_stands(driver: Path) -> None:
    driver.write_text("raise OSError('libOpenCL.so.1 is of another version')")
    found = probe()
    assert found.devices == ()
    assert found.errors == ("OSError: libOpenCL.so.1 is of another version",)
    assert found.logical_cores
    assert found.memory_total


_TWO_GPUS = """
import enum, sys, types
print("a driver that greets on standard output")
Kind = enum.Enum("Kind", "gpu cpu")
Backend = enum.Enum("Backend", "level_zero opencl")
class SyclSubDeviceCreationError(Exception): pass
class Device:
    device_type, backend, is_gpu = Kind.gpu, Backend.level_zero, True
    vendor, driver_version, max_compute_units = "Intel(R) Corporation", "1.3", 448
    global_mem_size, max_mem_alloc_size, local_mem_size, max_work_group_size = 1 << 36, 1 << 32, 1 << 16, 1024
    has_aspect_fp64 = has_aspect_fp16 = has_aspect_usm_device_allocations = True
    def __init__(self, tiles): self.tiles = tiles
    @property
    def name(self):
        if self.tiles is None: raise RuntimeError("ZE_RESULT_ERROR_DEVICE_LOST")
        return f"a GPU of {self.tiles} tiles"
    def create_sub_devices(self, partition):
        if self.tiles == 1: raise SyclSubDeviceCreationError
        return [self] * self.tiles
def get_devices(): return [Device(None), Device(2), Device(1)]
utils = sys.modules["dpctl.utils"] = types.ModuleType("dpctl.utils")
utils.intel_device_info = lambda device: {"device_id": 0xbd5} if device.tiles == 2 else {}
"""


def test_tiles_models_and_a_lost_device_can_be_distinguished(driver: Path) -> None:
    driver.write_text(_TWO_GPUS)
    found = probe()
    assert [(d.selector, d.name, d.sub_devices, d.pci_id) for d in found.devices] == [
        ("level_zero:1", "a GPU of 2 tiles", 2, "0x0bd5"),
        ("level_zero:2", "a GPU of 1 tiles", 0, None),
    ]
    assert found.errors == ("level_zero:0: RuntimeError: ZE_RESULT_ERROR_DEVICE_LOST",)


def test_text_and_html_show_each_device_and_what_could_not_be_found_out() -> None:
    answer = json.loads((Path(__file__).parent / "probes" / "two_tile_gpus_composite.json").read_text())
    name = answer["devices"][4]["name"] = "<b>Max</b> 1550"
    found = Probe.from_dict({**answer, "errors": ["level_zero:9: <i>lost</i>"]})
    lines = str(found).splitlines()
    assert lines[0] == "Devices of node1: 32 cores (0-31), 480 GiB of 512 GiB free"
    assert lines[-2].split() == f"level_zero:1 {name} GPU 1.3.30049 1024 128 GiB yes 2".split()
    assert lines[-1] == "  level_zero:9: <i>lost</i>"
    bundle = found._repr_mimebundle_()
    assert bundle["text/plain"] == str(found)
    assert "&lt;b&gt;Max&lt;/b&gt; 1550" in bundle["text/html"]
    assert "&lt;i&gt;lost" in bundle["text/html"]
    assert "<b>" not in bundle["text/html"]


@pytest.mark.parametrize(
    ("cores", "text"), [([], ""), ([3], "3"), ([0, 1, 2, 3, 8], "0-3,8"), ([5, 4, 1], "1,4-5"), ([0, 2, 4], "0,2,4")]
)
def test_core_ranges_are_short(cores: list[int], text: str) -> None:
    assert core_ranges(cores) == text
