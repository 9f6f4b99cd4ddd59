"""A cluster in a job of Slurm that xpulab submits: the queue, the start, each end, and nothing that is left."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from machines import Network
from mpis import skip_or_fail
from scheduler import HERE, Slurm, scheduler, why_no_scheduler
from strikes import acted_when
from waiting import until, until_none

import xpulab
from xpulab import cli
from xpulab.cluster import KMeans
from xpulab.deploy.current import find_current, latest_start
from xpulab.deploy.jobs import submission
from xpulab.exceptions import ClusterStartError, EngineLostError, PlanError

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(90), pytest.mark.flaky(reruns=1)]

SEE_LOGS = "; for the log of all processes, type: %xpu_cluster logs"


@pytest.fixture(scope="module")
def slurm(hosts: Network, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    if reason := why_no_scheduler():
        skip_or_fail(reason)
    with scheduler(hosts) as made, pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", made.config)
        patch.chdir(tmp_path_factory.mktemp("notebook"))
        yield made


def cluster_of(n: int | None = 3, **arguments: Any) -> xpulab.XPUCluster:
    arguments = {"nodes": 2, "time": 30, "launcher": "slurm", "display": "none", "timeout": 120, **arguments}
    return xpulab.XPUCluster(n, **arguments)


def jobs(slurm: Slurm) -> list[str]:
    """The jobs that wait, run, or end."""
    return slurm.run("squeue", "--noheader", "--format=%i %T").splitlines()


def of_xpulab(slurm: Slurm) -> set[int]:
    """Processes of this machine and of the other node that belong to a cluster in a job of this Slurm."""
    found = set()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            line = " ".join(process.cmdline())
            ours = any(word in line for word in (" -m xpulab.", "hydra_", "mpiexec"))
            if ours and process.environ().get("SLURM_CONF") == slurm.config:
                found.add(process.pid)
    return found


@pytest.fixture
def clean(slurm: Slurm, no_cluster: None) -> Iterator[None]:
    """Nothing is left on a node, in the queue or in the user's folder by a test that says nothing else."""
    yield
    while (cluster := find_current()) is not None:  # of a test that has failed
        cluster.stop()
    require_clean(slurm)


@pytest.fixture
def output(clean: None) -> Iterator[None]:
    """The test leaves what a job's script has written, also if it fails."""
    yield
    for log in Path().glob("xpulab-*.log"):
        log.unlink()


def require_clean(slurm: Slurm) -> None:
    def left() -> list[object]:
        there = [line for line in slurm.there.processes().values() if "slurm" not in line]
        return [*there, *slurm.there.files(), *of_xpulab(slurm), *os.listdir()]

    until_none(lambda: jobs(slurm) or left())


