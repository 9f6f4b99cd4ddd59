"""Jobs of schedulers as text: scripts, command lines, and what is read of the schedulers' answers.

No machine here has PBS. Its tests follow the manual pages of OpenPBS that `xpulab.deploy.launchers.pbs` names.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import xpulab
from xpulab import cli
from xpulab.deploy.jobs import holder
from xpulab.deploy.launchers import choice, pbs, slurm
from xpulab.deploy.launchers.scheduler import Job, Look, Wanted, lines, seconds
from xpulab.deploy.mpi.command import Found
from xpulab.exceptions import ClusterStartError, UsageError
from xpulab.sharing.program import program

WANTED = Wanted(2, "1:30:00", "gpu", ("--gres", "gpu:2", "--comment=two words", "--qos=it's"))

SLURM = """#!/bin/sh
#SBATCH --job-name=xpulab-a
#SBATCH --output=/dev/null
#SBATCH --chdir=/
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --mem=0
#SBATCH --no-requeue
#SBATCH --time=1:30:00
#SBATCH --partition=gpu
#SBATCH --gres gpu:2
#SBATCH "--comment=two words"
#SBATCH "--qos=it's"
(: > '/a b/log') 2> /dev/null && exec > '/a b/log' 2>&1
cd / && exec python -m m 'x y'
"""

PBS = """#!/bin/sh
#PBS -N xpulab-a
#PBS -j oe
#PBS -o /dev/null
#PBS -r n
#PBS -l select=2:ncpus=1
#PBS -l place=scatter:exclhost
#PBS -l walltime=01:30:00
#PBS -q gpu
#PBS -A account
(: > /log) 2> /dev/null && exec > /log 2>&1
cd / && exec python -m m
"""


def test_the_script_of_slurm() -> None:
    assert slurm.script(WANTED, "xpulab-a", ["python", "-m", "m", "x y"], "/a b/log") == SLURM
    assert "--time" not in slurm.script(Wanted(), "a", ["m"], "/log")
    assert "--partition" not in slurm.script(Wanted(), "a", ["m"], "/log")


def test_the_script_of_pbs() -> None:
    wanted = Wanted(2, "1:30:00", "gpu", ("-A", "account"))
    assert pbs.script(wanted, "xpulab-a", ["python", "-m", "m"], "/log") == PBS
    own = pbs.script(Wanted(2, extra=("-l", "select=2:ncpus=64:ngpus=4")), "a", ["m"], "/log")
    assert own.count("select=") == 1
    assert "#PBS -l select=2:ncpus=64:ngpus=4\n" in own
    assert "#PBS -l place=scatter:exclhost\n" in own


def test_scripts_are_those_of_a_shell(tmp_path: Path) -> None:
    """The program's output goes into the file, or nowhere if there is no such folder."""
    program = [sys.executable, "-c", "import os; print(os.getcwd())"]
    for module in (slurm, pbs):
        log = tmp_path / module.LABEL / "log"
        for _ in range(2):
            script = module.script(Wanted(), "a", program, str(log))
            done = subprocess.run(["sh"], input=script, capture_output=True, text=True, check=True)
            assert done.stdout == ("" if log.parent.exists() else "/\n")
            assert not log.parent.exists() or log.read_text() == "/\n"
            log.parent.mkdir(exist_ok=True)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("30", 1_800), ("1:30", 90), ("1:00:00", 3_600), ("2-0", 172_800), ("1-2:3", 93_780), ("1-2:3:4", 93_784)],
)
def test_time_limits(text: str, expected: int) -> None:
    assert seconds(text) == expected


def test_the_walltime_of_pbs() -> None:
    assert [pbs.walltime(text) for text in ("30", "2-1:01:01", "90:30")] == ["00:30:00", "49:01:01", "01:30:30"]


def test_lines_of_options() -> None:
    assert lines("#A", ["-l", "x", "--y=z", "", "-q"]) == ["#A -l x", '#A --y=z ""', "#A -q"]


