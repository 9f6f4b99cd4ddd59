"""The schedulers by their names, and the place where their programs are run."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping

from xpulab.deploy.launchers import pbs, slurm
from xpulab.deploy.launchers.scheduler import Job, Look, Scheduler

__all__ = ["SCHEDULERS", "allocation", "asked", "label", "module"]

_MODULES: dict[str, Scheduler] = {"slurm": slurm, "pbs": pbs}

#: The names of the schedulers.
SCHEDULERS = tuple(_MODULES)

_ANSWER = 10.0  # seconds that a scheduler has to say a job's state


def module(name: str) -> Scheduler:
    """Return the module of a scheduler."""
    return _MODULES[name]


def label(job: Job) -> str:
    """Return a job in messages: "Slurm's job 7"."""
    return f"{module(job.scheduler).LABEL}'s job {job.id}"


def allocation(variables: Mapping[str, str], launcher: str | None = None) -> Job | None:
    """Return the job in which a process with these environment variables runs; None if it runs in none.

    Parameters
    ----------
    variables : mapping of str to str
    launcher : str, optional
        The name of the scheduler; by default any.

    Raises
    ------
    ClusterStartError
        If the scheduler does not name the job's nodes.
    """
    found = (each.allocation(variables) for name, each in _MODULES.items() if launcher in (None, name))
    return next((job for job in found if job is not None), None)


def asked(scheduler: str, job: str, log: str = "", timeout: float = _ANSWER) -> Look:
    """Return what a scheduler says of a job.

    Parameters
    ----------
    scheduler : str
    job : str
        The job's id.
    log : str
        What processes on the job's nodes have written.
    timeout : float
        Seconds after which a scheduler has not answered.

    Returns
    -------
    Look
        Its state is empty if the scheduler does not answer.
    """
    asking = module(scheduler)
    try:
        done = subprocess.run(asking.state_command(job), capture_output=True, text=True, timeout=timeout, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        return Look("", str(error))
    if done.returncode and re.search(asking.UNKNOWN, done.stderr):
        return Look("ended", "has ended")
    return asking.parse_state(done.stdout, log) if done.returncode == 0 else Look("", done.stderr.strip())
