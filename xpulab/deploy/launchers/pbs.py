"""PBS: the script of a job, the command lines that submit, ask and delete it, and commands on its nodes by ssh.

It follows the documents of OpenPBS and PBS Professional: the manual pages qsub(1B), qstat(1B), qdel(1B), qselect(1B),
pbs_job_attributes(7B) and pbs_tmrsh(8B), and for ``select`` and ``place`` "Requesting Resources and Placing Jobs" in
qsub(1B). No machine of xpulab's developers has PBS, so this was tested against these texts only.

pbs_tmrsh starts a task on a node of the job, but has no standard input, and writes what the task prints into the
output of the job (pbs_tmrsh(8B), "Output and Error"). So xpulab's own programs, which talk with each other, run by ssh,
and pbs_tmrsh starts MPI's programs if this process runs in the job.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from xpulab.deploy.launchers.scheduler import Job, Launcher, Look, Wanted, body, lines, seconds
from xpulab.deploy.launchers.ssh import Ssh
from xpulab.deploy.network.addresses import is_here
from xpulab.exceptions import ClusterStartError

__all__ = [
    "BY_SSH",
    "INSTALL",
    "LABEL",
    "REACH",
    "UNKNOWN",
    "advice",
    "allocation",
    "cancellation",
    "hosts",
    "ids_command",
    "launcher",
    "parse_job_id",
    "parse_state",
    "script",
    "starter",
    "state_command",
    "submission",
    "submitted_job",
    "walltime",
]

LABEL = "PBS"
BY_SSH = True
REACH = "ssh"
UNKNOWN = "Unknown Job Id|has finished"
INSTALL = "before you start Jupyter, load your site's module: module load pbs"

#: Letters of job_state (qstat(1B), column S).
_WAITING = {"Q": "queued", "H": "held", "W": "waiting for its start time", "T": "being moved", "M": "moved"}
_RUNNING = {"R": "running", "S": "suspended", "U": "suspended", "B": "running"}

#: How the scheduler's comment on a job begins that asks for more than the site has (qstat(1B), -s).
_NEVER = "Can Never Run"

_ATTRIBUTE = re.compile(r"^\s+([\w.]+) = (.*)$", re.MULTILINE)

#: What qsub says -> what to type.
_CURES = (
    ("queue", "for the queues of your site, type: !qstat -Q"),
    ("account|project|group", "add your account: --job-args='-A ACCOUNT', or your project: --job-args='-P PROJECT'"),
    ("limit|walltime|resource", "for the limits of the queues, type: !qstat -Qf"),
    ("option|usage|illegal", "for the options of qsub, type: !man qsub"),
)


def script(wanted: Wanted, name: str, program: Sequence[str], output: str) -> str:
    """Return the script of a job, for `submission`.

    Each node is a chunk with a host of its own that no other job uses (qsub(1B): place=scatter:exclhost). The number of
    cores of a chunk counts for the queue only, and a user gives another with ``--job-args="-l select=2:ncpus=64"``,
    which follows and so takes precedence. PBS must not run the job again (-r n), because the cluster that it served has
    then ended.
    """
    asked = ["-N", name, "-j", "oe", "-o", "/dev/null", "-r", "n"]
    asked += ["-l", f"select={wanted.nodes}:ncpus=1", "-l", "place=scatter:exclhost"]
    asked += ["-l", f"walltime={walltime(wanted.time)}"] if wanted.time else []
    asked += ["-q", wanted.partition] if wanted.partition else []
    own = wanted.extra
    if any(word.startswith(("select=", "-lselect=")) for word in own):  # PBS refuses a second one
        place = asked.index(f"select={wanted.nodes}:ncpus=1")
        del asked[place - 1 : place + 1]
    return "\n".join(["#!/bin/sh", *lines("#PBS", asked), *lines("#PBS", own), *body(program, output)])


def walltime(time: str) -> str:
    """Return a time limit in PBS's form, hours:minutes:seconds (pbs_resources(7B), walltime)."""
    hours, rest = divmod(seconds(time), 3_600)
    return f"{hours:02}:{rest // 60:02}:{rest % 60:02}"


def submission() -> list[str]:
    """Return the command line that submits the script on its standard input (qsub(1B), "... from standard input").

    With -f, qsub leaves no process in the background that would speak for the user's later jobs.
    """
    return ["qsub", "-f"]


