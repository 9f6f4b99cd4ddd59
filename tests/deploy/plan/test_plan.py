"""The plan, from answers of the probe.

The machines in ``probes/*.json`` were written by hand after the documentation of their drivers, not read from machines.
Only the tests marked ``cluster`` ran on a device: the CPU of this host.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import xpulab
from xpulab import cli
from xpulab.deploy.mpi import intel
from xpulab.deploy.mpi.command import HERE, RanksOfHost
from xpulab.deploy.plan.plan import Plan, plan
from xpulab.deploy.plan.probe import DeviceInfo, Probe, probe
from xpulab.exceptions import DeviceNotFoundError, PlanError
from xpulab.libraries import oneapi

MACHINES = Path(__file__).parent / "probes"
GIB = 2**30

unhurried = settings(deadline=None)  # one example may take long on a busy machine


def machine(name: str) -> Probe:
    return Probe.from_dict(json.loads((MACHINES / f"{name}.json").read_text()))


def selectors(answer: Plan) -> list[str]:
    return [placement.selector for placement in answer.ranks]


# What there is decides.


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("laptop", ["level_zero:0"]),
        ("two_tile_gpus_flat", ["level_zero:0", "level_zero:1", "level_zero:2", "level_zero:3"]),
        ("two_tile_gpus_composite", ["level_zero:0.0", "level_zero:0.1", "level_zero:1.0", "level_zero:1.1"]),
        ("arc_beside_igpu", ["level_zero:1", "level_zero:0"]),
        ("four_equal_gpus", ["level_zero:0", "level_zero:1", "level_zero:2", "level_zero:3"]),
        ("cpu_only", ["opencl:0"]),
    ],
)
def test_default_is_one_engine_per_gpu_or_tile_else_one_on_the_cpu(name: str, expected: list[str]) -> None:
    answer = plan(machine(name))
    assert selectors(answer) == expected
    assert [placement.rank for placement in answer.ranks] == list(range(len(expected)))
    assert answer.warnings == ()
    assert not any(placement.shared for placement in answer.ranks)


@pytest.mark.slow
def test_more_than_8_engines_for_a_core_have_to_be_meant() -> None:
    probe = machine("cpu_only")
    cores = len(probe.logical_cores)
    assert len(plan(probe, n=8 * cores).ranks) == 8 * cores
    message = f"{8 * cores + 1} engines would share {cores} cores, more than 8 each; type -n {cores}, or, if you"
    with pytest.raises(PlanError, match=message):
        plan(probe, n=8 * cores + 1)
    assert len(plan(probe, n=8 * cores + 1, strict=False).ranks) == 8 * cores + 1
    assert cli.main(["plan", "-n", "100000"]) == 2
    assert xpulab.XPUCluster(8 * len(os.sched_getaffinity(0)) + 1, strict=False).plan().warnings


def test_gpu_seen_twice_counts_once_and_the_other_view_is_named_as_idle() -> None:
    answer = plan(machine("laptop"))
    assert {idle.device.selector: idle.reason for idle in answer.idle} == {
        "opencl:0": "another driver already offers the same GPU",
        "opencl:1": "engines run on the GPU",
    }


def test_gpu_that_only_opencl_shows_is_used_through_opencl() -> None:
    laptop = machine("laptop")
    without = replace(laptop, devices=tuple(d for d in laptop.devices if d.backend == "opencl"))
    assert selectors(plan(without)) == ["opencl:0"]


def test_gpus_of_other_models_are_no_second_views() -> None:
    desktop = machine("arc_beside_igpu")
    level_zero_without_igpu = tuple(d for d in desktop.devices if d.selector != "level_zero:0")
    assert selectors(plan(replace(desktop, devices=level_zero_without_igpu))) == ["level_zero:1", "opencl:1"]


def test_cpu_seen_through_two_drivers_counts_once() -> None:
    workstation = machine("cpu_only")
    again = replace(workstation.devices[0], index=1, driver="2025.20.0")
    answer = plan(replace(workstation, devices=(*workstation.devices, again)), n=2)
    assert selectors(answer) == ["opencl:0", "opencl:0"]
    assert [idle.device.selector for idle in answer.idle] == ["opencl:1"]


def test_fewer_engines_than_gpus_take_the_strongest_and_say_what_is_idle() -> None:
    answer = plan(machine("arc_beside_igpu"), n=1)
    assert answer.ranks[0].device.name == "Intel(R) Arc(TM) A770 Graphics"
    assert next(idle.reason for idle in answer.idle if idle.device.selector == "level_zero:0") == "only 1 engine"


def test_memory_is_divided_among_the_tiles_and_engines_of_a_gpu() -> None:
    assert [p.memory for p in plan(machine("two_tile_gpus_flat")).ranks] == [64 * GIB] * 4
    assert [p.memory for p in plan(machine("two_tile_gpus_composite")).ranks] == [64 * GIB] * 4
    assert [p.memory for p in plan(machine("laptop"), n=2).ranks] == [7 * GIB] * 2


def test_memory_of_the_cpu_is_the_free_memory_of_the_host_divided() -> None:
    assert [p.memory for p in plan(machine("cpu_only"), n=3).ranks] == [8 * GIB] * 3


def test_cpu_is_split_by_physical_cores_before_it_is_split_by_threads() -> None:
    workstation = machine("cpu_only")  # four cores of two threads: 0 and 4, 1 and 5, …
    assert [p.cores for p in plan(workstation).ranks] == [(0, 4, 1, 5, 2, 6, 3, 7)]
    assert [p.cores for p in plan(workstation, n=2).ranks] == [(0, 4, 1, 5), (2, 6, 3, 7)]
    assert [p.cores for p in plan(workstation, n=3).ranks] == [(0, 4), (1, 5), (2, 6, 3, 7)]
    assert [len(p.cores) for p in plan(workstation, n=5).ranks] == [1, 2, 1, 2, 2]


def test_engines_beyond_the_cores_share_them_in_turns_with_a_warning() -> None:
    small = replace(machine("cpu_only"), cores=((0,), (1,)))
    answer = plan(small, n=3)
    assert [(p.cores, p.shared) for p in answer.ranks] == [((0,), True), ((1,), False), ((0,), True)]
    assert answer.warnings == ("3 engines share the cores 0-1",)


def test_engines_beyond_the_gpus_share_them_in_turns_with_a_warning() -> None:
    answer = plan(machine("arc_beside_igpu"), n=3)
    assert selectors(answer) == ["level_zero:1", "level_zero:0", "level_zero:1"]
    assert [p.shared for p in answer.ranks] == [True, False, True]
    assert answer.warnings == ("2 engines share level_zero:1 (Intel(R) Arc(TM) A770 Graphics, GPU)",)


def test_device_of_a_backend_that_engines_do_not_use_is_idle() -> None:
    workstation = machine("cpu_only")
    cuda = replace(workstation.devices[0], backend="cuda", kind="gpu", name="NVIDIA H200")
    answer = plan(replace(workstation, devices=(cuda, *workstation.devices)))
    assert selectors(answer) == ["opencl:0"]
    assert [(i.device.name, i.reason) for i in answer.idle] == [
        ("NVIDIA H200", "its backend is cuda, and engines use Level Zero and OpenCL only")
    ]


@pytest.mark.parametrize(
    ("change", "reason"),
    [({"kind": "accelerator"}, "engines run on GPUs and CPUs"), ({"usm": False}, "it has no unified shared memory")],
)
def test_device_that_cannot_compute_here_is_an_error_when_it_is_the_only_one(
    change: dict[str, Any], reason: str
) -> None:
    workstation = machine("cpu_only")
    with pytest.raises(DeviceNotFoundError, match=reason):
        plan(replace(workstation, devices=(replace(workstation.devices[0], **change),)))


# The user decides.


@pytest.mark.parametrize(
    ("name", "devices", "expected"),
    [
        ("laptop", "cpu", ["opencl:1"]),
        ("laptop", "gpu", ["level_zero:0"]),
        ("laptop", " GPU ", ["level_zero:0"]),
        ("laptop", "gpu,cpu", ["level_zero:0", "opencl:1"]),
        ("laptop", "opencl:gpu", ["opencl:0"]),
        ("laptop", "opencl:cpu", ["opencl:1"]),
        ("laptop", "opencl:*", ["opencl:0", "opencl:1"]),
        ("laptop", "*:*", ["level_zero:0", "opencl:1"]),
        ("four_equal_gpus", "level_zero:0,2", ["level_zero:0", "level_zero:2"]),
        ("two_tile_gpus_composite", "level_zero:1", ["level_zero:1.0", "level_zero:1.1"]),
        ("two_tile_gpus_composite", "level_zero:1.*", ["level_zero:1.0", "level_zero:1.1"]),
        ("two_tile_gpus_composite", "level_zero:0.1", ["level_zero:0.1"]),
    ],
)
def test_devices_chooses(name: str, devices: str, expected: list[str]) -> None:
    assert selectors(plan(machine(name), devices=devices)) == expected


def test_devices_that_were_not_chosen_are_idle_with_the_reason() -> None:
    answer = plan(machine("laptop"), devices="cpu")
    assert [(i.device.selector, i.reason) for i in answer.idle] == [
        ("opencl:0", "the user chose cpu"),
        ("level_zero:0", "the user chose cpu"),
    ]


@pytest.mark.parametrize(
    ("devices", "hint"),
    [
        ("level_zero:gpu:0", "did you mean 'level_zero:0'?"),
        ("level_zero:3", "did you mean 'level_zero:0'?"),
        ("levelzero:0", "did you mean 'level_zero:0'?"),
        ("gpus", "did you mean 'gpu'?"),
        ("level_zero:0,7", "no device matches 'level_zero:0,7'"),
        ("cuda:0", "no device matches 'cuda:0'"),
        ("0", "no device matches '0'"),
        ("", "no device matches ''"),
        ("level_zero:0.1", "no device matches 'level_zero:0.1'"),
    ],
)
def test_unknown_device_is_an_error_that_lists_what_there_is(devices: str, hint: str) -> None:
    with pytest.raises(DeviceNotFoundError) as caught:
        plan(machine("laptop"), devices=devices)
    message = str(caught.value)
    assert hint in message
    assert "level_zero:0 (Intel(R) Iris(R) Xe Graphics, GPU)" in message
    assert "opencl:1 (11th Gen Intel(R) Core(TM) i7-1165G7 @ 2.80GHz, CPU)" in message
    assert "xpulab doctor" in message


def test_gpu_where_there_is_none_is_an_error_and_no_guess() -> None:
    with pytest.raises(DeviceNotFoundError, match=r"no device matches 'gpu'\. Devices found: opencl:0"):
        plan(machine("cpu_only"), devices="gpu")


def test_no_device_at_all_is_an_error_with_the_drivers_message() -> None:
    nothing = replace(machine("no_device"), errors=("OneAPIError: libsycl.so.7 did not load",))
    with pytest.raises(DeviceNotFoundError, match=r"no SYCL device was found on container.*libsycl.so.7 did not load"):
        plan(nothing)


@pytest.mark.parametrize("n", [0, -1, "two", "2", 2.5, True, [2]])
def test_invalid_number_of_engines_is_an_error_that_shows_it(n: object) -> None:
    with pytest.raises(PlanError) as caught:
        plan(machine("cpu_only"), n)  # type: ignore[arg-type]
    assert str(caught.value) == f"the number of engines must be an integer of at least 1; received {n!r}"


@pytest.mark.parametrize(
    ("name", "n", "devices", "advice"),
    [
        ("cpu_only", 9, None, "9 engines share the cores 0-7; type -n 8"),
        ("four_equal_gpus", 5, None, "2 engines share level_zero:0 .*; type -n 4"),
        ("laptop", 2, "gpu", "2 engines share level_zero:0 .*; type -n 1"),
    ],
)
def test_strict_makes_sharing_an_error_that_says_how_many_fit(
    name: str, n: int, devices: str | None, advice: str
) -> None:
    with pytest.raises(PlanError, match=advice):
        plan(machine(name), n, devices, strict=True)


def test_strict_allows_what_is_not_shared() -> None:
    assert plan(machine("cpu_only"), 8, strict=True) == plan(machine("cpu_only"), 8)


# What holds for every machine.


@st.composite
def machines(draw: st.DrawFn) -> Probe:
    template = machine("laptop").devices[0]
    counts = {"level_zero": 0, "opencl": 0, "cuda": 0}
    devices = []
    for _ in range(draw(st.integers(0, 7))):
        backend = draw(st.sampled_from(sorted(counts)))
        kind = "gpu" if backend != "opencl" else draw(st.sampled_from(["gpu", "cpu", "accelerator"]))
        device = replace(
            template,
            backend=backend,
            index=counts[backend],
            kind=kind,
            name=f"{kind} {draw(st.integers(0, 1))}",
            compute_units=draw(st.integers(1, 3)),
            sub_devices=draw(st.sampled_from([0, 2, 3])) if kind == "gpu" else 0,
            pci_id=draw(st.sampled_from([None, "0x0001", "0x0002"])),
            usm=draw(st.booleans()),
        )
        counts[backend] += 1
        devices.append(device)
    threads = draw(st.integers(1, 2))
    physical = draw(st.integers(1, 9))
    cores = tuple(tuple(core + physical * t for t in range(threads)) for core in range(physical))
    return replace(machine("laptop"), devices=tuple(devices), cores=cores)


def planned(offer: Probe, n: int | None) -> Plan | None:
    try:
        return plan(offer, n, strict=False)
    except DeviceNotFoundError:
        return None


@unhurried
@given(machines(), st.none() | st.integers(1, 20))
def test_every_rank_is_placed_and_every_device_is_used_or_idle(offer: Probe, n: int | None) -> None:
    answer = planned(offer, n)
    usable = [d for d in offer.devices if d.usm and d.backend != "cuda" and d.kind != "accelerator"]
    assert (answer is None) == (not usable)
    if answer is None:
        return
    assert [p.rank for p in answer.ranks] == list(range(n or len(answer.ranks)))
    used = {(p.device, p.tile) for p in answer.ranks}
    idle = [(i.device, i.tile) for i in answer.idle]
    every = [(d, tile) for d in offer.devices for tile in (range(d.sub_devices) if d.sub_devices else [None])]
    assert len(idle) == len(set(idle))
    assert used.isdisjoint(idle)
    assert used | set(idle) == set(every)
    assert used <= {(d, tile) for d, tile in every if d in usable}


@unhurried
@given(machines(), st.none() | st.integers(1, 20))
def test_cores_are_those_of_the_probe_and_disjoint_unless_there_is_a_warning(offer: Probe, n: int | None) -> None:
    answer = planned(offer, n)
    if answer is None:
        return
    given_out = [core for p in answer.ranks for core in p.cores]
    assert set(given_out) <= set(offer.logical_cores)
    assert all(p.cores for p in answer.ranks)
    if len(given_out) > len(set(given_out)):
        assert any("cores" in warning for warning in answer.warnings)
        assert any(p.shared for p in answer.ranks)
    else:
        assert set(given_out) == set(offer.logical_cores)
    sizes = [len(p.cores) for p in answer.ranks]
    assert max(sizes) - min(sizes) <= len(offer.cores[0])


@unhurried
@given(machines(), st.none() | st.integers(1, 20))
def test_memory_shares_never_exceed_the_device(offer: Probe, n: int | None) -> None:
    answer = planned(offer, n)
    if answer is None:
        return
    for device in {p.device for p in answer.ranks}:
        limit = offer.memory_available if device.kind == "cpu" else device.memory
        assert 0 < sum(p.memory for p in answer.ranks if p.device == device) <= limit


@unhurried
@given(machines(), st.none() | st.integers(1, 20))
def test_strict_refuses_exactly_what_would_warn(offer: Probe, n: int | None) -> None:
    answer = planned(offer, n)
    if answer is None:
        return
    assert bool(answer.warnings) == any(p.shared for p in answer.ranks)
    if answer.warnings:
        with pytest.raises(PlanError):
            plan(offer, n, strict=True)
    else:
        assert plan(offer, n, strict=True) == answer


@unhurried
@given(machines(), st.none() | st.integers(1, 20))
def test_plan_does_not_change_when_the_probe_travels_as_json(offer: Probe, n: int | None) -> None:
    travelled = Probe.from_dict(json.loads(json.dumps(offer.to_dict())))
    assert travelled == offer
    assert planned(travelled, n) == planned(offer, n)


def test_plan_is_the_same_under_every_hash_seed() -> None:
    code = (
        "import json, sys; from xpulab.deploy.plan.plan import plan; from xpulab.deploy.plan.probe import Probe;"
        "print(plan(Probe.from_dict(json.load(open(sys.argv[1]))), 6))"
    )
    answers = {
        subprocess.run(
            [sys.executable, "-c", code, str(MACHINES / "four_equal_gpus.json")],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(answers) == 1


# What a reader sees.


def test_text_is_a_table_with_warnings_and_idle_devices() -> None:
    assert str(plan(machine("laptop"), n=2)).splitlines() == [
        "Plan: 2 engines",
        "  rank  host    device                        --devices       cores   memory  float64  shared",
        "     0  laptop  Intel(R) Iris(R) Xe Graphics  level_zero:0  0-1,4-5  7.0 GiB  no       yes",
        "     1  laptop  Intel(R) Iris(R) Xe Graphics  level_zero:0  2-3,6-7  7.0 GiB  no       yes",
        "  warning: 2 engines share level_zero:0 (Intel(R) Iris(R) Xe Graphics, GPU)",
        "  not used: opencl:0 (Intel(R) Iris(R) Xe Graphics): another driver already offers the same GPU",
        "  not used: opencl:1 (11th Gen Intel(R) Core(TM) i7-1165G7 @ 2.80GHz): engines run on the GPU",
    ]


def test_text_names_the_idle_tiles_of_one_kind_on_one_line() -> None:
    lines = str(plan(machine("two_tile_gpus_composite"), n=2)).splitlines()
    assert "  not used: level_zero:1.0, level_zero:1.1 (Intel(R) Data Center GPU Max 1550): only 2 engines" in lines


class _Cells(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.cells: list[str] = []

    def handle_data(self, data: str) -> None:
        self.cells.append(data)


def test_html_shows_the_same_and_escapes_what_drivers_say() -> None:
    laptop = machine("laptop")
    rude = replace(laptop.devices[2], name="<script>alert('x')</script>")
    answer = plan(replace(laptop, devices=(rude,)))
    bundle = answer._repr_mimebundle_()
    assert bundle["text/plain"] == str(answer)
    html = bundle["text/html"]
    assert html == answer._repr_html_()
    assert "<script" not in html
    reader = _Cells()
    reader.feed(html)
    assert {"0", "laptop", "<script>alert('x')</script>", "level_zero:0", "0-7", "14.0 GiB"} <= set(reader.cells)


def test_plan_is_plain_values_for_json() -> None:
    document = json.loads(json.dumps(plan(machine("laptop")).to_dict()))
    assert Plan.from_dict(document) == plan(machine("laptop"))
    assert document["ranks"][0]["selector"] == "level_zero:0"
    assert document["ranks"][0]["device"]["name"] == "Intel(R) Iris(R) Xe Graphics"
    assert document["idle"][0]["reason"]


def test_environment_shows_a_rank_its_own_device_alone() -> None:
    answer = plan(machine("two_tile_gpus_composite"))
    assert answer.environment(1) == {"ONEAPI_DEVICE_SELECTOR": "level_zero:0.1"}


# On this host.

_RANK = """
import json, os, sys, time
placement = json.loads(sys.argv[1])
import xpulab
from xpulab import cli
from xpulab.libraries import oneapi
os.environ.update(placement["environment"])
oneapi.confine(placement["cores"])
oneapi.load()
import dpctl
import dpctl.tensor as dpt
from mpi4py import MPI
x = dpt.ones(2_000_000, dtype="f4")
began = time.process_time()
while time.process_time() - began < 0.3:
    dpt.sum(dpt.sqrt(x)).sycl_queue.wait()
