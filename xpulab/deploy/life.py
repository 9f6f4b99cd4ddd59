"""The life of the engines of a cluster: their start, on which hosts and in which job, and their end."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Generic

from xpulab.deploy.jobs.submission import Submission
from xpulab.deploy.launchers import choice as schedulers
from xpulab.deploy.launchers.scheduler import Job, JobEnded, Wanted
from xpulab.deploy.mpi.command import HERE, RanksOfHost
from xpulab.deploy.network.addresses import Address
from xpulab.deploy.plan.plan import Plan
from xpulab.deploy.plan.probe import core_ranges
from xpulab.deploy.planning import Planning
from xpulab.deploy.processes.launched import Launched
from xpulab.deploy.processes.processes import Processes
from xpulab.deploy.processes.record import Record
from xpulab.deploy.registry import MemberT, Registry
from xpulab.deploy.surroundings import about_open_files, warn_of_packages
from xpulab.deploy.tasks.conversation import Conversation
from xpulab.deploy.tasks.engines import LOGS, Engines
from xpulab.deploy.tasks.rows import RowsOnEngines
from xpulab.exceptions import ClusterStartError, OversubscribedWarning, XpulabError, warn
from xpulab.report import progress
from xpulab.report.rendering import counted
from xpulab.sharing.descriptions import EngineDescription
from xpulab.sharing.signals import uninterrupted

__all__ = ["LifeOfEngines"]


class LifeOfEngines(Generic[MemberT]):
    """Starts and ends the engines of a cluster.

    Parameters
    ----------
    cluster : Member
    clusters : Registry
        The clusters of this process.
    engines : Engines
    planning : Planning
    tasks : Conversation
    rows : RowsOnEngines

    Attributes
    ----------
    seconds_to_start : float or None
        Seconds that the start took.
    submission : Submission or None
        The job that was submitted for the engines.
    """

    def __init__(
        self,
        cluster: MemberT,
        clusters: Registry[MemberT],
        engines: Engines,
        planning: Planning,
        tasks: Conversation,
        rows: RowsOnEngines,
    ) -> None:
        self._cluster, self._clusters = cluster, clusters
        self._engines, self._planning, self._tasks, self._rows = engines, planning, tasks, rows
        self.seconds_to_start: float | None = None
        self.submission: Submission | None = None
        self._last_words = ""

    @property
    def has_run(self) -> bool:
        """Whether engines have started."""
        return self.seconds_to_start is not None

    def start(self) -> None:
        """Start the engines, as `XPUCluster.start`."""
        self._engines.require_not_forked()
        engines, planning = self._engines, self._planning
        if engines.running:
            return
        options, engines.owner = engines.options, os.getpid()
        planning.require_settings()
        self._tasks.words_before = ""
        begun = time.monotonic()
        report = progress.TaskReport("xpulab: start the cluster")
        report.display = options.display
        with progress.open(report) as handle:
            say = _teller(handle)
            say("starting the controller and looking for devices")
            named, job = planning.where()
            asked = planning.requested()
            elsewhere = bool(named or asked)
            engines.processes = processes = Launched(
                engines.owner, options.name, silence=options.silence, hosts=elsewhere
            )
            try:
                if asked:
                    named, job = self._submitted(processes, asked, say)
                    elsewhere = bool(named)
                chosen = planning.planned(named, job) if elsewhere else None
                self._start_controller(processes, chosen, say)
                warn_of_packages()
                if n := planning.started_early(elsewhere):
                    processes.start_engines(n, {}, planning.command([RanksOfHost(HERE, n)], ""))
                planning.chosen = plan = chosen or planning.planned([], job)
                n = len(plan.ranks)
                handle.report.title, handle.report.total = f"xpulab: start {counted(n, 'engine')}", n
                for warning in plan.warnings if not handle.told else ():
                    warn(warning, OversubscribedWarning)
                self._await_engines(processes, plan, say)
                self.seconds_to_start = time.monotonic() - begun
                self._publish(processes)
            except BaseException as error:
                if cause := self._undo_start(error):
                    raise ClusterStartError(cause) from None
                raise
            handle.report.done = n
            handle.report.finish("finished", "\n".join([*plan.warnings, *self._about_others()]))
        engines.attached, engines.left = False, ""
        self._rows.watch_handles()
        self._clusters.activate(self._cluster)

    def _start_controller(self, processes: Launched, chosen: Plan | None, say: Callable[[str], None]) -> None:
        """Start the controller, and the relay if the plan has engines on other hosts; None is for this host alone."""
        if chosen is None:
            processes.start_controller(
                "", self._planning.ports
            )  # while the drivers are asked, which takes about as long
            return
        say("connecting to the other hosts")
        processes.start_relay(chosen, self._planning.ssh_config, self._engines.options.mpi)
        processes.start_controller(chosen.address, self._planning.ports)

    def _await_engines(self, processes: Launched, chosen: Plan, say: Callable[[str], None]) -> None:
        """Start the engines of the plan that have not been started, and wait until each of them answers."""
        engines = self._engines
        with processes.start(chosen, self._planning.command_of(chosen), engines.options.timeout, say):
            engines.facts = [answer["result"]["engine"] for answer in self._tasks.exchange("describe", {})]
        engines.open_board(processes)
        processes.watch([fact.pid for fact in engines.everyone if fact.here])
        engines.require_alive(processes)

    def _undo_start(self, error: BaseException) -> str:
        """End what a start has begun, after an error. Returns what has caused the error; empty if the error says it."""
        with uninterrupted():
            ended = str(error) if isinstance(error, JobEnded) else self._end_of_job()
            self.stop()
        self._clusters.failed(self._cluster)
        if ended and isinstance(error, XpulabError):
            return f"{ended}, before the engines had started\ntype: {self.to_go_on(over=True)}{LOGS}"
        said = about_open_files(error)
        return f"{said}\n{error}" if said else ""

    def _about_others(self) -> list[str]:
        """Return the messages about other clusters of this process that use the same cores or devices."""
        mine = _places(self._engines.facts)
        others = [other for other in self._clusters.running if other is not self._cluster and other.running]
        return [
            f"the cluster {other.label} of this process is still running and uses the same {_named(shared)}: together "
            "they are slower; if you do not need it, call its stop()"
            for other in others
            if (shared := mine & _places(other.facts))
        ]

    def _publish(self, processes: Launched) -> None:
        """Write the record with which other processes of this user find the cluster."""
        plan, options = self._planning.chosen, self._engines.options
        assert plan is not None
        settings = {**options.lasting(), "env": dict(options.variables)}
        del settings["detach"], settings["name"]  # the record itself has them
        processes.publish(
            detached=options.detach,
            settings=settings,
            size=self._engines.size,
            plan=plan,
            facts=self._engines.facts,
            seconds_to_start=self.seconds_to_start,
        )

    def _submitted(self, processes: Launched, asked: Wanted, say: Callable[[str], None]) -> tuple[list[Address], Job]:
        """Wait until a job runs that ends with this cluster; a job that the cluster has goes on. Returns its nodes."""
        if self.submission is not None and not self.submission.ended:
            self.submission.follow(processes.folder)
        else:
            launcher = self._engines.options.launcher
            assert launcher is not None
            self.submission = Submission(
                processes.folder, launcher, asked, self._engines.owner, self._planning.ssh_config
            )
        self._engines.job_over = False
        processes.keep_job(self.submission.pid)
        job = self.submission.wait(say)
        return self._planning.nodes_of(job), job

    def attach(self, record: Record, timeout: float) -> None:
        """Use the engines that another process started, as `XPUCluster.attach`."""
        engines = self._engines
        self.seconds_to_start, engines.attached = record.seconds_to_start, True
        self._planning.chosen, engines.facts = record.plan, record.facts
        engines.processes = processes = Processes(record)
        try:
            processes.attach(timeout)
            engines.open_board(processes)
        except BaseException:
            processes.leave()
            raise
        self._rows.watch_handles()
        self._clusters.activate(self._cluster)

    def detach(self) -> None:
        """Leave the engines, as `XPUCluster.detach`."""
        processes = self._engines.processes
        if processes is None:
            return
        self._engines.require_not_forked()
        if not self._engines.attached:
            processes.record.write(detached=True)
        self._engines.processes, self._engines.left = None, processes.record.name
        self._exit()
        processes.leave()
        if self.submission is not None:
            self.submission.leave()
            self.submission = None
        self._clusters.tell_of_an_end()

    def stop(self) -> None:
        """End the engines, as `XPUCluster.stop`."""
        self._engines.require_not_forked()
        self._engines.interrupted = None
        self.close(on_purpose=True)

    def restart(self) -> None:
        """End the engines, and start new ones, as `XPUCluster.restart`."""
        self._engines.require_not_forked()
        self._engines.interrupted = None
        self.close(on_purpose=True, keep_job=True)
        self.start()

    def close(self, on_purpose: bool, keep_job: bool = False) -> None:
        """End all processes, as `Life.close` says."""
        processes, self._engines.processes = self._engines.processes, None
        self._exit()
        if keep_job and self.submission is not None and self._end_of_job():
            self._engines.job_over, keep_job = True, False
        with uninterrupted():
            if processes is not None:
                self._last_words = processes.logs()
                processes.stop(on_purpose, keep_job)
            if not keep_job:
                self.abandon()

    def abandon(self) -> None:
        """End a job that was kept for new engines which are not started. Does nothing if there is none."""
        if self.submission is not None:
            self.submission.end()
            self.submission = None
        self._clusters.tell_of_an_end()

    def _end_of_job(self) -> str:
        """Return how the job that was submitted for the engines has ended; empty if it runs, or if there is none."""
        if self.submission is None or self.submission.job is None:
            return ""
        job, processes = self.submission.job, self._engines.processes
        look = schedulers.asked(job.scheduler, job.id, processes.logs() if processes else "")
        if look.state in ("ending", "ended"):
            return self.submission.ended_soon() or f"{schedulers.label(job)} {look.words or 'has ended'}"
        return ""

    def _exit(self) -> None:
        """Forget the cluster: it has stopped, or this process no longer uses it."""
        self._clusters.forget(self._cluster)
        self._engines.close_board()
        self._rows.forget_handles()

    def logs(self, lines: int = 40) -> str:
        """Return the last log lines of the controller and the engines, and what the ranks printed in the last cell.

        After `stop`, these are the lines of the cluster that was stopped. After engines were lost, the lines of the
        lost engines follow those of the new engines.

        Parameters
        ----------
        lines : int
            Number of lines of each log.

        Returns
        -------
        str
        """
        processes = self._engines.processes
        words = processes.logs(lines) if processes else self._last_words
        if before := self._tasks.words_before:
            words += f"\n=== before new engines were started\n{before}"
        return words

    def to_go_on(self, over: bool = False) -> str:
        """Return what to type after engines were lost for good; `over` says that their job has ended."""
        return self._planning.to_go_on(over)


def _places(facts: list[EngineDescription]) -> set[tuple[str, int | str]]:
    """Return what the engines use on their hosts: the cores of CPU devices, and the selectors of all other devices."""
    return {
        (fact.host, place)
        for fact in facts
        for place in (fact.cores if fact.device.device_type == "cpu" else [fact.selector])
    }


def _named(places: set[tuple[str, int | str]]) -> str:
    """Return the cores and devices as text for messages."""
    cores = sorted({place for _, place in places if isinstance(place, int)})
    devices = sorted({place for _, place in places if isinstance(place, str)})
    return " and ".join([f"cores {core_ranges(cores)}"] * bool(cores) + devices)


def _teller(handle: progress.ProgressHandle[progress.TaskReport]) -> Callable[[str], None]:
    def say(message: str) -> None:
        handle.report.message = message
        handle.update()

    return say
