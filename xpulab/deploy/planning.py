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
from xpulab.deploy.mpi.command import Command, Ranks, split
from xpulab.deploy.network.addresses import Address, addresses
from xpulab.deploy.network.ports import Ports, ports
from xpulab.deploy.options import OPTIONS, Attribute, in_groups
from xpulab.deploy.plan.plan import Offer, Plan, plan
from xpulab.deploy.plan.probe import Probe, probe
from xpulab.deploy.processes.record import in_use
from xpulab.deploy.processes.settings import ENGINES, engines_shown
from xpulab.deploy.remote.hosts import interface_to, look
from xpulab.deploy.tasks.variables import VariablesOnEngines
from xpulab.deploy.watch.signals import interruptible
from xpulab.exceptions import UsageError
from xpulab.sharing.program import program

__all__ = ["PlannedEngines"]


class PlannedEngines(VariablesOnEngines):
    """The options of a cluster about its engines, and the plan that follows from them."""

    n = Attribute(lambda options: options.n)
    device_filter = Attribute(lambda options: options.devices, "devices")
    strict = Attribute(lambda options: options.strict)
    env = Attribute(lambda options: options.variables)
    hosts = Attribute(lambda options: options.hosts)
    hostfile = Attribute(lambda options: options.hostfile)
    ssh_config = Attribute(lambda options: options.ssh_config)
    launcher = Attribute(lambda options: options.launcher)
    nodes = Attribute(lambda options: options.nodes)
    time = Attribute(lambda options: options.time)
    partition = Attribute(lambda options: options.partition)
    job_args = Attribute(lambda options: options.job_args)
    mpi = Attribute(lambda options: options.mpi)
    mpi_args = Attribute(lambda options: options.mpi_args)
    ports = Attribute(lambda options: options.ports)
    _plan: Plan | None

    @interruptible("plan")
    def plan(self, *, show: bool = False) -> Plan:
        """Which engine would run on which device, and which of these devices other clusters use. Starts nothing.

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
        if not (self._plan and self.running) and (asked := self._requested()):
            return self._plan_of_job(asked, show)
        chosen = self._plan if self._plan and self.running else self._planned(*self._where())
        chosen = replace(chosen, others=self._others(chosen))
        if not show:
            return chosen
        command = self._command_of(chosen)
        return replace(chosen, command=engines_shown(command, chosen.n_processes))

    def _plan_of_job(self, asked: Wanted, show: bool) -> JobPlan:
        """What `start` would submit, and with placeholders for what only the job knows, the other command lines."""
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
        ranks = [Ranks(name, size) for name, size in zip(names, sizes, strict=True) if size]
        ranks.append(Ranks("ADDRESS", 1))  # the helper rank
        reached = scheduler.launcher(names[-1], job, self._ssh_config)
        commands = {
            "submits it": shlex.join(scheduler.submission()),
            "runs xpulab's programs on a node": shlex.join(reached.command(program("MODULE"))),
            "starts the engines": engines_shown(self._command(ranks, "INTERFACE", options.variables, job), n + 1),
            "ends the job": shlex.join(scheduler.cancellation("JOB")),
        }
        script = scheduler.script(asked, name, holding("hold", name), os.path.abspath(f"{name}.log"))
        return replace(found, script=script, commands=commands)

    def _command_of(self, chosen: Plan) -> Command:
        """MPI's command line for a plan."""
        return self._command(chosen.ranks_of_hosts, chosen.interface, chosen.environment_of_all, chosen.job)

    def _command(
        self, ranks: list[Ranks], interface: str, variables: Iterable[str] = (), job: Job | None = None
    ) -> Command:
        """MPI's command line. Ranks on other hosts get the variables with these names, and those of xpulab."""
        ours = [name for name in os.environ if name.startswith("XPULAB_")]
        names = [*ENGINES, *ours, *variables]
        mpi, extra = choice.require(self.options.mpi), split(self.options.mpi_args)
        return choice.command(mpi, ranks, interface or "lo", self._ssh_config, extra, names, job, self._ports)

    @property
    def local(self) -> bool:
        """Whether all engines run on this host, and no job is submitted for them.

        Raises
        ------
        UsageError, ClusterStartError
            As `plan`.
        """
        return not self._requested() and not self._where()[0]

    @property
    def _ssh_config(self) -> str | None:
        return None if self.options.ssh_config is None else os.path.abspath(self.options.ssh_config)

    @property
    def _ports(self) -> Ports | None:
        return ports(self.options.ports)

    @property
    def warnings(self) -> tuple[str, ...]:
        """The warnings of the running cluster's plan. They do not mention other clusters."""
        return self._plan.warnings if self._plan else ()

    def _to_go_on(self, over: bool = False) -> str:
        job = self._plan.job if self._plan else None
        if over and job is not None and not job.submitted:
            return "%xpu_cluster start --launcher local (for this host only), or start Jupyter in another job"
        options = self.options
        elsewhere = options.hosts or options.hostfile or job is not None or options.launcher in SCHEDULERS
        return "%xpu_cluster restart" if elsewhere else super()._to_go_on(over)

    def _others(self, chosen: Plan) -> tuple[str, ...]:
        return in_use(chosen, self._processes.record.folder if self._processes else "")

    def _require_settings(self) -> None:
        self.options.require_valid()
        self._wanted()
        choice.find(choice.require(self.options.mpi))

    def _started_early(self, elsewhere: bool) -> int:
        """Number of engines that start before the plan is made; 0 if the plan has to be made first.

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
        """The options that ask a scheduler for a job, as users type them; empty if there are none."""
        given = (name for name in in_groups("job") if getattr(self.options, name) is not None)
        return ", ".join(OPTIONS[name].word for name in given)

    def _where(self) -> tuple[list[Address], Job | None]:
        """The hosts that the user named, or the nodes of the job in which this process runs; none for this host alone.

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
        nodes = named if job is None else self._nodes_of(job)
        return nodes, job if nodes else None

    def _requested(self) -> Wanted | None:
        """The job that has to be submitted; None if the engines need none."""
        launcher = self.options.launcher
        if launcher not in SCHEDULERS or schedulers.allocation(os.environ, launcher) is not None:
            return None
        return self._wanted()

    def _nodes_of(self, job: Job) -> list[Address]:
        """The nodes of a job; none if this host is the only one."""
        if job.nodes == (job.here,):
            return []
        return [Address(name) for name in job.nodes]

    def _planned(self, named: list[Address], job: Job | None) -> Plan:
        """The plan for this host, or for these hosts, which are nodes of a job, or which ssh reaches.

        Raises
        ------
        ClusterStartError
            If engines cannot run on a host.
        """
        submitted = job is not None and job.submitted
        if not named:
            return replace(self._make_plan(probe(), submitted), job=job)
        connect = HURRIED if self._replaces else CONNECT
        found = look(named, self._ssh_config, choice.require(self.options.mpi), job, connect, self._ports)
        found.require_ready()
        chosen = self._make_plan(found.offers(), submitted)
        others = [host.address for host in found.hosts if host.name in {rank.address for rank in chosen.ranks}]
        if not others:
            return chosen
        interface, address = interface_to(others[0])
        helper = platform.node() if chosen.ranks[0].address else ""
        return replace(chosen, interface=interface, address=address, job=job, helper=helper)

    def _make_plan(self, found: Probe | list[Offer], submitted: bool = False) -> Plan:
        """The plan. In a job that was submitted for these engines, more engines than devices are a mistake."""
        instead = "ask for more nodes: --nodes K" if submitted else "leave out --strict"
        options = self.options
        strict, env = True if submitted else options.strict, options.variables
        made = plan(found, n=options.n, devices=options.devices, strict=strict, env=env, instead=instead)
        if self._ports is not None:
            self._ports.require_enough(max(each.n for each in made.ranks_of_hosts))
        return made
