"""A Slurm of two nodes for tests: this machine, and a host of `machines`.

One munged and one slurmctld run on this machine, and a slurmd on each node. Their files are in a folder that all
nodes see. This needs root, and the packages slurm-wlm and munge.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
from machines import Host, Network

__all__ = ["HERE", "Slurm", "scheduler", "why_no_scheduler"]

#: The node's name of this machine.
HERE = "node0"

_TOOLS = (
    "munged",
    "slurmctld",
    "slurmd",
    "srun",
    "sbatch",
    "squeue",
    "scancel",
    "scontrol",
    "sinfo",
    "munge",
    "unmunge",
)
_START = 20.0  # seconds that the nodes have to be ready
_END = 10.0  # seconds that the daemons have to end

_CONFIG = """
ClusterName=xpulab
SlurmctldHost={machine}({address})
SlurmctldPort={port}
SlurmdPort={nodes_port}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={own}/munge.socket
CredType=cred/munge
StateSaveLocation={own}/state
SlurmdSpoolDir={own}/spool.%n
SlurmctldPidFile={own}/slurmctld.pid
SlurmdPidFile={own}/slurmd.%n.pid
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=2
SlurmctldParameters=idle_on_node_suspend
ReturnToService=2
KillWait=5
UnkillableStepTimeout=60
MailProg=/bin/true
PluginDir=/usr/lib/{multiarch}/slurm-wlm
NodeName={here} NodeAddr={address} NodeHostname={machine} CPUs=2 RealMemory=1000
NodeName={there} NodeAddr={there_address} NodeHostname={there} CPUs=2 RealMemory=1000
PartitionName=all Nodes={here},{there} Default=YES MaxTime=60 State=UP
"""

#: slurmd asks for control groups also if no plugin uses them, and a host of tests has none. It takes an empty folder.
_CGROUPS = "CgroupPlugin=cgroup/v1\nCgroupMountpoint={own}/cgroups\nCgroupAutomount=no\n"


def why_no_scheduler() -> str:
    """Why there can be no Slurm here; "" if there can."""
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    return f"{', '.join(missing)} not found; type: apt-get install slurm-wlm munge" if missing else ""


@dataclass(frozen=True)
class Slurm:
    """A running Slurm.

    Attributes
    ----------
    config : str
        Its configuration, for the variable SLURM_CONF.
    there : Host
        The node that is not this machine.
    """

    config: str
    there: Host

    @property
    def environment(self) -> dict[str, str]:
        """The environment of this process, with the variable by which Slurm's programs find this Slurm."""
        return {**os.environ, "SLURM_CONF": self.config}

    def run(self, *words: str) -> str:
        """Run one of Slurm's programs, and return what it prints."""
        done = subprocess.run(words, check=False, capture_output=True, text=True, env=self.environment)
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout

    def queue(self, job: str) -> str:
        """The state of a job that waits, runs, ends, or has ended a short time ago."""
        return self.run("squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%T").strip()

    def steps(self, job: str) -> list[str]:
        """The job's steps that run."""
        lines = self.run("squeue", "--noheader", "--steps", "--format=%i").splitlines()
        return [line.strip() for line in lines if line.strip().startswith(f"{job}.")]


def _port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@contextlib.contextmanager
def scheduler(hosts: Network) -> Iterator[Slurm]:
    """A context in which a Slurm runs on this machine and the first host. Nothing of it is left at its end."""
    there = hosts.hosts[0]
    own = Path(hosts.ssh_config).with_name("slurm")
    own.mkdir()
    daemons: list[subprocess.Popen[bytes]] = []
    config = own / "slurm.conf"
    multiarch = next(path.parent.name for path in Path("/usr/lib").glob("*/slurm-wlm"))
    config.write_text(
        _CONFIG.format(
            machine=socket.gethostname(), address=hosts.address, port=_port(), nodes_port=_port(), own=own,
            multiarch=multiarch, here=HERE, there=there.name, there_address=there.address,
        )
    )  # fmt: skip
    for name in ("state", "cgroups"):
        (own / name).mkdir()
    (own / "cgroup.conf").write_text(_CGROUPS.format(own=own))
    slurm = Slurm(str(config), there)
    key = own / "munge.key"
    key.touch(0o600)
    key.write_bytes(os.urandom(128))

    def start(*words: str) -> None:
        name = os.path.basename(words[0] if words[0] != "nsenter" else "slurmd-there")
        with open(own / f"{name}.log", "ab") as log:
            daemons.append(subprocess.Popen(words, stdout=log, stderr=log, env=slurm.environment, cwd="/"))

    try:
        names = {"socket": "socket", "pid-file": "pid", "seed-file": "seed", "log-file": "log"}
        files = [f"--{option}={own}/munge.{name}" for option, name in names.items()]
        start("munged", "--foreground", "--force", f"--key-file={key}", *files)
        _until((own / "munge.socket").exists, own)
        start("slurmctld", "-D", "-i", "-f", str(config))
        start("slurmd", "-D", "-N", HERE, "-f", str(config))
        start("nsenter", "-t", str(there.pid), "--all", "slurmd", "-D", "-N", there.name, "-f", str(config))
        _until(lambda: _ready(slurm), own)
        yield slurm
    finally:
        for daemon in reversed(daemons):
            for each in [*psutil.Process(daemon.pid).children(recursive=True), daemon]:
                with contextlib.suppress(psutil.Error, ProcessLookupError):
                    each.send_signal(signal.SIGKILL)
            daemon.wait()
        shutil.rmtree(own)


def _ready(slurm: Slurm) -> bool:
    words = ["sinfo", "--noheader", "--Node", "--format=%T"]
    done = subprocess.run(words, check=False, capture_output=True, text=True, env=slurm.environment)
    return done.stdout.split() == ["idle", "idle"]


def _until(condition: Callable[[], bool], own: Path) -> None:
    deadline = time.monotonic() + _START
    while not condition():
        assert time.monotonic() < deadline, "\n".join(path.read_text() for path in own.glob("*.log"))
        time.sleep(0.05)
