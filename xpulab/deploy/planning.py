"""Where the engines of a cluster go: what the user asked for, the plan, and the command line that starts them."""

from __future__ import annotations

import os
import platform
import shlex
from collections.abc import Iterable
from dataclasses import replace

from xpulab.deploy.jobs.submission import JobPlan, holding, wanted
from xpulab.deploy.launchers import LAUNCHERS
from xpulab.deploy.launchers import choice as schedulers
from xpulab.deploy.launchers.choice import SCHEDULERS
from xpulab.deploy.launchers.scheduler import Job, Wanted
from xpulab.deploy.launchers.ssh import CONNECT, HURRIED
from xpulab.deploy.mpi import choice
from xpulab.deploy.mpi.command import Command, RanksOfHost, split
from xpulab.deploy.network.addresses import Address, addresses
from xpulab.deploy.network.ports import Ports
from xpulab.deploy.network.ports import ports as ports_of
from xpulab.deploy.options import OPTIONS, StartOptions, in_groups
from xpulab.deploy.plan.plan import Offer, Plan, plan, require_valid
from xpulab.deploy.plan.probe import Probe, probe
from xpulab.deploy.processes.others import in_use
from xpulab.deploy.processes.settings import ENGINES, engines_shown
from xpulab.deploy.remote.hosts import interface_to, look
from xpulab.deploy.tasks.engines import Engines
from xpulab.exceptions import UsageError
from xpulab.sharing.program import program

__all__ = ["Planning"]


