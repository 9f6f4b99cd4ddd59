"""Slurm: the script of a job, the command lines that submit, ask and cancel it, and commands on its nodes by srun.

Every command is a job step of its own. It shares the node's cores, memory and GPUs with the other steps of the job, and
so never waits for one of them.
"""

from __future__ import annotations

import re
import socket
import subprocess
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import psutil

from xpulab.deploy.launchers.scheduler import Job, Launcher, Look, Wanted, body, lines
from xpulab.exceptions import ClusterStartError

__all__ = [
    "BY_SSH",
    "INSTALL",
    "LABEL",
    "REACH",
    "UNKNOWN",
    "Srun",
    "advice",
    "allocation",
    "cancellation",
    "config",
    "ending",
    "ids_command",
    "launcher",
    "options",
    "own_name",
    "parse_job_id",
    "parse_state",
    "script",
    "starter",
    "state_command",
    "submission",
    "submitted_job",
]

LABEL = "Slurm"
BY_SSH = False
REACH = "srun"
UNKNOWN = "Invalid job id"
INSTALL = "before you start Jupyter, load your site's module: module load slurm"

_ANSWER = 10.0  # seconds that Slurm's controller has to answer

#: How a job ends, what srun then writes, and Slurm's states for it.
_ENDINGS = (
    ("reached its time limit", "DUE TO TIME LIMIT", ("TIMEOUT", "DEADLINE")),
    ("was preempted", "DUE TO PREEMPTION", ("PREEMPTED",)),
    ("lost a node", "DUE TO NODE FAILURE", ("NODE_FAIL",)),
    ("was cancelled", "CANCELLED AT", ("CANCELLED",)),
)


#: States in which a job has no nodes yet that can be used (squeue(1), JOB STATE CODES), and those in which it has.
_WAITING = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT")
_RUNNING = ("RUNNING", "SUSPENDED", "STOPPED", "SIGNALING", "RESIZING", "STAGE_OUT")

#: Reasons of a job that waits which end only if someone changes the job or the site's limits (squeue(1), JOB REASON
#: CODES).
_NEVER = re.compile(
    r"Partition(Node|Time)Limit|BadConstraints|(Account|QOS)NotAllowed|Invalid(Account|QOS)|DeadLine|MaxMemPerLimit"
    r"|(Assoc|QOS)Max\w+PerJob\w*|QOSMin\w+"
)

#: What sbatch says, or why a job waits for ever -> what to type.
_CURES = (
    (
        "Nodes?(Limit|PerJob)",
        "the partition has fewer nodes for a job, or some of its nodes are down; ask for fewer, --nodes K, or for "
        "another partition; type: !sinfo --summarize",
    ),
    (
        "TimeLimit|WallDuration",
        "the partition has less time for a job; ask for less, --time T, or for another partition; type: !sinfo "
        "--summarize",
    ),
    ("partition", "for the partitions of your site, type: !sinfo --summarize"),
    (
        "account",
        "for your accounts, type: !sacctmgr show associations user=$USER, and then add: --job-args=--account=A",
    ),
    ("time limit", "for the limits of the partitions, type: !sinfo --summarize"),
    ("node count|node configuration", "ask for fewer nodes, or for another partition; type: !sinfo --summarize"),
    ("option|argument", "for the options of sbatch, type: !man sbatch"),
)


@dataclass(frozen=True)
class Srun:
    """Starts commands on another node of a job.

    Attributes
    ----------
    host : str
        Slurm's name of the node.
    job : str
        The job's id.
    """

    host: str
    job: str

    def command(self, words: Sequence[str]) -> list[str]:
        """Return the command line that runs a command on the node, in its root folder."""
        return ["srun", *options(self.job), self.host, *words]


def options(job: str) -> list[str]:
    """srun's options for one process in a job; the node's name has to follow.

    They take precedence over variables such as ``SLURM_NTASKS``, which Slurm sets in a job for srun. With only the
    cores of one task, engines of a node would share one core.
    """
    one = ["--nodes=1", "--ntasks=1", "--ntasks-per-node=1"]
    return [f"--jobid={job}", "--overlap", *one, "--cpu-bind=none", "--mpi=none", "--chdir=/", "--quiet", "--nodelist"]


def script(wanted: Wanted, name: str, program: Sequence[str], output: str) -> str:
    """Return the script of a job, for `submission`.

    The job gets its nodes alone, with all cores, GPUs and memory, unless the user's own options, which follow and so
    take precedence, say otherwise: with --ntasks-per-node alone, Slurm would give it one core of each node. Slurm must
    not start it again, because the cluster that it served has then ended.
    """
    asked = [f"--job-name={name}", "--output=/dev/null", "--chdir=/", f"--nodes={wanted.nodes}", "--ntasks-per-node=1"]
    asked += ["--exclusive", "--mem=0", "--no-requeue"]
    asked += [f"--time={wanted.time}"] * bool(wanted.time) + [f"--partition={wanted.partition}"] * bool(
        wanted.partition
    )
    asked = [line for word in asked for line in lines("#SBATCH", [word])]
    own = lines("#SBATCH", wanted.extra)
    return "\n".join(["#!/bin/sh", *asked, *own, *body(program, output)])


def submission() -> list[str]:
    """Return the command line that submits the script on its standard input."""
    return ["sbatch", "--parsable"]


def parse_job_id(said: str) -> str:
    """Return the job's id from what the submission prints: "7", or "7;cluster"."""
    return said.strip().rpartition("\n")[2].partition(";")[0]