def parse_job_id(said: str) -> str:
    """Return the job's id from what qsub prints: "7.server"."""
    return said.strip().rpartition("\n")[2]


def ids_command(name: str) -> list[str]:
    """Return the command line that prints the ids of this user's jobs with a name."""
    return ["qselect", "-N", name]


def state_command(job: str) -> list[str]:
    """Return the command line that asks for a job's attributes, one on each line; -x asks for finished jobs, too."""
    return ["qstat", "-x", "-f", "-w", job]


def parse_state(said: str, log: str = "") -> Look:
    """Return what `state_command` has printed.

    The comment has the scheduler's reason, and the attribute ``estimated`` the expected start if PBS has computed it
    (pbs_job_attributes(7B)).
    """
    about = dict(_ATTRIBUTE.findall(said))
    if not (state := about.get("job_state", "")):
        return Look("")
    comment = f" ({about['comment']})" if about.get("comment") else ""
    if state in _WAITING:
        start = about.get("estimated.start_time", "")
        possible = not about.get("comment", "").startswith(_NEVER)
        return Look(
            "waiting" if possible else "never",
            f"{_WAITING[state]}{comment}{f', expected to start at {start}' if start else ''}",
        )
    nodes = about.get("exec_host", "")
    if state in _RUNNING:
        return Look("running", _RUNNING[state], nodes, next(iter(hosts(nodes)), ""))
    return Look("ending") if state == "E" else Look("ended", _ending(about.get("Exit_status", ""), comment), nodes)


def _ending(status: str, comment: str) -> str:
    """Return how a job has ended, from its exit status: 128 or 256 and the number of the signal that has ended it."""
    if status.isdecimal() and int(status) in (128 + 9, 128 + 15, 256 + 9, 256 + 15):
        return "was deleted, or reached a limit"
    return f"has ended (exit status {status}{comment})" if status else f"has ended{comment}"


def hosts(nodes: str) -> tuple[str, ...]:
    """Return the hosts of ``exec_host``, each once: "a/0*16+b/0*16" (qstat(1B), "Job Status in Long Format")."""
    return tuple(dict.fromkeys(part.partition("/")[0].strip() for part in nodes.split("+") if part.strip()))


def cancellation(job: str) -> list[str]:
    """Return the command line that ends a job."""
    return ["qdel", job]


def advice(refusal: str) -> str:
    """Return what to type after qsub has refused a job in these words, or if a job waits for ever with them."""
    known = (cure for pattern, cure in _CURES if re.search(pattern, refusal, re.IGNORECASE))
    return next(
        known, "to see the script and qsub's command line, type: %xpu_cluster plan with the same options, --show"
    )


def allocation(variables: Mapping[str, str]) -> Job | None:
    """Return the job of PBS in which a process with these environment variables runs; None if it runs in none.

    PBS_NODEFILE names the file with the job's nodes, with a line for each process of MPI (qsub(1B)).

    Raises
    ------
    ClusterStartError
        If the file cannot be read.
    """
    job, path = variables.get("PBS_JOBID", ""), variables.get("PBS_NODEFILE", "")
    if not job or not path:
        return None
    try:
        nodes = tuple(dict.fromkeys(Path(path).read_text().split()))
    except OSError as error:
        raise ClusterStartError(
            f"PBS_JOBID is {job}, but the file of its nodes, PBS_NODEFILE, cannot be read: {error}\n"
            "to use this host only, type: %xpu_cluster start --launcher local"
        ) from None
    return Job(job, nodes, next(filter(is_here, nodes), ""), "pbs")


def submitted_job(job: str, nodes: str) -> Job:
    """Return the submitted job with these nodes, as ``exec_host`` has them."""
    found = hosts(nodes)
    return Job(job, found, next(filter(is_here, found), ""), "pbs", submitted=True)


def launcher(host: str, job: Job, ssh_config: str | None) -> Launcher:
    """Return what starts commands with standard input and output on a node of a job."""
    return Ssh(host, ssh_config)


def starter(job: Job) -> tuple[str, ...]:
    """pbs_tmrsh if this process runs in the job, and so is known to PBS there; otherwise nothing, which means ssh."""
    found = shutil.which("pbs_tmrsh")
    return (found,) if found and not job.submitted and os.environ.get("PBS_JOBID") == job.id else ()
