"""Clusters of two hosts on Open MPI and MPICH: start, fit, stop, a lost engine, and nothing that is left."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from machines import Host, Network
from mpis import with_mpi
from strikes import acted_when
from waiting import until_none

import xpulab
from xpulab.cluster import KMeans
from xpulab.deploy.mpi import choice
from xpulab.deploy.network.addresses import addresses
from xpulab.deploy.network.ports import ports
from xpulab.deploy.remote.hosts import look
from xpulab.exceptions import ClusterStartError, EngineLostError

pytestmark = pytest.mark.cluster

PORTS = "50000-50100"
X = np.concatenate([np.random.RandomState(0).randn(2_000, 4) + 5 * group for group in range(3)])


@pytest.fixture(scope="module", params=["openmpi", "mpich"])
def mpi(request: pytest.FixtureRequest) -> str:
    return with_mpi(request.param)


@pytest.fixture(scope="module")
def both(hosts: Network, mpi: str) -> Iterator[xpulab.XPUCluster]:
    """A cluster of one engine here and two on node1, whose firewalls let in only the ports that the cluster is told."""
    names = f"{hosts.address}:1,node1:2"
    arguments: dict[str, Any] = {"display": "none", "timeout": 120, "recover": False, "env": {"MINE": "a b"}}
    arguments["ports"] = PORTS
    with (
        hosts.firewalls("DROP", PORTS),
        xpulab.XPUCluster(hosts=names, ssh_config=hosts.ssh_config, mpi=mpi, **arguments) as cluster,
    ):
        yield cluster
    require_clean(hosts.hosts[0])


def require_clean(host: Host) -> None:
    until_none(lambda: [*host.processes().values(), *host.files()])


def test_ranks_are_where_the_plan_says_with_their_variables(both: xpulab.XPUCluster, mpi: str) -> None:
    def here(task: Any) -> tuple[Any, ...]:
        import platform

        return platform.node(), os.environ["MINE"], os.getcwd(), task.comm.allreduce(task.rank)

    found = both.activate().run(here)
    assert found[1:] == [("node1", "a b", os.getcwd(), 3)] * 2
    assert found[0][0] != "node1"
    assert choice.find(mpi).mpiexec in both.plan(show=True).command


def test_a_fit_is_that_of_one_host(both: xpulab.XPUCluster) -> None:
    from sklearn.cluster import KMeans as Theirs

    arguments: dict[str, Any] = {"n_clusters": 3, "init": X[::2000], "n_init": 1}
    both.activate()
    ours, theirs = KMeans(**arguments).fit(X), Theirs(**arguments).fit(X)
    np.testing.assert_array_equal(ours.labels_, theirs.labels_)
    np.testing.assert_allclose(ours.inertia_, theirs.inertia_)
    handle = both.scatter(X)
    np.testing.assert_array_equal(handle.gather(), X)


def test_a_lost_engine_of_another_host_is_named_and_nothing_is_left(both: xpulab.XPUCluster, hosts: Network) -> None:
    """This is the last test of this cluster."""
    pid = both.facts[2].pid
    assert both.engines.board is not None
    ranks = both.engines.board.ranks
    with (
        acted_when(lambda: ranks["hears"].all(), lambda: hosts.hosts[0].run("kill", "-9", str(pid))),
        pytest.raises(EngineLostError) as lost,
    ):
        both.run(lambda task: task.comm.Barrier() or __import__("time").sleep(600))
    assert lost.value.reason.startswith(f"rank 2 (pid {pid} on node1, ")
    assert lost.value.reason.endswith("ended: killed by signal: 9 (killed)")
    require_clean(hosts.hosts[0])


def test_a_stop_leaves_nothing(both: xpulab.XPUCluster, hosts: Network) -> None:
    both.start()
    assert both.run(lambda task: task.comm.size) == [3, 3, 3]
    both.stop()
    require_clean(hosts.hosts[0])


def test_a_helper_rank_carries_the_rows(hosts: Network, mpi: str) -> None:
    """Open MPI gives the first rank to the notebook's host, and MPICH the last one."""
    arguments: dict[str, Any] = {"display": "none", "timeout": 120, "recover": False, "ports": PORTS}
    with xpulab.XPUCluster(hosts="node1:1,node2:1", ssh_config=hosts.ssh_config, mpi=mpi, **arguments) as cluster:
        assert [engine.host for engine in cluster.status().engines] == ["node1", "node2"]
        model = KMeans(3, random_state=0).fit(X)
        np.testing.assert_array_equal(model.labels_, model.predict(X))
        assert cluster.engines.helper is not None
        os.kill(cluster.engines.helper.pid, 9)
        with pytest.raises(EngineLostError, match=r"the helper rank .* ended: killed by signal: 9"):
            cluster.run(lambda task: __import__("time").sleep(30))
    for host in hosts.hosts:
        require_clean(host)


def test_hosts_are_asked_for_the_mpi(hosts: Network, mpi: str, monkeypatch: pytest.MonkeyPatch) -> None:
    names = addresses(f"{hosts.address},node1", None)
    found = look(names, hosts.ssh_config, mpi, among=ports(PORTS))
    assert found.ready, str(found)
    assert found.to_type.endswith(f"--ssh-config {hosts.ssh_config} --mpi {mpi} --ports {PORTS}")
    host, label = hosts.hosts[0], choice.module(mpi).LABEL
    mpiexec = choice.find(mpi).mpiexec
    real = os.path.realpath(mpiexec)
    host.run("mount", "--bind", "/bin/true", real)  # on this host it is the program of another package
    try:
        problem = look(names, hosts.ssh_config, mpi).hosts[1].problem
        assert problem.startswith(f"it has no {label} in {mpiexec} (here {label} ")
        with pytest.raises(ClusterStartError, match=f"it has no {label}"):
            xpulab.XPUCluster(hosts=f"{hosts.address},node1", ssh_config=hosts.ssh_config, mpi=mpi).start()
    finally:
        host.run("umount", real)
