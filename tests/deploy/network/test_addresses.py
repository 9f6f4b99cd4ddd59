"""The hosts that a user names, and how engines are spread over them."""

from __future__ import annotations

import json
import platform
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import xpulab
from xpulab.deploy.mpi.command import RanksOfHost
from xpulab.deploy.network.addresses import Address, addresses, is_here
from xpulab.deploy.plan.plan import Offer, Plan, plan
from xpulab.deploy.plan.probe import DeviceInfo, Probe
from xpulab.exceptions import DeviceNotFoundError, PlanError, UsageError

CPU = DeviceInfo("opencl", 0, "cpu", "CPU", "Intel", "1", 4, 2**34, 2**32, 2**15, 4096, True, True, True, 0, None)
GPU = replace(CPU, backend="level_zero", kind="gpu", name="GPU")


def probed(host: str, *devices: DeviceInfo) -> Probe:
    return Probe(host, tuple((core,) for core in range(4)), 2**34, 2**33, "", devices, ())


@pytest.mark.parametrize(
    ("hosts", "expected"),
    [
        (None, []),
        ("node1", [Address("node1")]),
        ("node1,node2:3", [Address("node1"), Address("node2", 3)]),
        (["me@node-1.lab", " 10.0.0.1 "], [Address("me@node-1.lab"), Address("10.0.0.1")]),
        ("[fd00::1]:2,[fd00::2]", [Address("fd00::1", 2), Address("fd00::2")]),
        ("node1,node2,node1", [Address("node1", 2), Address("node2")]),
    ],
)
def test_a_list_of_hosts(hosts: Any, expected: list[Address]) -> None:
    assert addresses(hosts, None) == expected


@pytest.mark.parametrize(
    "lines",
    [
        "node1 slots=2\nnode2 slots = 4 max_slots=8\n",  # Open MPI
        "node1:2\nnode2:4\n",  # Intel MPI, MPICH
        "# a machine file\nnode1\nnode2:4  # the large one\n\nnode1\n",  # plain lines; each counts
    ],
)
def test_a_file_of_hosts(tmp_path: Path, lines: str) -> None:
    path = tmp_path / "hosts"
    path.write_text(lines)
    assert addresses(None, path) == [Address("node1", 2), Address("node2", 4)]


@pytest.mark.parametrize("hosts", ["", "a,,b", "node1:", "node1:0", "node1:x", "-oProxyCommand=x", "a b", 3, ["a", 3]])
def test_what_is_no_host_is_refused(hosts: Any) -> None:
    with pytest.raises(UsageError, match="expected"):
        addresses(hosts, None)
    with pytest.raises(UsageError, match="expected"):
        xpulab.XPUCluster(hosts=hosts).start()


def test_a_file_without_hosts_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    with pytest.raises(UsageError, match="cannot be read"):
        addresses(None, path)
    path.write_text("# nothing\n")
    with pytest.raises(UsageError, match="names no host"):
        addresses(None, path)
    path.write_text("node1\nnode2 slots=two\n")
    with pytest.raises(UsageError, match="line 2: received 'node2 slots=two'"):
        addresses(None, path)
    with pytest.raises(UsageError, match="both hosts and a hostfile"):
        addresses("node1", path)


def test_which_names_are_this_host() -> None:
    assert all(map(is_here, ("localhost", "127.0.0.1", platform.node(), "me@localhost")))
    assert not is_here("192.0.2.77")
    assert not is_here("no-such-host.invalid")


def sizes(answer: Plan) -> dict[str, int]:
    hosts = [rank.host for rank in answer.ranks]
    assert [rank.rank for rank in answer.ranks] == list(range(len(hosts)))
    assert hosts == sorted(hosts)  # the ranks of a host follow each other
    return {host: hosts.count(host) for host in hosts}


@pytest.mark.parametrize(
    ("n", "expected"),
    [(None, {"a": 1, "b": 1}), (1, {"a": 1}), (2, {"a": 1, "b": 1}), (3, {"a": 2, "b": 1}), (4, {"a": 2, "b": 2})],
)
def test_engines_are_spread_evenly_over_equal_hosts(n: int | None, expected: dict[str, int]) -> None:
    assert sizes(plan([Offer(probed("a", CPU)), Offer(probed("b", CPU), "node2")], n)) == expected


