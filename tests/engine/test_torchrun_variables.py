"""torchrun's variables of code on some ranks, and the port that a rank holds."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest

import xpulab
from xpulab.console.cells import run_cell
from xpulab.engine import torchrun
from xpulab.engine.torchrun import LOOPBACK, Port, Torchrun, address_of, variables


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment, and a state of the module, that the test may change."""
    monkeypatch.setattr(os, "environ", dict(os.environ))
    monkeypatch.setattr(torchrun, "_here", [])


@pytest.fixture
def port() -> Iterator[Port]:
    """A port that is free again after the test."""
    held = Port()
    yield held
    os.close(held._descriptor)


def test_ranks_of_several_hosts_have_their_place_on_each() -> None:
    """Ranks 0, 1 and 2 are on one host, 3 and 4 on another one; 1, 3 and 4 run the code."""
    ranks, leaders = [1, 3, 4], [0, 0, 0, 3, 3]
    found = [variables(rank, ranks, leaders, ("10.0.0.1", 4711)) for rank in ranks]
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK")
    assert [tuple(int(each[name]) for name in names) for each in found] == [
        (0, 3, 0, 1, 0, 2, 0),
        (1, 3, 0, 2, 1, 2, 1),
        (2, 3, 1, 2, 1, 2, 2),
    ]
    assert {(each["MASTER_ADDR"], each["MASTER_PORT"]) for each in found} == {("10.0.0.1", "4711")}


@pytest.mark.usefixtures("environment")
def test_variables_of_another_world_are_replaced_and_those_of_the_user_are_kept(port: Port) -> None:
    """The notebook's process may itself run under torchrun. A variable of start(env=...) is the user's."""
    os.environ.update(RANK="7", WORLD_SIZE="8", MASTER_PORT="29500")
    Torchrun(1, port, [(LOOPBACK, 1), (LOOPBACK, 2)], [0, 0], users=["MASTER_PORT"])
    assert (os.environ["RANK"], os.environ["WORLD_SIZE"], os.environ["MASTER_PORT"]) == ("1", "2", "29500")


@pytest.mark.usefixtures("environment")
def test_what_a_users_code_has_set_stays_for_later_code(port: Port) -> None:
    this = Torchrun(1, port, [(LOOPBACK, 1), (LOOPBACK, 2)], [0, 0])
    os.environ["MASTER_ADDR"] = "localhost"
    del os.environ["LOCAL_RANK"]
    this.tell([1], (1,))
    names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "LOCAL_RANK")
    assert [os.environ.get(name) for name in names] == ["0", "1", "localhost", "2", None]
    this.tell([0, 1], (2,))
    assert [os.environ.get(name) for name in names] == ["1", "2", "localhost", "1", None]


def test_a_port_is_held_and_nothing_listens_on_it_until_it_is_served(port: Port) -> None:
    for reuse in (0, 1):
        with socket.socket() as other:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuse)
            with pytest.raises(OSError, match="in use"):
                other.bind(port.place)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(port.place)
    with socket.socket(fileno=port.listening()) as served, socket.create_connection(port.place) as connection:
        assert connection.getpeername() == port.place
        served.detach()


def test_the_address_of_an_interface_and_of_none() -> None:
    assert address_of("lo") == LOOPBACK
    assert socket.getaddrinfo(address_of(""), 1)


@pytest.mark.cluster
def test_cells_functions_and_two_clusters_have_the_variables(on_pair: xpulab.XPUCluster, clusters: object) -> None:
    source = "import os\nfound = [os.environ[name] for name in ('RANK', 'LOCAL_RANK', 'WORLD_SIZE', 'MASTER_PORT')]"
    (_, _, _, port), last = run_cell(on_pair, source, out=["found"]).values["found"]
    assert last == ["1", "1", "2", port]
    assert on_pair.run(lambda here: __import__("os").environ["WORLD_SIZE"]) == ["2", "2"]
    ((rank, _, size, own),) = run_cell(on_pair, source, ranks=[1], out=["found"]).values["found"]
    assert (rank, size, own != port) == ("0", "1", True)
    other = clusters(1)  # type: ignore[operator]
    assert run_cell(other, source, out=["found"]).values["found"][0][3] not in (port, own)