EXPECTED = "PENDING (Resources), expected to start at 2026-11-24 00:30:00"


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("PENDING|Resources|2026-11-24T00:30:00|n/a|\n", Look("waiting", EXPECTED)),
        ("PENDING|Priority|N/A|n/a|\n", Look("waiting", "PENDING (Priority)")),
        ("CONFIGURING|None|2026-11-24T00:30:00|node1|node[1-2]\n", Look("waiting", "CONFIGURING")),
        ("RUNNING|None|2026-11-24T00:30:00|node1|node[1-2]\n", Look("running", "RUNNING", "node[1-2]", "node1")),
        ("COMPLETING|None|x|node1|node1\n", Look("ending", "", "node1", "node1")),
        ("CANCELLED|None|x|node1|node1\n", Look("ended", "was cancelled", "node1", "node1")),
        ("TIMEOUT|TimeLimit|x|node1|node1\n", Look("ended", "reached its time limit", "node1", "node1")),
        ("FAILED|NonZeroExitCode|x|n|n\n", Look("ended", "has ended (FAILED)", "n", "n")),
        ("", Look("ended", "has ended")),
    ],
)  # fmt: skip
def test_what_squeue_says(said: str, expected: Look) -> None:
    assert slurm.parse_state(said) == expected


@pytest.mark.parametrize(
    ("reason", "cure"),
    [
        ("PartitionNodeLimit", "ask for fewer, --nodes K"),
        ("QOSMaxNodePerJobLimit", "ask for fewer, --nodes K"),
        ("AssocMaxNodesPerJobLimit", "ask for fewer, --nodes K"),
        ("PartitionTimeLimit", "ask for less, --time T"),
        ("AssocMaxWallDurationPerJobLimit", "ask for less, --time T"),
        ("InvalidAccount", "--job-args=--account=A"),
        ("AccountNotAllowed", "--job-args=--account=A"),
        ("BadConstraints", "--show"),
        ("InvalidQOS", "--show"),
    ],
)
def test_what_slurm_never_gives_is_no_wait(reason: str, cure: str) -> None:
    look = slurm.parse_state(f"PENDING|{reason}|N/A||\n")
    assert look == Look("never", f"PENDING ({reason})")
    assert re.search(cure, slurm.advice(look.words))


@pytest.mark.parametrize(
    "reason",
    [
        *("None", "Priority", "Resources", "Dependency", "AssocGrpNodeLimit", "QOSMaxJobsPerUserLimit"),
        *("ReqNodeNotAvail, UnavailableNodes:node1", "PartitionDown", "BeginTime", "JobHeldUser"),
    ],
)
def test_what_slurm_may_give_later_is_a_wait(reason: str) -> None:
    assert slurm.parse_state(f"PENDING|{reason}|N/A||\n").state == "waiting"


def test_how_a_job_ends_is_in_the_log_before_squeue_says_it() -> None:
    log = "slurmstepd: error: *** STEP 7.0 ON node1 CANCELLED AT 2026 DUE TO TIME LIMIT ***"
    assert slurm.parse_state("COMPLETING|None|x|node1|node1", log).words == "reached its time limit"


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("COMPLETING|NonZeroExitCode|x|n|n", Look("ending", "has ended (FAILED)", "n", "n")),
        ("FAILED|NonZeroExitCode|x|n|n", Look("ended", "has ended (FAILED)", "n", "n")),
        ("COMPLETED|None|x|n|n", Look("ended", "has ended (COMPLETED)", "n", "n")),
    ],
)
def test_a_job_whose_script_ends_was_not_cancelled_although_its_steps_are(said: str, expected: Look) -> None:
    assert (
        slurm.parse_state(said, "slurmstepd-n: error: *** STEP 7.0 ON n CANCELLED AT 2026-01-01T00:00:00 ***")
        == expected
    )


QSTAT = """Job Id: 7.server
    Job_Name = xpulab-a
    job_state = {state}
    queue = workq
    {more}
    Variable_List = PBS_O_HOME=/home/a,PBS_O_WORKDIR=/x = y
"""