threads = []
for task in os.listdir("/proc/self/task"):
    fields = open(f"/proc/self/task/{task}/stat").read().rpartition(")")[2].split()
    threads.append([sorted(os.sched_getaffinity(int(task))), int(fields[36]), int(fields[11])])
devices = [(d.backend.name, d.name, d.max_compute_units) for d in dpctl.get_devices()]
answers = MPI.COMM_WORLD.gather({"rank": MPI.COMM_WORLD.rank, "threads": threads, "devices": devices})
if answers:
    print(json.dumps(answers))
"""


@pytest.fixture(scope="module")
def here() -> Probe:
    return probe()


@pytest.mark.cluster
def test_ranks_on_the_cpu_see_their_device_and_work_on_their_cores_only(here: Probe) -> None:
    n = 2
    answer = plan(here, n, devices="cpu")
    start = intel.command([RanksOfHost(HERE, n)])
    command = list(start.words)
    for p in answer.ranks:
        rank = {"environment": answer.environment(p.rank), "cores": p.cores}
        command += [":"] * bool(p.rank) + ["-n", "1", sys.executable, "-c", _RANK, json.dumps(rank)]
    environment = {**os.environ, **start.environment}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    ranks = json.loads(done.stdout)
    assert [rank["rank"] for rank in ranks] == list(range(n))
    for rank, placement in zip(ranks, answer.ranks, strict=True):
        assert rank["devices"] == [["opencl", placement.device.name, len(placement.cores)]]
        assert sum(ticks for _, _, ticks in rank["threads"]) > 0
        for allowed, last_core, _ in rank["threads"]:
            assert set(allowed) <= set(placement.cores)
            assert last_core in placement.cores


@pytest.mark.cluster
def test_every_selector_of_the_plan_shows_one_device_and_the_right_one(here: Probe) -> None:
    code = (
        "from xpulab.libraries import oneapi; oneapi.load(); import dpctl\n"
        "print(*(d.name for d in dpctl.get_devices()), sep='|')"
    )
    for device in {p.device for p in plan(here).ranks}:
        environment = {**os.environ, **oneapi.engine_environment(device.selector)}
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == device.name


def test_this_hosts_cpu_is_a_device_like_the_others(here: Probe) -> None:
    cpu: DeviceInfo = plan(here, devices="cpu").ranks[0].device
    assert cpu.kind == "cpu"
    assert cpu.compute_units == len(os.sched_getaffinity(0))


def test_variables_of_all_ranks_and_of_one() -> None:
    answer = plan(machine("cpu_only"), 3, env={"1:A": "own", "A": "all", "B": "x y", "2:C": ""})
    assert [placement.variables for placement in answer.ranks] == [
        {"A": "all", "B": "x y"},
        {"A": "own", "B": "x y"},
        {"A": "all", "B": "x y", "C": ""},
    ]
    assert answer.environment_of_all == {"B": "x y"}
    assert answer.environment(1) == {"A": "own", "B": "x y", oneapi.SELECTOR: "opencl:0"}
    for line in ("variable of rank 0,2: A=all", "variable of rank 1: A=own", "variable of rank 0-2: B=x y"):
        assert line in str(answer)
        assert line in answer._repr_html_()
    assert Plan.from_dict(json.loads(json.dumps(answer.to_dict()))) == answer


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({"A-B": "x"}, r"received the variable 'A-B' with 'x', expected NAME=VALUE or RANK:NAME=VALUE"),
        ({"A": 1}, r"received the variable 'A' with 1, expected NAME=VALUE"),
        ({"2:A": "x"}, "received the variable 2:A, expected a rank from 0 to 1"),
        ({"0:ONEAPI_DEVICE_SELECTOR": "x"}, "which xpulab sets itself; type: --devices"),
        ({"XPULAB_ENGINE": "x"}, "which xpulab sets itself$"),
    ],
)
def test_variables_that_cannot_be_set_are_refused(env: Any, words: str) -> None:
    with pytest.raises(PlanError, match=words):
        plan(machine("cpu_only"), 2, env=env)