def ids_command(name: str) -> list[str]:
    """Return the command line that prints the ids of this user's jobs with a name."""
    return ["squeue", "--me", "--noheader", f"--name={name}", "--format=%i"]


def state_command(job: str) -> list[str]:
    """Return the command line that asks for a job's state, its reason, its expected start and its nodes."""
    return ["squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%T|%r|%S|%B|%N"]


def parse_state(said: str, log: str = "") -> Look:
    """Return what `state_command` has printed; `log` is what srun has written."""
    if not said.strip():
        return Look("ended", "has ended")  # Slurm forgets a job some minutes after its end
    state, reason, start, first, nodes = said.strip().splitlines()[0].split("|", 4)
    about = "" if reason in ("None", "") else f" ({reason})"
    if state in _WAITING:
        when = "" if start in ("N/A", "") or state != "PENDING" else f", expected to start at {start.replace('T', ' ')}"
        return Look("never" if _NEVER.fullmatch(reason) else "waiting", f"{state}{about}{when}")
    if state in _RUNNING:
        return Look("running", state + ("" if state == "RUNNING" else about), nodes, first)
    if state == "COMPLETING":
        if reason == "NonZeroExitCode":  # of the script, whose end ends the steps: srun then says CANCELLED, too
            return Look("ending", ending("FAILED", ""), nodes, first)
        how = ending(state, log)
        return Look("ending", "" if state in how else how, nodes, first)
    return Look("ended", ending(state, log), nodes, first)


def cancellation(job: str) -> list[str]:
    """Return the command line that ends a job."""
    return ["scancel", job]


def advice(refusal: str) -> str:
    """Return what to type after sbatch has refused a job in these words, or if a job waits for ever with them."""
    known = (cure for pattern, cure in _CURES if re.search(pattern, refusal, re.IGNORECASE))
    return next(
        known, "to see the script and sbatch's command line, type: %xpu_cluster plan with the same options, --show"
    )


def allocation(variables: Mapping[str, str]) -> Job | None:
    """Return the job of Slurm in which a process with these environment variables runs; None if it runs in none.

    Raises
    ------
    ClusterStartError
        If Slurm does not name the job's nodes.
    """
    if not (job := variables.get("SLURM_JOB_ID", "")):
        return None
    named = variables.get("SLURM_JOB_NODELIST", "")
    here = variables.get("SLURMD_NODENAME", "")
    if named and named == here:  # a container has no scontrol
        return Job(job, (here,), here)
    try:
        return Job(job, _hostnames(named), here)
    except (OSError, subprocess.SubprocessError) as error:
        raise ClusterStartError(
            f"SLURM_JOB_ID is {job}, but scontrol does not name the nodes {named!r} of this job: {_said(error)}\n"
            "to use this host only, type: %xpu_cluster start --launcher local"
        ) from None


def submitted_job(job: str, nodes: str) -> Job:
    """Return the submitted job with these nodes.

    Raises
    ------
    ClusterStartError
        If Slurm does not name the nodes.
    """
    try:
        known = _hostnames(nodes)
        about = _scontrol("show", "node", "--oneliner", nodes)
    except (OSError, subprocess.SubprocessError) as error:
        raise ClusterStartError(f"scontrol does not name the nodes {nodes!r} of job {job}: {_said(error)}") from None
    mine = {entry.address for entries in psutil.net_if_addrs().values() for entry in entries}
    return Job(job, known, own_name(about, socket.gethostname(), mine), "slurm", submitted=True)


def own_name(about: str, hostname: str, own: Collection[str]) -> str:
    """Slurm's name of the host with this hostname and these addresses; empty if it is none of the nodes.

    Parameters
    ----------
    about : str
        What ``scontrol show node --oneliner`` prints. Slurm's name of a node may differ from its hostname.
    hostname : str
    own : collection of str
    """
    for line in about.splitlines():
        words = dict(word.partition("=")[::2] for word in line.split())
        if words.get("NodeHostName") in (hostname, hostname.partition(".")[0]) or words.get("NodeAddr") in own:
            return words.get("NodeName", "")
    return ""


def launcher(host: str, job: Job, ssh_config: str | None) -> Launcher:
    """Return what starts commands with standard input and output on a node of a job."""
    return Srun(host, job.id)


def starter(job: Job) -> tuple[str, ...]:
    """Return the program, with its options, that starts MPI's own programs on a node."""
    return "srun", *options(job.id)


def _hostnames(nodes: str) -> tuple[str, ...]:
    return tuple(_scontrol("show", "hostnames", nodes).split())


def _scontrol(*words: str) -> str:
    return subprocess.run(["scontrol", *words], capture_output=True, text=True, timeout=_ANSWER, check=True).stdout


def _said(error: Exception) -> str:
    return str(getattr(error, "stderr", "") or error).strip()


def config() -> str:
    """Slurm's configuration as scontrol prints it; empty if it does not answer."""
    try:
        words = ["scontrol", "show", "config"]
        return subprocess.run(words, capture_output=True, text=True, timeout=_ANSWER, check=False).stdout
    except (OSError, subprocess.SubprocessError):
        return ""


def ending(state: str, said: str) -> str:
    """Return how a job has ended: "was cancelled"; empty if it runs.

    Parameters
    ----------
    state : str
        Slurm's word. While the processes of a job end, it is always "COMPLETING".
    said : str
        What srun has written, which counts until then only: a step is cancelled by every end of its job.
    """
    if state in ("", "RUNNING"):
        return ""
    for words, in_log, states in _ENDINGS:
        if state in states or (state == "COMPLETING" and in_log in said):
            return words
    return f"has ended ({state})"
