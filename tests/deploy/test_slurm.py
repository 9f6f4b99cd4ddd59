"""Where engines run in a job of Slurm, which the tests imitate by its variables and a scontrol of their own."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

import xpulab
from xpulab.deploy.launchers import slurm
from xpulab.deploy.launchers.scheduler import Job, Wanted
from xpulab.deploy.network.addresses import own_address, reached_at
from xpulab.exceptions import ClusterStartError, UsageError

SCONTROL = """#!/bin/sh
[ "$*" = 'show hostnames node[0-1]' ] || { echo "Invalid hostlist: $*" >&2; exit 1; }
echo node0
echo node1
"""


@pytest.fixture
def job(tmp_path: Path, environment: Callable[..., None]) -> None:
    """This process is in job 7 on two nodes, and this host is the first."""
    (tmp_path / "scontrol").write_text(SCONTROL)
    (tmp_path / "scontrol").chmod(0o755)
    environment(
        PATH=f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
        SLURM_JOB_ID="7",
        SLURM_JOB_NODELIST="node[0-1]",
        SLURMD_NODENAME="node0",
    )


def where(**arguments: object) -> tuple[list[str], Job | None]:
    named, job = xpulab.XPUCluster(**arguments).planning.where()  # type: ignore[arg-type]
    return [address.name for address in named], job


@pytest.mark.usefixtures("job")
def test_engines_use_the_nodes_of_the_job() -> None:
    seven = Job("7", ("node0", "node1"), "node0")
    assert where() == (["node0", "node1"], seven)
    assert where(launcher="slurm") == (["node0", "node1"], seven)
    assert where(launcher="local") == ([], None)
    assert where(hosts="a,b") == (["a", "b"], None)
    assert where(hosts="a,b", launcher="ssh") == (["a", "b"], None)


def test_engines_use_this_host_in_no_job(environment: Callable[..., None]) -> None:
    environment(SLURM_JOB_ID=None)
    assert where() == ([], None)
    assert where(launcher="slurm") == ([], None)
    assert xpulab.XPUCluster(launcher="slurm").planning.requested() == Wanted()


@pytest.mark.usefixtures("job")
def test_engines_use_this_host_in_a_job_of_this_node(tmp_path: Path) -> None:
    (tmp_path / "scontrol").write_text("#!/bin/sh\necho node0\n")
    assert where() == ([], None)


@pytest.mark.usefixtures("job")
def test_a_job_of_this_node_needs_no_program_of_slurm(environment: Callable[..., None], tmp_path: Path) -> None:
    (tmp_path / "scontrol").unlink()
    environment(PATH=str(tmp_path), SLURM_JOB_NODELIST="node0")
    assert where() == ([], None)


@pytest.mark.usefixtures("job")
def test_a_notebook_on_a_login_node_uses_the_nodes_of_its_job(environment: Callable[..., None]) -> None:
    environment(SLURMD_NODENAME=None)
    assert where() == (["node0", "node1"], Job("7", ("node0", "node1")))


@pytest.mark.usefixtures("job")
def test_nodes_that_slurm_does_not_name_are_an_error(environment: Callable[..., None], tmp_path: Path) -> None:
    environment(SLURM_JOB_NODELIST="x[")
    with pytest.raises(
        ClusterStartError, match=r"does not name the nodes 'x\[' of this job: Invalid hostlist.*\n.*loc"
    ):
        where()
    (tmp_path / "scontrol").unlink()
    environment(PATH=str(tmp_path))
    with pytest.raises(ClusterStartError, match="No such file or directory: 'scontrol'"):
        where()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"launcher": "lsf"}, "launcher='lsf' was given; expected one of local, ssh, slurm, pbs"),
        ({"launcher": "ssh"}, "without hosts; name them: --hosts node1,node2"),
        ({"launcher": "local", "hosts": "a,b"}, "launcher='local' was given with hosts"),
        ({"launcher": "slurm", "hosts": "a,b"}, "launcher='slurm' was given with hosts"),
    ],
)
def test_launchers_that_do_not_go_with_the_hosts_are_refused(arguments: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        where(**arguments)


def test_the_address_at_which_srun_or_ssh_has_reached_this_host(environment: Callable[..., None]) -> None:
    environment(SSH_CONNECTION=None)
    assert reached_at() == ""
    environment(SSH_CONNECTION="10.1.1.1 5000 10.1.1.2 22")
    assert reached_at() == "10.1.1.2"
    environment(SLURM_LAUNCH_NODE_IPADDR="127.0.0.1")  # with a variable of a login that srun has passed on
    assert reached_at() == own_address("127.0.0.1") == "127.0.0.1"


@pytest.mark.parametrize(
    ("state", "said", "expected"),
    [
        ("", "*** STEP 7.0 ON node1 CANCELLED AT 2026-01-01T00:00:00 ***", ""),
        ("RUNNING", "*** STEP 7.0 ON node1 CANCELLED AT 2026-01-01T00:00:00 ***", ""),  # a step, and not the job
        ("COMPLETING", "*** STEP 7.0 ON node1 CANCELLED AT 2026-01-01T00:00:00 ***", "was cancelled"),
        ("COMPLETING", "*** STEP 7.0 ON n CANCELLED AT 2026 DUE TO TIME LIMIT ***", "reached its time limit"),
        ("TIMEOUT", "", "reached its time limit"),
        ("PREEMPTED", "", "was preempted"),
        ("NODE_FAIL", "", "lost a node"),
        ("CANCELLED", "", "was cancelled"),
        ("FAILED", "", "has ended (FAILED)"),
    ],
)
def test_how_a_job_has_ended(state: str, said: str, expected: str) -> None:
    assert slurm.ending(state, said) == expected
