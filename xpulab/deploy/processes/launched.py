"""Start the processes of a cluster: ipyparallel's controller, and one engine per rank through mpiexec.

`xpulab.deploy.processes.settings` has what ipyparallel is told.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import psutil

from xpulab._version import __version__
from xpulab.deploy.launchers.scheduler import JobEnded
from xpulab.deploy.mpi import choice
from xpulab.deploy.mpi.command import LIBMPI, Command
from xpulab.deploy.network.ports import Ports
from xpulab.deploy.plan.plan import Plan
from xpulab.deploy.processes.processes import JOB, RELAY, Ended, Processes
from xpulab.deploy.processes.record import Record, identity
from xpulab.deploy.processes.settings import controller_settings, engine_settings
from xpulab.deploy.remote import relay
from xpulab.deploy.watch.starting import Starting
from xpulab.exceptions import ClusterStartError
from xpulab.sharing.folder import ALONE
from xpulab.sharing.owner import watched
from xpulab.sharing.program import program
from xpulab.sharing.signals import interrupted_after

__all__ = ["Launched"]


class Launched(Processes):
    """The processes of a cluster that this process starts.

    Parameters
    ----------
    owner : int
        Pid of the process with which all of them end unless it detaches the cluster; 0 for none.
    name : str, optional
        Name under which other processes find the cluster.
    silence : float
        Seconds that an engine may stand still while it starts.
    hosts : bool
        Whether engines may run on other hosts.
    """

    def __init__(self, owner: int, name: str | None = None, *, silence: float, hosts: bool = False) -> None:
        from xpulab.deploy.processes.parallel import controls

        super().__init__(Record.create(name, owner, __version__, hosts))
        self._owner = owner
        self._silence = silence
        self._relay: subprocess.Popen[bytes] | None = None
        self._starting = Starting(silence)
        self._deadline = float("inf")  # of the start
        self._cluster = controls(self.folder)

    def keep_job(self, pid: int) -> None:
        """Watch the keeper of the job in which the engines run; `stop` then has the job ended.

        Parameters
        ----------
        pid : int
            Pid of the keeper.
        """
        self._watched[JOB] = (pid, os.pidfd_open(pid))

    def start_relay(self, plan: Plan, ssh_config: str | None, mpi: str) -> None:
        """Start the relay, which starts the agents of the other hosts. Does nothing without other hosts.

        Parameters
        ----------
        plan : Plan
        ssh_config : str or None
            File with ssh's configuration.
        mpi : str
            Name of the MPI.
        """
        if not plan.interface:
            return
        options = relay.Options(
            hosts=list(dict.fromkeys(rank.address for rank in plan.ranks if rank.address)),
            ssh_config=ssh_config,
            job=plan.job,
            owner=self._owner,
            interface=plan.interface,
            mpi=mpi,
            helped=bool(plan.helper),
            silence=self._silence,
        )
        options.write(self.folder)
        (self.folder / "log").mkdir(exist_ok=True)
        with open(self.folder / "log" / "relay.log", "wb") as log, interrupted_after():
            self._relay = subprocess.Popen(
                program("xpulab.deploy.remote.relay", str(self.folder)),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # a terminal's Ctrl-C must not reach it
            )
            self._watched[RELAY] = (self._relay.pid, watched(self._relay.pid))

    def start_controller(self, address: str, ports: Ports | None = None) -> None:
        """Start the controller without waiting for it. `start` waits until it is ready.

        Parameters
        ----------
        address : str
            Address of this host at which engines of other hosts reach it; empty if there are none.
        ports : Ports, optional
            Ports on which it listens there; by default any.
        """
        self._cluster.update_config(controller_settings(self.folder, self._owner, address, ports))
        with interrupted_after():  # between the two, nobody would end the process
            self._cluster.start_controller_sync()
            pid = self._cluster.controller.process.pid
            self._watched["controller"] = (pid, watched(pid))

    def start_engines(self, n: int, variables: Mapping[str, str], command: Command, helped: bool = False) -> None:
        """Start mpiexec and the engines without waiting for them, before their devices are chosen.

        The engines import the modules that do not depend on the device, and wait until `start` tells them their device.

        Parameters
        ----------
        n : int
            Number of engines, with the helper rank.
        variables : mapping of str to str
            The user's environment variables for all engines.
        command : Command
            MPI's command line.
        helped : bool
            Whether one of the ranks is the helper rank.
        """
        self._mpi = choice.module(command.mpi)
        self._cluster.update_config(
            engine_settings(self.folder, self._owner, variables, command, n, self._relay is not None, helped)
        )
        with interrupted_after():
            self._cluster.start_engines_sync(n)
            pid = self._cluster.engine_set.process.pid
            self._watched["mpiexec"] = (pid, watched(pid))

    @contextlib.contextmanager
    def start(self, plan: Plan, command: Command, timeout: float, progress: Callable[[str], None]) -> Iterator[None]:
        """Start the engines if they were not started before, tell each its device, and wait until every rank is ready.

        The start ends with the context, in which the ranks describe themselves; `require_started` is for this wait.

        Parameters
        ----------
        plan : Plan
        command : Command
            MPI's command line.
        timeout : float
            Seconds after which the start fails.
        progress : callable
            Called with a text for each step.

        Raises
        ------
        ClusterStartError
            If an engine does not start; the message has the logs, and no process is left running.
        JobEnded
            If the job has ended in which engines were to run.
        """
        self._deadline = time.monotonic() + timeout
        n = len(plan.ranks)
        try:
            progress("starting mpiexec and the engines")
            self._place(plan)
            if "mpiexec" not in self._watched:
                self.start_engines(plan.n_processes, plan.environment_of_all, command, bool(plan.helper))
            self._connect(self._deadline)
            known = -1
            while len(self.client.ids) < n:
                if len(self.client.ids) != known:
                    known = len(self.client.ids)
                    progress(f"{known} of {n} engines are ready")
                self._still_starting(self._deadline)
                time.sleep(0.02)
            yield
        except BaseException as error:
            words, alone = self.logs(), self._alone()
            lost = self.lost_on_hosts() if isinstance(error, Ended) else None
            self.stop()
            if isinstance(error, Ended) and alone:
                raise ClusterStartError(alone) from None
            if lost and lost.job:
                raise JobEnded(lost.why) from None
            if isinstance(error, Ended):
                what = f"{lost.why}; the log of all processes:" if lost and lost.why else str(error)
                cure = "to look for a cause, type: %xpu_cluster doctor"
                if command.own_library:
                    named = f"{LIBMPI} names {command.environment[LIBMPI]}"
                    cure = f"{named}, which may not go with {command.words[0]}; {cure}"
                raise ClusterStartError(f"{what}\n{words}\n{cure}") from None
            raise

    def _place(self, plan: Plan) -> None:
        """Write the file that the engines wait for, with the variables, cores and device of each rank."""
        ranks = [
            {"environment": plan.environment(p.rank), "cores": list(p.cores), "selector": p.selector}
            for p in plan.ranks
        ]
        whole = self.folder / "placements.json"
        part = whole.with_suffix(".part")
        part.write_text(json.dumps(ranks))
        part.rename(whole)

    def require_started(self) -> None:
        self._still_starting(self._deadline)

    def _status_of_mpiexec(self) -> int | None:
        with contextlib.suppress(psutil.Error):
            status: int | None = self._cluster.engine_set.process.wait(0)
            return status
        return None

    def _alone(self) -> str:
        """Return what a rank has written if mpiexec and the library of MPI do not belong together; otherwise ""."""
        with contextlib.suppress(FileNotFoundError):
            return (self.folder / ALONE).read_text()
        return ""

    def _still_starting(self, deadline: float) -> None:
        super()._still_starting(deadline)
        if self._alone():
            raise Ended
        if what := self._starting.lost(lambda: self._pids_of("mpiexec")):
            raise Ended(f"{what} while the cluster was starting; the log of all processes:")

    def publish(self, **about: Any) -> None:
        """Complete the record with which other processes of this user find the cluster, after it has started.

        Parameters
        ----------
        **about : Any
            Further attributes of the record.
        """
        pids = {name: identity(pid) for name, (pid, _) in self._watched.items()}
        self.record = self.record.write(processes=pids, **about)

    def leave(self) -> None:
        """Disconnect from the processes, which keep running or have been stopped."""
        super().leave()
        launchers = (self._cluster.controller, self._cluster.engine_set)
        processes = [getattr(launcher, "_popen_process", None) for launcher in launchers]
        _let_go.extend(each for each in (self._relay, *processes) if each is not None and each.poll() is None)


#: Detached processes, which keep running after this one. The list keeps the Popen objects, because Python warns if it
#: deletes the Popen of a running process.
_let_go: list[Any] = []