class Told:
    """What a start says, and a call at the first message that matches."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.pattern, self.done = "$^", False
        self.then: Callable[[], Any] = list

    def at(self, pattern: str, then: Callable[[], Any]) -> None:
        self.pattern, self.then = pattern, then

    def __call__(self, message: str) -> None:
        self.said.append(message)
        if not self.done and re.search(self.pattern, message):
            self.done = True
            self.then()


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    found = Told()
    monkeypatch.setattr("xpulab.deploy.life._teller", lambda handle: found)
    return found


@contextlib.contextmanager
def all_nodes_busy(slurm: Slurm) -> Iterator[None]:
    """A context in which a job of another user has all nodes."""
    other = slurm.run("sbatch", "--parsable", "--nodes=2", "--exclusive", "--output=/dev/null", "--wrap=sleep 1000")
    until(lambda: "RUNNING" in slurm.queue(other.strip()))
    try:
        yield
    finally:
        slurm.run("scancel", other.strip())
        until(lambda: not jobs(slurm))


def test_a_job_is_used_and_outlives_its_engines_and_ends_with_the_cluster(
    slurm: Slurm, clean: None, told: Told
) -> None:
    with cluster_of(3, job_args="--comment='two words' --begin now", partition="all") as cluster:
        (line,) = jobs(slurm)
        job = line.split()[0]
        assert told.said[1:3] == ["submitting a job to Slurm", f"Slurm's job {job}: submitted"]
        assert f"Slurm's job {job} runs on {HERE}, {slurm.there.name}" in told.said
        about = slurm.run("squeue", "--noheader", "--format=%j|%k|%l|%D|%P|%H", f"--jobs={job}").strip()
        assert cluster.engines.processes is not None
        assert about.startswith(f"{cluster.engines.processes.folder.name}|two words|30:00|2|all|")
        names = cluster.run(lambda task: __import__("platform").node())
        assert names == [os.uname().nodename] * 2 + [slurm.there.name]
        assert f"nodes of Slurm's job {job}, which ends with the cluster" in str(cluster.plan())
        # Its neighbours, which MPI ends, may be gone before the news of rank 2 has come from the other host.
        with pytest.raises(EngineLostError, match=r"rank [012] .* ended"):
            cluster.run(lambda task: task.comm.rank == 2 and os._exit(3))
        assert cluster.run(lambda task: task.comm.allreduce(1)) == [3] * 3  # new engines in the same job
        assert jobs(slurm) == [line]
        cluster.restart()
        assert jobs(slurm) == [line]


def test_a_job_that_does_not_have_the_host_of_the_notebook(slurm: Slurm, clean: None) -> None:
    with cluster_of(2, nodes=1, job_args=f"--nodelist={slurm.there.name}") as cluster:
        assert cluster.run(lambda task: __import__("platform").node()) == [slurm.there.name] * 2
        assert f"helper  {os.uname().nodename}" in str(cluster.plan())
        x = np.random.RandomState(0).rand(10_000, 3)
        np.testing.assert_array_equal(cluster.scatter(x).gather(), x)


def test_a_job_that_waits_says_why_and_ends_with_an_interrupt(slurm: Slurm, clean: None, told: Told) -> None:
    told.at(r"PENDING \(Resources\), expected to start at 20\d\d-", lambda: os.kill(os.getpid(), signal.SIGINT))
    with all_nodes_busy(slurm):
        with pytest.raises(KeyboardInterrupt):
            cluster_of().start()
        assert told.done
        assert [line for line in jobs(slurm) if "PENDING" in line] == []


@pytest.mark.parametrize("busy", [True, False])
def test_a_notebook_that_is_killed_leaves_no_job(slurm: Slurm, clean: None, busy: bool) -> None:
    """It is killed while its job waits, or while its engines run."""
    source = """
import sys, xpulab
from xpulab.report import progress
class Told:
    def update(self, report): print(report.message, flush=True)
    close = update
