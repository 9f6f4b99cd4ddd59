"""The ports of a cluster: what a user types, which are free, and the variables with which MPIs keep to them."""

from __future__ import annotations

import contextlib
import random
import socket
import subprocess
import sys
from typing import Any

import pytest
import zmq

import xpulab
from xpulab import cli
from xpulab.deploy.mpi import choice
from xpulab.deploy.mpi.command import HERE, Found, RanksOfHost
from xpulab.deploy.network.ports import EACH_HOST, Ports, listening, ports, reserved
from xpulab.exceptions import UsageError


@pytest.mark.parametrize("text", ["50000-50100", "50000:50100", " 50000 - 50100 "])
def test_a_range_is_read_in_the_forms_of_each_mpi(text: str) -> None:
    assert ports(text) == Ports(50000, 50100)
    assert str(ports(text)) == "50000-50100"
    assert len(Ports(50000, 50100)) == 101
    assert ports(None) is None


@pytest.mark.parametrize("text", ["", "50000", "50100-50000", "80-100", "60000-70000", "a-b", 50000, (1, 2)])
def test_what_is_no_range_is_refused_before_anything_starts(text: Any) -> None:
    with pytest.raises(UsageError, match=r"--ports: received .*, expected the first and the last port .* 50000-50100"):
        xpulab.XPUCluster(1, ports=text).start()


def test_a_range_that_is_too_small_says_how_many_are_needed(capsys: pytest.CaptureFixture[str]) -> None:
    Ports(50000, 50000 + EACH_HOST).require_enough(1)
    assert cli.main(["plan", "-n", "2", "--ports", "50000-50009"]) == 2
    said = capsys.readouterr().err
    assert "--ports 50000-50009 has 10 ports, and a host with 2 of the ranks needs 22; type for example" in said
    assert "--ports 50000-50100" in said


@pytest.fixture
def few() -> Ports:
    """Some ports of this host that are free, below those that the system gives to other programs."""
    while True:
        found = Ports(first := random.randrange(20_000, 32_000), first + 3)
        with contextlib.ExitStack() as listening_now, contextlib.suppress(OSError):
            for port in range(found.first, found.last + 1):
                listening_now.enter_context(socket.create_server(("127.0.0.1", port)))
            return found


CLAIMING = (
    "import sys; from xpulab.deploy.network.ports import *; print(*claimed(ports(sys.argv[1])), flush=True); input()"
)


def claiming(few: Ports) -> subprocess.Popen[str]:
    words = [sys.executable, "-c", CLAIMING, str(few)]
    return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_ports_on_which_another_program_listens_are_left_out(few: Ports) -> None:
    with socket.create_server(("127.0.0.1", few.last)), socket.create_server(("127.0.0.1", few.first)):
        with claiming(few) as other:
            said, _ = other.communicate("\n")
        assert few.free(2).first > few.first
        for each in listening("127.0.0.1", few):
            with each:
                assert few.first < each.getsockname()[1] < few.last
    assert {few.first, few.last}.isdisjoint(map(int, said.split()))
    assert said


def test_two_controllers_that_start_at_the_same_time_take_other_ports(few: Ports) -> None:
    with claiming(few) as one, claiming(few) as two:
        found = [int(port) for each in (one, two) if each.stdout for port in each.stdout.readline().split()]
        for each in (one, two):
            each.communicate("\n")
    assert found
    assert len(set(found)) == len(found)


OF_LIBFABRIC = {"FI_TCP_PORT_LOW_RANGE": "50000", "FI_TCP_PORT_HIGH_RANGE": "50100"}


def test_each_mpi_is_told_the_ports_by_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "find", lambda name: Found("/a/mpiexec", (4, 1, 4)))
    monkeypatch.setattr(Ports, "free", lambda self, n: Ports(50007, 50006 + n))

    def variables(mpi: str) -> dict[str, str]:
        given, none = (
            choice.command(mpi, [RanksOfHost(HERE, 1)], ports=among).environment
            for among in (Ports(50000, 50100), None)
        )
        assert none.items() <= given.items()
        return {name: value for name, value in given.items() if name not in none}

    assert variables("intel") == {"I_MPI_PORT_RANGE": "50000:50100", **OF_LIBFABRIC}
    assert variables("mpich") == {
        "MPIEXEC_PORT_RANGE": "50000:50100",
        "MPIR_CVAR_CH3_PORT_RANGE": "50000:50100",
        "UCX_TCP_PORT_RANGE": "50000-50100",
        **OF_LIBFABRIC,
    }
    # Open MPI's daemons listen on all of the ports that they may take.
    assert variables("openmpi") == {
        **{f"{name}_MCA_oob_tcp_dynamic_ipv{ip}_ports": "50007-50008" for name in ("OMPI", "PRTE") for ip in (4, 6)},
        **{f"OMPI_MCA_btl_tcp_port_min_v{ip}": "50000" for ip in (4, 6)},
        **{f"OMPI_MCA_btl_tcp_port_range_v{ip}": "101" for ip in (4, 6)},
    }


@pytest.mark.slow
def test_a_script_and_a_plan_show_the_ports(capsys: pytest.CaptureFixture[str], tmp_path: Any) -> None:
    script = tmp_path / "script.py"
    script.touch()
    for words in (["plan", "--show", "-n", "1"], ["run", "--show", "-n", "1"]):
        rest = [str(script)] if "run" in words else []
        assert cli.main([*words, "--ports", "50000-50100", *rest]) == 0
        assert "I_MPI_PORT_RANGE=50000:50100" in capsys.readouterr().out


def test_a_reserved_port_is_that_of_one_process_which_can_listen_on_it() -> None:
    port = reserved()
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("", port))  # the system proposes no port which it refuses here
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        router.bind(f"tcp://127.0.0.1:{port}")