@pytest.mark.parametrize(
    ("state", "more", "expected"),
    [
        ("Q", "comment = Not Running: too few cores", Look("waiting", "queued (Not Running: too few cores)")),
        ("Q", "comment = Can Never Run: too few nodes", Look("never", "queued (Can Never Run: too few nodes)")),
        ("Q", "estimated.start_time = Tue Nov 24", Look("waiting", "queued, expected to start at Tue Nov 24")),
        ("H", "", Look("waiting", "held")),
        ("R", "exec_host = a/0*16+b/1*16+a/2", Look("running", "running", "a/0*16+b/1*16+a/2", "a")),
        ("E", "exec_host = a/0", Look("ending")),
        ("F", "Exit_status = 271", Look("ended", "was deleted, or reached a limit")),
        ("F", "Exit_status = 1", Look("ended", "has ended (exit status 1)")),
    ],
)  # fmt: skip
def test_what_qstat_says(state: str, more: str, expected: Look) -> None:
    assert pbs.parse_state(QSTAT.format(state=state, more=more)) == expected


def test_the_nodes_of_a_job_of_pbs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Inside of the job they are in PBS_NODEFILE, and outside in exec_host; a host may be there several times."""
    assert pbs.submitted_job("7.server", "a/0*16+localhost/1*16+a/2") == Job(
        "7.server", ("a", "localhost"), "localhost", "pbs", True
    )
    file = tmp_path / "nodes"
    file.write_text("localhost\nlocalhost\nb\n")
    inside = {"PBS_JOBID": "7.server", "PBS_NODEFILE": str(file)}
    assert pbs.allocation(inside) == Job("7.server", ("localhost", "b"), "localhost", "pbs")
    assert pbs.allocation({}) is None
    assert choice.allocation(inside, "slurm") is None
    with pytest.raises(ClusterStartError, match=r"PBS_NODEFILE, cannot be read: .*\n.*--launcher local"):
        pbs.allocation({**inside, "PBS_NODEFILE": "/no/file"})


def test_pbs_tmrsh_starts_ranks_in_a_job_where_it_is_there(tmp_path: Path, environment: Callable[..., None]) -> None:
    job = Job("7.server", ("a", "b"), "a", "pbs")
    (tmp_path / "pbs_tmrsh").touch(0o755)
    environment(PBS_JOBID="7.server", PATH=str(tmp_path))
    assert pbs.starter(job) == (str(tmp_path / "pbs_tmrsh"),)
    assert pbs.starter(Job("7.server", ("a", "b"), "a", "pbs", submitted=True)) == ()
    assert pbs.launcher("b", job, None).command(["true"])[0] == "ssh"
    (tmp_path / "pbs_tmrsh").unlink()
    assert pbs.starter(job) == ()


def test_ids_from_what_was_said() -> None:
    assert slurm.parse_job_id("7;cluster\n") == "7"
    assert slurm.parse_job_id("warning\n7\n") == "7"
    assert pbs.parse_job_id("7.server\n") == "7.server"
    assert (slurm.parse_job_id(""), pbs.parse_job_id("\n")) == ("", "")


def test_a_name_of_slurm_that_is_not_the_hostname() -> None:
    about = "NodeName=a Arch=x NodeAddr=10.0.0.1 NodeHostName=one OS=Linux 5\nNodeName=b NodeHostName=two NodeAddr=x\n"
    assert slurm.own_name(about, "two.site.org", ()) == "b"
    assert slurm.own_name(about, "x", {"10.0.0.1"}) == "a"
    assert slurm.own_name(about, "x", ()) == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"nodes": 2}, "--nodes was given, which asks a scheduler for a job; say which scheduler: --launcher slurm"),
        ({"nodes": 2, "launcher": "local"}, "--nodes was given, which asks"),
        ({"time": 3, "partition": "a", "hosts": "a,b"}, "--time, --partition was given, .* leave out the hosts"),
        ({"launcher": "slurm", "time": "soon"}, "--time: received 'soon', expected minutes"),
        ({"launcher": "slurm", "time": 0}, "--time: received '0', expected minutes"),
        ({"launcher": "slurm", "time": True}, "time=True was given"),
        ({"launcher": "slurm", "nodes": 0}, "nodes=0 was given; expected an integer of at least 1"),
        ({"launcher": "slurm", "partition": "a b"}, "partition='a b' was given"),
        ({"launcher": "slurm", "job_args": "'"}, "--job-args: received .* as a shell reads them"),
        (
            {"launcher": "slurm", "job_args": "gpu"},
            "--job-args: received 'gpu', expected options that begin with a dash",
        ),
        ({"launcher": "slurm", "job_args": "--a='\n'"}, "without line ends"),
        ({"launcher": "slurm", "mpi": "mpich", "nodes": 2}, "does not start on several nodes by srun"),
    ],
)
def test_what_is_refused_before_a_job_is_submitted(
    arguments: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch, environment: Callable[..., None]
) -> None:
    environment(SLURM_JOB_ID=None)
    monkeypatch.setattr("xpulab.deploy.mpi.choice.find", lambda name: choice_found)
    with pytest.raises(UsageError, match=message):
        xpulab.XPUCluster(2, display="none", **arguments).plan(show=True)


choice_found = Found("/a/mpiexec", (4, 1, 4))


def test_in_an_allocation_no_other_job_is_asked_for(environment: Callable[..., None]) -> None:
    environment(SLURM_JOB_ID="7", SLURM_JOB_NODELIST="node0", SLURMD_NODENAME="node0")
    for launcher in (None, "slurm"):
        with pytest.raises(
            UsageError, match="--nodes was given, but this process runs in Slurm's job 7, whose nodes node0"
        ):
            xpulab.XPUCluster(2, nodes=2, launcher=launcher).plan()


def test_a_start_without_the_programs_of_the_scheduler(environment: Callable[..., None], tmp_path: Path) -> None:
    environment(PATH=str(tmp_path), SLURM_JOB_ID=None)
    for launcher, submits in (("slurm", "sbatch"), ("pbs", "qsub")):
        with pytest.raises(ClusterStartError, match=f"{submits} was not found on PATH; .*: module load {launcher}"):
            xpulab.XPUCluster(2, display="none", launcher=launcher).start()


def test_the_plan_of_a_job(
    tmp_path: Path, environment: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    environment(SLURM_JOB_ID=None, PATH=str(tmp_path))  # where no program submits a job
    words = ["plan", "-n", "3", "--launcher", "slurm", "--nodes", "2", "--time", "30", "--job-args=--gres=gpu:2"]
    assert cli.main([*words, "--show"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("Plan: 3 engines on 2 nodes of a job of Slurm\n  nothing was submitted; NODE1, JOB,")
    for line in ("#SBATCH --time=30", "#SBATCH --gres=gpu:2", "sbatch --parsable", "scancel JOB"):
        assert f"\n{line}\n" in f"{said}\n"
    assert "mpiexec -n 4 -print-all-exitcodes -iface INTERFACE -ppn 1 -hosts NODE1,NODE1,NODE2,ADDRESS " in said
    assert "--jobid=JOB --overlap" in said
    assert cli.main(words) == 0
    assert "add --show" in capsys.readouterr().out
    html = xpulab.XPUCluster(launcher="pbs", job_args="-A '<b>'").plan(show=True)._repr_html_()
    assert "#PBS -A &lt;b&gt;\n" in html


@pytest.mark.slow
def test_the_program_of_a_job_runs_as_long_as_it_hears_its_notebook() -> None:
    name = f"xpulab-test-{os.getpid()}"
    words = program("xpulab.deploy.jobs.holder")
    with (
        subprocess.Popen([*words, "hold", name, "--limit", "1"], stderr=subprocess.PIPE, text=True) as holding,
        subprocess.Popen([*words, "sign", name], stdin=subprocess.PIPE) as sign,
    ):
        assert sign.stdin is not None
        for _ in range(20):
            sign.stdin.write(holder.SIGN)
            sign.stdin.flush()
            time.sleep(0.1)
        assert holding.poll() is None
        _, said = holding.communicate(timeout=120)
        assert said == "xpulab: nothing was heard of the notebook for 1 s, so this job ends\n"
        assert holding.returncode == 1
        sign.stdin.write(holder.SIGN)
        sign.stdin.flush()
        assert sign.wait(120) == 0  # nobody hears it


def test_the_program_of_a_job_ends_with_its_notebook_and_hears_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"xpulab-test-{os.getpid()}"
    found: list[str] = []
    uid = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: uid + 1)
    thread = threading.Thread(target=lambda: found.append(holder.hold(name, 0.05)))
    thread.start()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            try:
                other.sendto(holder.END, f"\0{name}")
                break
            except ConnectionRefusedError:
                time.sleep(0.01)
    thread.join(120)
    assert found == ["xpulab: nothing was heard of the notebook for 0.5 s, so this job ends"]
