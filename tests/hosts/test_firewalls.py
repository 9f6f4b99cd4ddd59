"""Hosts behind firewalls: the pairs that cannot connect are named before a start, and a cluster keeps to its ports."""

from __future__ import annotations

import os
import subprocess
from typing import Any

import numpy as np
import pytest
from calls_of_hosts import X
from machines import Network

import xpulab
from xpulab.cluster import KMeans
from xpulab.deploy.network.addresses import addresses
from xpulab.deploy.remote.hosts import Hosts, look
from xpulab.exceptions import ClusterStartError

PORTS = "50000-50100"


def pairs(found: Hosts) -> set[tuple[str, str, str]]:
    return {(each.source, each.door.host, each.how) for each in found.closed}


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """This host does not wait for a packet that is sent again; there are no losses here."""
    monkeypatch.setattr("xpulab.deploy.network.reach._PATIENCE", 1.0)


def test_hosts_name_each_pair_that_a_firewall_separates(hosts: Network, shell: Any) -> None:
    here, (one, two) = os.uname().nodename, hosts.hosts
    with one.firewall("DROP"), two.firewall("REJECT"):
        found = shell.run_line_magic("xpu_cluster", f"hosts node1,node2 --ssh-config {hosts.ssh_config}")
    assert pairs(found) == {
        (here, "node1", "DROP"),
        ("node2", "node1", "DROP"),
        (here, "node2", "REJECT"),
        ("node1", "node2", "REJECT"),
    }
    assert not found.ready
    said = str(found)
    assert f" of node1 ({one.address}): DROP (no answer within" in said
    assert f"{here} and node1 cannot connect to port " in said
    assert f" of node2 ({two.address}): REJECT (Connection refused)" in said
    assert "listen on any port from 1024 on; choose some (--ports 50000-50100)" in said
    assert "firewall of node1, node2 take TCP connections" in said
    assert said.endswith(f"hosts node1,node2 --ssh-config {hosts.ssh_config} --ports 50000-50100")
    assert said.count("not ready") == 2


def test_a_firewall_of_the_notebooks_host_is_named(hosts: Network) -> None:
    with hosts.firewalls("REJECT", "1023"):
        found = look(addresses(f"{hosts.address},node1", None), hosts.ssh_config)
    assert pairs(found) == {(hosts.address, "node1", "REJECT"), ("node1", hosts.address, "REJECT")}
    assert f"of {hosts.address} (the notebook, {hosts.address}): REJECT" in str(found)


def test_a_start_behind_a_firewall_ends_at_once_and_names_the_pair_and_the_ports(hosts: Network) -> None:
    cluster = xpulab.XPUCluster(2, hosts=f"{hosts.address},node1", ssh_config=hosts.ssh_config, ports=PORTS)
    with hosts.hosts[0].firewall("REJECT", "50000-50050"), pytest.raises(ClusterStartError) as error:
        cluster.start()  # the first port can be reached, and the last one cannot
    said = str(error.value)
    assert f"{hosts.address} cannot connect to port 50100 of node1 ({hosts.hosts[0].address}): REJECT (" in said
    assert "to the ports 50000-50100; type there" in said
    assert "sudo ufw allow 50000:50100/tcp" in said
    assert hosts.hosts[0].processes() == {}


def listening(words: list[str], pids: set[int]) -> set[int]:
    """The ports on which processes of a host listen where other hosts reach them."""
    done = subprocess.run([*words, "ss", "-Hltnp"], check=True, capture_output=True, text=True)
    lines = [line for line in done.stdout.splitlines() if any(f"pid={pid}," in line for pid in pids)]
    places = [line.split()[3].rpartition(":")[::2] for line in lines]
    return {int(port) for address, port in places if not address.startswith(("127.", "[::1]"))}


@pytest.mark.cluster
def test_a_cluster_behind_firewalls_listens_on_its_ports_only(hosts: Network) -> None:
    """The helper rank listens here, too. Open MPI and MPICH are in `test_other_mpis`."""
    arguments: dict[str, Any] = {"ssh_config": hosts.ssh_config, "ports": PORTS, "display": "none", "recover": False}
    with (
        hosts.firewalls("DROP", PORTS),
        xpulab.XPUCluster(2, hosts="node1,node2", **arguments) as cluster,
    ):
        handle = cluster.scatter(X)
        np.testing.assert_array_equal(handle.gather(), X)
        assert KMeans(3, random_state=0).fit(X).n_iter_ > 0
        assert cluster.engines.processes is not None
        found = listening([], set(cluster.engines.processes.pids()))
        for host in hosts.hosts:
            mine = {int(pid) for pid in host.run("pgrep", "-f", "xpulab.engine").split()}
            found |= listening(["nsenter", "-t", str(host.pid), "--all"], mine)
    assert len(found) > 8  # the controller's, and one of each rank
    assert found <= set(range(50_000, 50_101))