class Planning:
    """Where the engines of a cluster go: the plan that follows from its options.

    Parameters
    ----------
    engines : Engines

    Attributes
    ----------
    chosen : Plan or None
        The plan of the engines that run, or ran last.
    """

    def __init__(self, engines: Engines) -> None:
        self._engines = engines
        self.chosen: Plan | None = None

    @property
    def options(self) -> StartOptions:
        """The options of the cluster."""
        return self._engines.options

    def plan(self, *, show: bool = False) -> Plan:
        """Return which engine would run on which device, and which of these devices other clusters use. Starts nothing.

        If `start` would submit a job, its nodes are not known. The result then is the plan of the job, without devices.

        Parameters
        ----------
        show : bool
            Whether the plan has the command line that starts the engines, and the script of a job that is submitted.

        Raises
        ------
        UsageError
            If an argument of `XPUCluster` about hosts or a job has a wrong type or value.
        PlanError, DeviceNotFoundError
            If the engines cannot be placed.
        DeviceError
            If a driver crashes or hangs.
        """
        running = self.chosen if self._engines.running else None
        if running is None and (asked := self.requested()):
            return self._plan_of_job(asked, show)
        chosen = running or self.planned(*self.where())
        chosen = replace(chosen, others=self.others(chosen))
        if not show:
            return chosen
        command = self.command_of(chosen)
        return replace(chosen, command=engines_shown(command, chosen.n_processes))

    def _plan_of_job(self, asked: Wanted, show: bool) -> JobPlan:
        """Return what `start` would submit, and the other commands, with placeholders for what only the job knows."""
        options = self.options
        assert options.launcher is not None
        found = JobPlan((), (), (), scheduler=options.launcher, wanted=asked, engines=options.n)
        if not show:
            return found
        scheduler = schedulers.module(options.launcher)
        name = "xpulab-NAME"
        names = [f"NODE{number + 1}" for number in range(asked.nodes)]
        job = Job("JOB", tuple(names), "", options.launcher, submitted=True)
        n = options.n or asked.nodes
        sizes = [len(range(node, n, asked.nodes)) for node in range(asked.nodes)]
        ranks = [RanksOfHost(name, size) for name, size in zip(names, sizes, strict=True) if size]
        ranks.append(RanksOfHost("ADDRESS", 1))  # the helper rank
        reached = scheduler.launcher(names[-1], job, self.ssh_config)
        commands = {
            "submits it": shlex.join(scheduler.submission()),
            "runs xpulab's programs on a node": shlex.join(reached.command(program("MODULE"))),
            "starts the engines": engines_shown(self.command(ranks, "INTERFACE", options.variables, job), n + 1),
            "ends the job": shlex.join(scheduler.cancellation("JOB")),
        }
        script = scheduler.script(asked, name, holding("hold", name), os.path.abspath(f"{name}.log"))
        return replace(found, script=script, commands=commands)

    def command_of(self, chosen: Plan) -> Command:
        """MPI's command line for a plan."""
        return self.command(chosen.ranks_of_hosts, chosen.interface, chosen.environment_of_all, chosen.job)

    def command(
        self, ranks: list[RanksOfHost], interface: str, variables: Iterable[str] = (), job: Job | None = None
    ) -> Command:
        """MPI's command line. Ranks on other hosts get the variables with these names, and those of xpulab."""
        ours = [name for name in os.environ if name.startswith("XPULAB_")]
        names = [*ENGINES, *ours, *variables]
        mpi, extra = choice.require(self.options.mpi), split(self.options.mpi_args)
        return choice.command(mpi, ranks, interface or "lo", self.ssh_config, extra, names, job, self.ports)

    @property
    def local(self) -> bool:
        """Whether all engines run on this host, and no job is submitted for them.

        Raises
        ------
        UsageError, ClusterStartError
            As `plan`.
        """
        return not self.requested() and not self.where()[0]

    @property
    def ssh_config(self) -> str | None:
        """Path of the file with ssh's configuration; None for the user's and the system's."""
        return None if self.options.ssh_config is None else os.path.abspath(self.options.ssh_config)

    @property
    def ports(self) -> Ports | None:
        """The TCP ports that other hosts reach; None for any."""
        return ports_of(self.options.ports)

    @property
    def warnings(self) -> tuple[str, ...]:
        """The warnings of the running cluster's plan. They do not mention other clusters."""
        return self.chosen.warnings if self.chosen else ()

    def to_go_on(self, over: bool = False) -> str:
        """Return what to type after engines were lost for good; `over` says that their job has ended."""
        job = self.chosen.job if self.chosen else None
        if over and job is not None and not job.submitted:
            return "%xpu_cluster start --launcher local (for this host only), or start Jupyter in another job"
        options = self.options
        elsewhere = options.hosts or options.hostfile or job is not None or options.launcher in SCHEDULERS
        return "%xpu_cluster restart" if elsewhere else "%xpu_cluster start"

    def others(self, chosen: Plan) -> tuple[str, ...]:
        """Return a sentence for each other cluster of this user that uses cores or devices of a plan."""
        processes = self._engines.processes
        return in_use(chosen, processes.record.folder if processes else "")

    def require_settings(self) -> None:
        """Raise an error if an option has a wrong value, or if there is no such MPI."""
        self.options.require_valid()
        require_valid(self.options.n, self.options.variables)
        self._wanted()
        choice.find(choice.require(self.options.mpi))

    def started_early(self, elsewhere: bool) -> int:
        """Return the number of engines that start before the plan is made; 0 if the plan has to be made first.

        The plan has to be made first if engines may run on other hosts, or if the user sets variables, because it
        decides where engines run and which variables each gets; and if `n` is missing, not a number, or too large for
        the cores, because it decides on the number of engines or raises.
        """
        if self.options.variables or elsewhere:
            return 0
        n = self.options.n
        return n if isinstance(n, int) and 0 < n <= 2 * len(os.sched_getaffinity(0)) else 0

    def _wanted(self) -> Wanted:
        return wanted(self.options.nodes, self.options.time, self.options.partition, self.options.job_args)

    def _asks(self) -> str:
        """Return the options that ask a scheduler for a job, as users type them; empty if there are none."""
        given = (name for name in in_groups("job") if getattr(self.options, name) is not None)
        return ", ".join(OPTIONS[name].word for name in given)

    def where(self) -> tuple[list[Address], Job | None]:
        """Return the hosts that the user named, or the nodes of this process's job; none for this host alone.

        Raises
        ------
        UsageError
            If the arguments do not go together.
        ClusterStartError
            If the nodes of the job are not known, or this host is none of them.
        """
        options, asks = self.options, self._asks()
        named = addresses(options.hosts, options.hostfile)
        if options.launcher not in (None, *LAUNCHERS):
            raise UsageError(f"launcher={options.launcher!r} was given; expected one of {', '.join(LAUNCHERS)}")
        if options.launcher == "ssh" and not named:
            raise UsageError("launcher='ssh' was given without hosts; name them: --hosts node1,node2")
        if options.launcher in ("local", *SCHEDULERS) and named:
            raise UsageError(f"launcher={options.launcher!r} was given with hosts; leave out one of them")
        alone = named or options.launcher == "local"
        job = None if alone else schedulers.allocation(os.environ, options.launcher)
        if asks and job is not None:
            raise UsageError(
                f"{asks} was given, but this process runs in {schedulers.label(job)}, whose nodes "
                f"{', '.join(job.nodes)} are used; leave out {asks}, or start Jupyter outside of a job"
            )
        if asks and options.launcher not in SCHEDULERS:
            others = "leave out the hosts" if named else "say which scheduler"
            raise UsageError(
                f"{asks} was given, which asks a scheduler for a job; {others}: --launcher slurm {asks} ..."
            )
        nodes = named if job is None else self.nodes_of(job)
        return nodes, job if nodes else None

    def requested(self) -> Wanted | None:
        """Return the job that has to be submitted; None if the engines need none."""
        launcher = self.options.launcher
        if launcher not in SCHEDULERS or schedulers.allocation(os.environ, launcher) is not None:
            return None
        return self._wanted()

    def nodes_of(self, job: Job) -> list[Address]:
        """Return the nodes of a job; none if this host is the only one."""
        if job.nodes == (job.here,):
            return []
        return [Address(name) for name in job.nodes]

    def planned(self, named: list[Address], job: Job | None) -> Plan:
        """Return the plan for this host, or for these hosts, which are nodes of a job, or which ssh reaches.

        Raises
        ------
        ClusterStartError
            If engines cannot run on a host.
        """
        submitted = job is not None and job.submitted
        if not named:
            return replace(self._make_plan(probe(), submitted), job=job)
        connect = HURRIED if self._engines.replaces else CONNECT
        found = look(named, self.ssh_config, choice.require(self.options.mpi), job, connect, self.ports)
        found.require_ready()
        chosen = self._make_plan(found.offers(), submitted)
        others = [host.address for host in found.hosts if host.name in {rank.address for rank in chosen.ranks}]
        if not others:
            return chosen
        interface, address = interface_to(others[0])
        helper = platform.node() if chosen.ranks[0].address else ""
        return replace(chosen, interface=interface, address=address, job=job, helper=helper)

    def _make_plan(self, found: Probe | list[Offer], submitted: bool = False) -> Plan:
        """Return the plan. In a job that was submitted for these engines, more engines than devices are a mistake."""
        instead = "ask for more nodes: --nodes K" if submitted else "leave out --strict"
        options = self.options
        strict, env = True if submitted else options.strict, options.variables
        made = plan(found, n=options.n, devices=options.devices, strict=strict, env=env, instead=instead)
        if self.ports is not None:
            self.ports.require_enough(max(each.n for each in made.ranks_of_hosts))
        return made
