"""A cluster in a job that xpulab submits to PBS. No machine here has PBS: programs of this test stand for qsub, qstat
and qdel, with the output that the manual pages of OpenPBS describe, and one host runs the job's script."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from machines import Host, Network
from waiting import until

import xpulab
from xpulab.exceptions import ClusterStartError, EngineLostError

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(90)]

#: The queue: the script that waits, and then the pid of its program on the host.
PROGRAMS = {
    "qsub": """
cat > {own}/script
if grep -q "^#PBS -q gpu" {own}/script; then echo "qsub: Unknown queue" >&2; exit 170; fi
rm -f {own}/pid; echo Q > {own}/state; echo 7.server""",
    "qstat": """
[ "$1$2$3 $4" = "-x-f-w 7.server" ] || exit 2
if [ $(cat {own}/state) = Q ]; then
    printf 'Job Id: 7.server\\n    Job_Name = a\\n    job_state = Q\\n    comment = Not Running: not enough cores\\n'
    printf '    estimated.start_time = Tue Nov 24 00:30:00 2026\\n'
    echo R > {own}/state
    setsid nsenter -t {pid} --all sh -c 'echo $$ > {own}/pid; exec sh {own}/script' > {own}/output 2>&1 < /dev/null &
    exit
fi
if nsenter -t {pid} --all kill -0 $(cat {own}/pid); then
    printf 'Job Id: 7.server\\n    job_state = R\\n    exec_host = node1/0*2\\n'
else
    printf 'Job Id: 7.server\\n    job_state = F\\n    exec_host = node1/0*2\\n    Exit_status = 271\\n'
fi""",
    "qdel": """
[ "$1" = 7.server ] && nsenter -t {pid} --all kill -KILL $(cat {own}/pid)""",
    "qselect": "",
}


@pytest.fixture
def pbs(
    hosts: Network, monkeypatch: pytest.MonkeyPatch, environment: Callable[..., None], tmp_path: Path
) -> Iterator[Path]:
    own = Path(hosts.ssh_config).with_name("pbs")
    own.mkdir(exist_ok=True)
    for name, text in PROGRAMS.items():
        path = own / name
        path.write_text("#!/bin/sh" + text.replace("{own}", str(own)).replace("{pid}", str(hosts.hosts[0].pid)) + "\n")
        path.chmod(0o755)
    environment(PATH=f"{own}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    yield own
    until(lambda: not hosts.hosts[0].processes() and not hosts.hosts[0].files())


def cluster_of(hosts: Network, **arguments: Any) -> xpulab.XPUCluster:
    arguments = {"nodes": 1, "time": 30, "display": "none", "ssh_config": hosts.ssh_config, **arguments}
    return xpulab.XPUCluster(2, launcher="pbs", **arguments)


def queue(host: Host) -> list[str]:
    return [line for line in host.processes().values() if "holder hold" in line]


@pytest.mark.parametrize("before", [False, True], ids=["as it comes", "after a look for its end has read all of it"])
def test_a_job_is_used_and_ends_with_the_cluster(
    hosts: Network, pbs: Path, monkeypatch: pytest.MonkeyPatch, before: bool
) -> None:
    said: list[str] = []
    cluster = cluster_of(hosts)

    def tell(text: str) -> None:
        said.append(text)
        if before and text.startswith("submitting"):
            submission: Any = cluster.life.submission
            until(lambda: submission.ended or submission.job)

    monkeypatch.setattr("xpulab.deploy.life._teller", lambda handle: tell)
    with cluster:
        waits = (
            "PBS's job 7.server: queued (Not Running: not enough cores), expected to start at Tue Nov 24 00:30:00 2026"
        )
        assert said[1:3] == ["submitting a job to PBS", "PBS's job 7.server: submitted"]
        assert said[3:5] == [waits, "PBS's job 7.server runs on node1"]
        assert cluster.run(lambda task: __import__("platform").node()) == ["node1", "node1"]
        assert len(queue(hosts.hosts[0])) == 1
        assert "#PBS -l walltime=00:30:00\n" in (pbs / "script").read_text()
    assert not queue(hosts.hosts[0])


def test_a_job_that_is_deleted(hosts: Network, pbs: Path) -> None:
    with cluster_of(hosts) as cluster:
        os.system("qdel 7.server")
        with pytest.raises(
            EngineLostError, match=r"^PBS's job 7\.server was deleted, or reached a limit, so all engines"
        ):
            cluster.run(lambda task: __import__("time").sleep(30))


def test_a_queue_that_does_not_exist(hosts: Network, pbs: Path) -> None:
    with pytest.raises(ClusterStartError, match=r"(?s)qsub refused the job; it said: qsub: Unknown queue.*!qstat -Q"):
        cluster_of(hosts, partition="gpu").start()