def test_engines_are_spread_by_devices_and_by_the_users_numbers() -> None:
    gpus = [replace(GPU, index=index) for index in range(3)]
    offers = [Offer(probed("a", GPU, CPU)), Offer(probed("b", *gpus), "node2")]
    assert sizes(plan(offers)) == {"a": 1, "b": 3}
    assert sizes(plan(offers, 8)) == {"a": 2, "b": 6}
    offers = [replace(offers[0], slots=3), replace(offers[1], slots=1)]
    assert sizes(plan(offers)) == {"a": 3, "b": 1}
    assert sizes(plan(offers, 8)) == {"a": 6, "b": 2}


def test_the_plan_shows_the_hosts_and_has_each_hosts_own_cores_and_memory() -> None:
    small = replace(probed("b", CPU), memory_available=2**30, cores=((6,), (7,)))
    answer = plan([Offer(probed("a", CPU)), Offer(small, "node2")], 4, env={"3:A": "x"})
    assert [(rank.host, rank.address, rank.cores, rank.memory) for rank in answer.ranks] == [
        ("a", "", (0, 1), 2**32),
        ("a", "", (2, 3), 2**32),
        ("b", "node2", (6,), 2**29),
        ("b", "node2", (7,), 2**29),
    ]
    assert [rank.variables for rank in answer.ranks] == [{}, {}, {}, {"A": "x"}]
    assert Plan.from_dict(answer.to_dict()) == answer
    assert not answer.warnings


def test_warnings_and_idle_devices_name_their_host() -> None:
    gpus = [replace(GPU, index=index) for index in range(2)]
    answer = plan([Offer(probed("a", CPU), slots=1), Offer(probed("b", *gpus), "node2", 1)], 2)
    assert "not used: level_zero:1 of b (GPU): only 1 engine" in str(answer)
    answer = plan([Offer(probed("a", CPU), slots=5), Offer(probed("b", CPU), "node2", 1)])
    assert answer.warnings == ("5 engines share the cores 0-3 of a",)
    with pytest.raises(PlanError, match="of a; type -n 8"):
        plan([Offer(probed("a", CPU), slots=5), Offer(probed("b", CPU), "node2", 1)], strict=True)


def test_a_notebooks_host_without_a_device_gets_no_engine() -> None:
    answer = plan([Offer(probed("a")), Offer(probed("b", CPU), "node2")], 2)
    assert [rank.address for rank in answer.ranks] == ["node2", "node2"]
    answer = plan([Offer(probed("a", CPU)), Offer(probed("b", GPU), "node2")], devices="gpu")
    assert [rank.address for rank in answer.ranks] == ["node2"]


@pytest.mark.parametrize(
    "offers",
    [
        [Offer(probed("a")), Offer(probed("b"), "node2")],
        [Offer(probed("a"), slots=1), Offer(probed("b", CPU), "node2")],  # the user wants an engine there
        [Offer(probed("a", CPU)), Offer(probed("b"), "node2")],
    ],
)
def test_a_host_that_should_have_an_engine_and_has_no_device_is_refused(offers: list[Offer]) -> None:
    with pytest.raises(DeviceNotFoundError, match=r"no SYCL device was found on [ab]"):
        plan(offers)


def test_the_helper_rank_is_the_last_one_and_on_the_notebooks_host() -> None:
    answer = plan([Offer(probed("b", CPU), "node2"), Offer(probed("c", CPU), "node3")])
    assert answer.n_processes == 2
    answer = replace(answer, address="10.0.0.1", interface="eth0", helper="lab")
    assert answer.ranks_of_hosts == [RanksOfHost("node2", 1), RanksOfHost("node3", 1), RanksOfHost("10.0.0.1", 1)]
    assert answer.n_processes == 3
    for shown in (str(answer), answer._repr_html_()):
        assert "carries rows, computes nothing" in shown
    assert Plan.from_dict(json.loads(json.dumps(answer.to_dict()))) == answer
