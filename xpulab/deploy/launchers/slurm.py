"""Commands on the nodes of a Slurm job, by srun.

Every command is a job step of its own. It shares the node's cores, memory and GPUs with the other steps of the job, and
so never waits for one of them.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from xpulab.exceptions import ClusterStartError

__all__ = ["Job", "Srun", "allocation", "config", "ending", "options", "state"]

_ANSWER = 10.0  # seconds that Slurm's controller has to answer

_STATE = 0.7  # seconds that it has to answer while a call waits to know why engines were lost

#: How a job ends, what srun then writes, and Slurm's states for it.
_ENDINGS = (
    ("reached its time limit", "DUE TO TIME LIMIT", ("TIMEOUT", "DEADLINE")),
    ("was preempted", "DUE TO PREEMPTION", ("PREEMPTED",)),
    ("lost a node", "DUE TO NODE FAILURE", ("NODE_FAIL",)),
    ("was cancelled", "CANCELLED AT", ("CANCELLED",)),
)


@dataclass(frozen=True)
class Job:
    """A job of Slurm in which this process runs.

    Attributes
    ----------
    id : str
    nodes : tuple of str
        Slurm's names of its nodes.
    here : str
        The name of the node on which this process runs; empty if Slurm has not started this process.
    """

    id: str
    nodes: tuple[str, ...]
    here: str


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
        """The command line that runs a command on the node, in its root folder."""
        return ["srun", *options(self.job), self.host, *words]


def options(job: str) -> list[str]:
    """srun's options for one process in a job; the node's name has to follow.

    They take precedence over variables such as ``SLURM_NTASKS``, which Slurm sets in a job for srun. With only the
    cores of one task, engines of a node would share one core.
    """
    one = ["--nodes=1", "--ntasks=1", "--ntasks-per-node=1"]
    return [f"--jobid={job}", "--overlap", *one, "--cpu-bind=none", "--mpi=none", "--chdir=/", "--quiet", "--nodelist"]


def allocation(variables: Mapping[str, str]) -> Job | None:
    """The job of Slurm in which a process with these environment variables runs; None if it runs in none.

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
    words = ["scontrol", "show", "hostnames", named]
    try:
        found = subprocess.run(words, capture_output=True, text=True, timeout=_ANSWER, check=True).stdout.split()
    except (OSError, subprocess.SubprocessError) as error:
        said = (getattr(error, "stderr", "") or str(error)).strip()
        raise ClusterStartError(
            f"SLURM_JOB_ID is {job}, but scontrol does not name the nodes {named!r} of this job: {said}\n"
            "to use this host only, type: %xpu_cluster start --launcher local"
        ) from None
    return Job(job, tuple(found), here)


def config() -> str:
    """Slurm's configuration as scontrol prints it; empty if it does not answer."""
    try:
        words = ["scontrol", "show", "config"]
        return subprocess.run(words, capture_output=True, text=True, timeout=_ANSWER, check=False).stdout
    except (OSError, subprocess.SubprocessError):
        return ""


def state(job: str) -> str:
    """What Slurm says of a job, such as "RUNNING" or "CANCELLED"; empty if it does not answer, or has forgotten it."""
    words = ["squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%T"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=_STATE, check=False)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


def ending(state: str, said: str) -> str:
    """How a job has ended: "was cancelled"; empty if it runs.

    Parameters
    ----------
    state : str
        What `state` returns. While the processes of a job end, it is always "COMPLETING".
    said : str
        What srun has written.
    """
    if state in ("", "RUNNING"):
        return ""
    for words, in_log, states in _ENDINGS:
        if in_log in said or state in states:
            return words
    return f"has ended ({state})"