progress.subscribe(lambda report: Told())
cluster = xpulab.XPUCluster(3, launcher="slurm", nodes=2).start()
print("started", flush=True)
cluster.run(lambda task: __import__("time").sleep(1000))
"""
    with all_nodes_busy(slurm) if busy else contextlib.nullcontext():
        with subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, text=True) as notebook:
            assert notebook.stdout is not None
            expected = "PENDING (" if busy else "started"
            while expected not in (line := notebook.stdout.readline()):
                assert line
            notebook.kill()
        until(lambda: len(jobs(slurm)) == busy)


@pytest.mark.parametrize("pattern", ["submitted", "runs on", "connecting", "starting mpiexec", "0 of 3"])
def test_a_job_that_is_cancelled_during_the_start(slurm: Slurm, clean: None, told: Told, pattern: str) -> None:
    told.at(pattern, lambda: slurm.run("scancel", jobs(slurm)[0].split()[0]))
    cluster = cluster_of()
    with pytest.raises(ClusterStartError) as error:
        cluster.start()
    assert told.done, told.said
    cause, cure = str(error.value).splitlines()
    assert re.fullmatch(r"Slurm's job \d+ was cancelled, before the engines had started", cause)
    assert cure == f"type: %xpu_cluster restart{SEE_LOGS}"
    assert latest_start() is cluster  # for %xpu_cluster restart and logs
    assert ("ipcontroller" in cluster.logs()) == (pattern in ("connecting", "starting mpiexec", "0 of 3"))


def test_a_call_in_a_job_that_is_cancelled_submits_no_other(slurm: Slurm, clean: None) -> None:
    with cluster_of() as cluster:
        job = jobs(slurm)[0].split()[0]
        assert cluster.engines.board is not None
        ranks = cluster.engines.board.ranks
        with (
            acted_when(lambda: ranks["task"].all() and ranks["iteration"].all(), lambda: slurm.run("scancel", job)),
            pytest.raises(EngineLostError) as error,
        ):
            KMeans(3, max_iter=100_000, tol=0, n_init=100).fit(np.random.RandomState(0).rand(100_000, 4))
        assert str(error.value).splitlines() == [
            f"Slurm's job {job} was cancelled, so all engines were ended.",
            f"type: %xpu_cluster restart{SEE_LOGS}",
        ]
        assert not cluster.running
        assert "ipcontroller" in cluster.logs()
        until(lambda: not jobs(slurm))
        cluster.restart()  # as the error says, which submits another job
        assert cluster.run(lambda task: task.comm.size) == [3] * 3


@pytest.mark.parametrize("nodes", [2, 1])
def test_a_job_that_ends_while_nothing_is_asked_takes_all_processes_along(
    slurm: Slurm, clean: None, nodes: int
) -> None:
    """It reaches its time limit, which Slurm looks at every half minute, or is cancelled. With one node, all engines
    run on this host, outside of the job."""
    with cluster_of(2, nodes=nodes, job_args=f"--nodelist={HERE}") as cluster:
        job = jobs(slurm)[0].split()[0]
        if nodes == 2:
            slurm.run("scontrol", "update", f"JobId={job}", "EndTime=now")
        else:
            slurm.run("scancel", job)
        until(lambda: not of_xpulab(slurm))
        how = "reached its time limit" if nodes == 2 else "was cancelled"
        with pytest.raises(EngineLostError) as error:
            cluster.run(lambda task: 1)
        assert str(error.value).splitlines() == [
            f"Slurm's job {job} {how}, so all engines were ended.",
            f"type: %xpu_cluster restart{SEE_LOGS}",
        ]


def test_a_job_ends_without_signs_of_the_notebook(slurm: Slurm, output: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The keeper is stopped, as if the network were cut for good."""
    monkeypatch.setattr(submission, "LIMIT", 2.0)
    with cluster_of(1, nodes=1, job_args=f"--nodelist={HERE}") as cluster:
        assert cluster.life.submission is not None
        (line,) = jobs(slurm)
        log = Path(f"{cluster.engines.processes.folder.name}.log")  # type: ignore[union-attr]
        keeper = psutil.Process(cluster.life.submission.pid)
        keeper.suspend()
        until(lambda: not jobs(slurm))
        assert log.read_text().strip() == "xpulab: nothing was heard of the notebook for 2 s, so this job ends"
        keeper.resume()
        with pytest.raises(EngineLostError, match=rf"job {line.split()[0]} .*nothing was heard of the notebook"):
            cluster.run(lambda task: __import__("time").sleep(100))


def test_a_job_whose_keeper_is_killed_ends(slurm: Slurm, output: None) -> None:
    with cluster_of(1, nodes=1, job_args=f"--nodelist={HERE}", recover=False) as cluster:
        assert cluster.life.submission is not None
        psutil.Process(cluster.life.submission.pid).kill()
        until(lambda: not jobs(slurm))
        with pytest.raises(EngineLostError, match="the job ended, and so did the engines"):
            cluster.run(lambda task: 1)


def test_a_detached_cluster_keeps_its_job(slurm: Slurm, clean: None) -> None:
    source = "import xpulab; xpulab.XPUCluster(2, launcher='slurm', nodes=2, detach=True, name='lasting').start()"
    subprocess.run([sys.executable, "-c", source], check=True)
    time.sleep(2)
    assert len(jobs(slurm)) == 1
    cluster = xpulab.XPUCluster.attach("lasting")
    assert cluster.run(lambda task: task.comm.allreduce(1)) == [2, 2]
    cluster.stop()
    assert jobs(slurm) == []


def test_a_script_runs_in_a_job(slurm: Slurm, clean: None, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "script.py"  # the other node does not see it
    script.write_text(
        "import platform, sys\nprint(platform.node(), sys.argv[1:])\nsys.exit(3 * ('fail' in sys.argv))\n"
    )
    words = ["run", "--launcher", "slurm", "--nodes", "2", "-n", "2"]
    assert cli.main([*words, "--show", str(script)]) == 0
    assert "#SBATCH --nodes=2\n" in capfd.readouterr().out
    assert cli.main([*words, str(script), "a b"]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert sorted(lines) == [f"[0] {os.uname().nodename} ['a b']", f"[1] {slurm.there.name} ['a b']"]
    assert not jobs(slurm)
    assert cli.main([*words, "-n", "1", str(script), "fail"]) == 3
    assert not jobs(slurm)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"partition": "gpu"}, r"(?s)sbatch refused .*: .*invalid partition.*\n.*!sinfo --summarize"),
        ({"job_args": "--no-such-option"}, r"(?s)sbatch refused .*: .*no-such-option.*!man sbatch"),
    ],
)
def test_what_sbatch_refuses(slurm: Slurm, clean: None, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ClusterStartError, match=message):
        cluster_of(**arguments).start()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"nodes": 3}, r"PENDING \(PartitionNodeLimit\)\n.*ask for fewer, --nodes K.*!sinfo --summarize"),
        ({"time": "2:00:00"}, r"PENDING \(PartitionTimeLimit\)\n.*ask for less, --time T"),
    ],
)
def test_what_slurm_never_gives_is_an_error_and_no_wait(
    slurm: Slurm, clean: None, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ClusterStartError, match=rf"^Slurm's job \d+ would wait for ever: {message}"):
        cluster_of(**arguments).start()
    until(lambda: not jobs(slurm))


def test_ranks_that_srun_starts_without_mpi_are_warned_that_each_is_alone(slurm: Slurm, clean: None) -> None:
    source = "import numpy as np; from xpulab.spmd.cluster import KMeans; KMeans(2).fit(np.eye(9)); print('fitted')"
    words = ["srun", "--nodes=2", "--mpi=none", "--chdir=/", sys.executable, "-c", source]
    done = subprocess.run(words, env=slurm.environment, capture_output=True, text=True, check=False)
    assert done.stdout.count("fitted\n") == 2, done.stderr
    warning = (
        r"MPI has 1 rank, and 2 were started \(SLURM_STEP_NUM_TASKS=2\): .* as rank 0; type: xpulab run --launcher"
    )
    assert len(re.findall(warning, done.stderr)) == 2
    words[1:3] = ["--ntasks=2", f"--nodelist={HERE}", "--mpi=pmi2"]  # they find each other on one host
    done = subprocess.run(words, env=slurm.environment, capture_output=True, text=True, check=False)
    assert done.stdout.count("fitted\n") == 2, done.stderr
    assert "rank 0" not in done.stderr


def test_more_engines_than_the_nodes_have_cores(slurm: Slurm, clean: None) -> None:
    with pytest.raises(PlanError, match=r"share the cores .*; type -n 4, or ask for more nodes: --nodes K"):
        cluster_of(5).start()


def test_a_plan_submits_nothing(slurm: Slurm, clean: None) -> None:
    plan = str(cluster_of().plan(show=True))
    assert "#SBATCH --nodes=2\n" in plan
    assert not jobs(slurm)


def test_a_notebook_whose_extension_is_unloaded_leaves_no_job(slurm: Slurm, clean: None, shell: Any) -> None:
    shell.run_line_magic("load_ext", "xpulab")
    shell.run_line_magic("xpu_cluster", "start --launcher slurm --nodes 1 --time 10 -n 1")
    assert len(jobs(slurm)) == 1
    shell.run_line_magic("unload_ext", "xpulab")
    assert not jobs(slurm)
