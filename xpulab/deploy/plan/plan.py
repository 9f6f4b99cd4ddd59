"""Which engine runs on which device, tile and cores: computed from the result of the probe alone."""

from __future__ import annotations

import itertools
import numbers
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from xpulab.deploy.launchers import choice as schedulers
from xpulab.deploy.launchers.scheduler import Job
from xpulab.deploy.mpi.command import HERE, RanksOfHost
from xpulab.deploy.plan.probe import DeviceInfo, Probe, core_ranges
from xpulab.deploy.plan.slots import Idle, Slot, choose
from xpulab.exceptions import DeviceNotFoundError, PlanError
from xpulab.libraries import oneapi
from xpulab.report.rendering import Displayed, block, counted, escape, format_size, plain, table_html, table_text

__all__ = ["Idle", "Offer", "Placement", "Plan", "plan", "require_valid"]


@dataclass(frozen=True)
class Placement:
    """Where one engine runs.

    Attributes
    ----------
    rank : int
        MPI rank of the engine.
    host : str
        Name of the machine.
    address : str
        The machine as ssh or Slurm knows it; empty for the notebook's.
    device : DeviceInfo
    tile : int or None
        Number of the tile (SYCL sub-device); None for the whole device.
    selector : str
        The device or tile in the form of ``ONEAPI_DEVICE_SELECTOR``.
    cores : tuple of int
        Logical CPUs of this engine.
    memory : int
        The engine's share of the device's memory in bytes; for a CPU, its share of the host's free memory.
    shared : bool
        Whether another engine uses the same GPU or one of the same cores.
    variables : dict of str to str
        Environment variables that the user sets for this engine.
    """

    rank: int
    host: str
    device: DeviceInfo
    tile: int | None
    selector: str
    cores: tuple[int, ...]
    memory: int
    shared: bool
    variables: Mapping[str, str] = field(default_factory=dict)
    address: str = ""


@dataclass(frozen=True)
class Offer:
    """A host on which engines may run.

    Attributes
    ----------
    probe : Probe
        Its devices, cores and memory.
    address : str
        The host as ssh or Slurm knows it; empty for the notebook's.
    slots : int or None
        Number of engines that the user gives it; None if its devices decide.
    """

    probe: Probe
    address: str = ""
    slots: int | None = None


@dataclass(frozen=True)
class Plan(Displayed):
    """The result of `plan`. A notebook shows it as a table.

    Attributes
    ----------
    ranks : tuple of Placement
        The placements of the engines, in the order of the ranks.
    warnings : tuple of str
        One text for each group of engines that shares cores or a GPU.
    idle : tuple of Idle
        The devices and tiles that no engine uses.
    others : tuple of str
        A sentence for each other cluster of this user that uses some of these cores and GPUs.
    command : str
        The command line that starts the engines, as a shell takes it, if it was asked for.
    interface, address : str
        The network interface of the notebook's host that leads to the other hosts, and its address there; empty if all
        engines run on the notebook's host.
    job : Job or None
        The scheduler's job whose nodes the hosts are.
    helper : str
        Name of the notebook's host, if no engine runs there: one more rank there carries rows to the engines.
    """

    ranks: tuple[Placement, ...]
    warnings: tuple[str, ...]
    idle: tuple[Idle, ...]
    others: tuple[str, ...] = ()
    command: str = ""
    interface: str = ""
    address: str = ""
    job: Job | None = None
    helper: str = ""

    def environment(self, rank: int) -> dict[str, str]:
        """Return the environment variables that the process of a rank needs before it loads its runtimes.

        Parameters
        ----------
        rank : int
            The number of the rank.
        """
        placement = self.ranks[rank]
        return {**placement.variables, **oneapi.engine_environment(placement.selector)}

    @property
    def environment_of_all(self) -> dict[str, str]:
        """The user's variables that are the same on all ranks; they are set before a process starts."""
        first, *others = (rank.variables for rank in self.ranks)
        return {name: value for name, value in first.items() if all(o.get(name) == value for o in others)}

    @property
    def ranks_of_hosts(self) -> list[RanksOfHost]:
        """The hosts in the order of the ranks, by the names or addresses with which mpiexec reaches them."""
        here = self.address or HERE
        counts = Counter(rank.address or here for rank in self.ranks)  # the ranks of a host follow each other
        return [RanksOfHost(host, n) for host, n in counts.items()] + [RanksOfHost(here, 1)] * bool(self.helper)

    @property
    def n_processes(self) -> int:
        """Number of ranks that mpiexec starts: the engines, and the helper rank as the last."""
        return len(self.ranks) + bool(self.helper)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-serialisable values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Plan:
        """Return the plan that `to_dict` has described.

        Parameters
        ----------
        content : mapping
            What `to_dict` returned; lists may stand for tuples.
        """

        def on_device(part: Mapping[str, Any]) -> dict[str, Any]:
            return {**part, "device": DeviceInfo(**part["device"])}

        return cls(
            tuple(Placement(**{**on_device(rank), "cores": tuple(rank["cores"])}) for rank in content["ranks"]),
            tuple(content["warnings"]),
            tuple(Idle(**on_device(idle)) for idle in content["idle"]),
            tuple(content.get("others", ())),
            interface=content.get("interface", ""),
            address=content.get("address", ""),
            job=Job.from_dict(job) if (job := content.get("job")) else None,
            helper=content.get("helper", ""),
        )

    def __str__(self) -> str:
        table = table_text(_HEADER, self._rows(), _ALIGN)
        command = [f"\n{plain(self.command)}"] * bool(self.command)
        return "\n".join([self._title, table, *(f"  {plain(note)}" for note in self._notes()), *command])

    def _repr_html_(self) -> str:
        table = table_html(_HEADER, self._rows(), _ALIGN, caption=self._title)
        notes = [f'<div class="xpu-note">{escape(note)}</div>' for note in self._notes()]
        return block("plan of engines", [table, *notes, *[f"<pre>{escape(self.command)}</pre>"] * bool(self.command)])

    def _rows(self) -> list[tuple[object, ...]]:
        rows = [*map(_row, self.ranks)]
        return rows + [("helper", self.helper, "carries rows, computes nothing", *[""] * 5)] * bool(self.helper)

    @property
    def _title(self) -> str:
        return f"Plan: {_engines(len(self.ranks))}"

    def _notes(self) -> Iterator[str]:
        for warning in self.warnings:
            yield f"warning: {warning}"
        if self.interface:
            yield f"the notebook's host is {self.address} (interface {self.interface}) to the other hosts"
        if self.job:
            whose = "which ends with the cluster" if self.job.submitted else "in which the notebook runs"
            yield f"the hosts are nodes of {schedulers.label(self.job)}, {whose}"
        yield from self.others
        users: dict[str, list[int]] = {}
        for rank in self.ranks:
            for name, value in rank.variables.items():
                users.setdefault(f"{name}={value}", []).append(rank.rank)
        for setting, ranks in users.items():
            yield f"variable of rank {core_ranges(ranks)}: {setting}"
        groups: dict[tuple[str, str, str], list[str]] = {}
        several = len({rank.host for rank in self.ranks} | {idle.host for idle in self.idle}) > 1
        for idle in self.idle:
            selector = Slot(idle.device, idle.tile).selector
            where = f" of {idle.host}" * several
            groups.setdefault((idle.device.name, where, idle.reason), []).append(selector)
        for (name, where, reason), selectors in groups.items():
            yield f"not used: {', '.join(selectors)}{where} ({name}): {reason}"


_CROWDED = 8  # engines for each core, above which a start is taken for a mistake

_HEADER = ("rank", "host", "device", "--devices", "cores", "memory", "float64", "shared")
_ALIGN = "rlllrrll"

_VARIABLE = re.compile(r"(?:([0-9]+):)?([A-Za-z_][A-Za-z0-9_]*)")
#: Variables that a user cannot set -> what to type instead.
_OURS = {oneapi.SELECTOR: "; type: --devices WHICH", "XPULAB_ENGINE": "", "XPULAB_OWNER": "", "XPULAB_FOLDER": ""}


def _engines(number: int) -> str:
    return "1 engine" if number == 1 else f"{number} engines"


def _row(p: Placement) -> tuple[object, ...]:
    tile = "" if p.tile is None else f", tile {p.tile}"
    words = ("yes" if flag else "no" for flag in (p.device.float64, p.shared))
    return (p.rank, p.host, p.device.name + tile, p.selector, core_ranges(p.cores), format_size(p.memory), *words)


def plan(
    probe: Probe | Sequence[Offer],
    n: int | None = None,
    devices: str | None = None,
    strict: bool | None = None,
    env: Mapping[str, str] | None = None,
    instead: str = "leave out --strict",
) -> Plan:
    """Place engines on devices.

    A GPU that both Level Zero and OpenCL offer counts once. Without ``n``, there is one engine per GPU or tile; without
    any GPU, one engine on the CPU. If there are more engines than devices, engines share devices: a CPU is split into
    disjoint sets of cores, and the engines on a GPU take turns.

    Parameters
    ----------
    probe : Probe or sequence of Offer
        Devices, cores and memory of the host, or of several. Engines are spread over hosts in proportion to the numbers
        of their devices, and the ranks of a host follow each other.
    n : int, optional
        Number of engines.
    devices : str, optional
        ``"gpu"``, ``"cpu"``, or a selector: ``"level_zero:0"``, ``"level_zero:0,2"``, ``"level_zero:0.1"`` (a tile),
        ``"opencl:cpu"``, ``"level_zero:*"``.
    strict : bool, optional
        Whether to raise an error if engines would share cores or a GPU. By default only more than 8 engines for each
        core of a host are an error.
    env : mapping of str to str, optional
        Environment variables of the engines: ``{"NAME": "VALUE"}`` for all, ``{"1:NAME": "VALUE"}`` for rank 1.
    instead : str
        What a user can type in place of a smaller number of engines, if ``strict`` is set.

    Returns
    -------
    Plan

    Raises
    ------
    PlanError
        If ``n`` is not a positive integer, if engines would share cores or a GPU and ``strict`` does not allow it, or
        if ``env`` has a wrong name, a variable that xpulab sets itself, or a rank that does not exist.
    DeviceNotFoundError
        If there is no device, or none that ``devices`` selects.
    """
    require_valid(n, env)
    offers, chosen = _with_devices([Offer(probe)] if isinstance(probe, Probe) else list(probe), devices)
    sizes = _spread(offers, [len(slots) for slots, _ in chosen], None if n is None else int(n))
    variables = _of_each(env or {}, sum(sizes))
    ranks: list[Placement] = []
    warnings: list[str] = []
    idle: list[Idle] = []
    for offer, (slots, left_out), size in zip(offers, chosen, sizes, strict=True):
        used = [slots[rank % len(slots)] for rank in range(size)]
        where = f" of {offer.probe.host}" if len(offers) > 1 else ""
        if n is not None and strict is None:
            _require_room(offer.probe, size, where)
        warnings += (f"{warning}{where}" for warning in _warnings(offer.probe, used))
        unused = [Idle(slot.device, slot.tile, f"only {_engines(size)}") for slot in slots[size:]]
        idle += (replace(each, host=offer.probe.host) for each in unused + left_out)
        ranks += _placements(offer, used, variables, len(ranks))
    if strict and warnings:
        most = sum(_most(offer.probe, slots) for offer, (slots, _) in zip(offers, chosen, strict=True))
        raise PlanError(f"{'; '.join(warnings)}; type -n {most}, or {instead}")
    return Plan(tuple(ranks), tuple(warnings), tuple(idle))


def _with_devices(
    offers: Sequence[Offer], devices: str | None
) -> tuple[list[Offer], list[tuple[list[Slot], list[Idle]]]]:
    """Return the hosts on which engines can run, with their slots.

    The notebook's may have none if there are other hosts.
    """
    used, chosen = [], []
    for offer in offers:
        try:
            chosen.append(choose(offer.probe, devices))
            used.append(offer)
        except DeviceNotFoundError:
            if offer.address or offer.slots or len(offers) == 1:
                raise
    return used, chosen


def _require_room(probe: Probe, size: int, where: str) -> None:
    """Raise an error if a host would have so many engines that its user has hardly meant it."""
    cores = len(probe.logical_cores)
    if size > _CROWDED * cores:
        raise PlanError(
            f"{size} engines would share {counted(cores, 'core')}{where}, more than {_CROWDED} each; type -n {cores}, "
            "or, if you mean it, add --no-strict (strict=False)"
        )


def _most(probe: Probe, slots: Sequence[Slot]) -> int:
    """Return the largest number of engines of a host that share neither cores nor a GPU."""
    cores = len(probe.logical_cores)
    return cores if slots[0].on_cpu else min(cores, len(slots))  # the GPUs come first


def _spread(offers: Sequence[Offer], devices: Sequence[int], n: int | None) -> list[int]:
    """Return the number of engines of each host, in proportion to the user's numbers, or to the numbers of devices."""
    weights = [offer.slots or count for offer, count in zip(offers, devices, strict=True)]
    if n is None:
        return weights
    sizes = [0] * len(weights)
    for _ in range(n):  # each engine to the host that has the fewest for its weight
        sizes[min(range(len(sizes)), key=lambda host: (sizes[host] + 1) / weights[host])] += 1
    return sizes


def require_valid(n: int | None = None, env: Mapping[str, str] | None = None) -> None:
    """Raise an error if the number of engines or a variable is wrong on any host. `start` asks before its probe.

    Parameters
    ----------
    n : int, optional
        Number of engines.
    env : mapping of str to str, optional
        Environment variables of the engines, as for `plan`.

    Raises
    ------
    PlanError
        As `plan`.
    """
    if n is not None and (isinstance(n, bool) or not isinstance(n, numbers.Integral) or n < 1):
        raise PlanError(f"the number of engines must be an integer of at least 1; received {n!r}")
    for _ in _parsed(env or {}, n):
        pass


def _parsed(env: Mapping[str, str], size: int | None) -> Iterator[tuple[int | None, str, str]]:
    """Yield the rank, or None for all, the name and the value of each variable; `size` is None if it is not known."""
    for key, value in env.items():
        found = _VARIABLE.fullmatch(key) if isinstance(key, str) else None
        if found is None or not isinstance(value, str) or "\0" in value:
            raise PlanError(f"received the variable {key!r} with {value!r}, expected NAME=VALUE or RANK:NAME=VALUE")
        rank, name = found[1], found[2]
        if name in _OURS:
            raise PlanError(f"received the variable {name}, which xpulab sets itself{_OURS[name]}")
        if rank is not None and size is not None and int(rank) >= size:
            raise PlanError(f"received the variable {key}, expected a rank from 0 to {size - 1}")
        yield None if rank is None else int(rank), name, value


def _of_each(env: Mapping[str, str], size: int) -> list[dict[str, str]]:
    """Return the variables of each rank.

    A variable for one rank overrides a variable of the same name for all ranks.
    """
    every: dict[str, str] = {}
    of_rank: list[dict[str, str]] = [{} for _ in range(size)]
    for rank, name, value in _parsed(env, size):
        (every if rank is None else of_rank[rank])[name] = value
    return [{**every, **own} for own in of_rank]


def _placements(
    offer: Offer, used: Sequence[Slot], variables: Sequence[dict[str, str]], first: int
) -> Iterator[Placement]:
    """Return the placements of a host's ranks, of which `first` is the first."""
    probe = offer.probe
    cores = _split(probe.cores, len(used))
    users, core_users = Counter(used), Counter(cores)
    cpu_engines = sum(slot.on_cpu for slot in used)
    for rank, slot in enumerate(used):
        yield Placement(
            rank=first + rank,
            host=probe.host,
            address=offer.address,
            device=slot.device,
            tile=slot.tile,
            selector=slot.selector,
            cores=cores[rank],
            memory=probe.memory_available // cpu_engines if slot.on_cpu else slot.memory // users[slot],
            shared=core_users[cores[rank]] > 1 or (users[slot] > 1 and not slot.on_cpu),
            variables=variables[first + rank],
        )


def _warnings(probe: Probe, used: Sequence[Slot]) -> Iterator[str]:
    for slot, count in Counter(used).items():
        if count > 1 and not slot.on_cpu:
            yield f"{count} engines share {slot}"
    if len(used) > len(probe.logical_cores):
        yield f"{len(used)} engines share the cores {core_ranges(probe.logical_cores)}"


def _split(cores: Sequence[Sequence[int]], size: int) -> list[tuple[int, ...]]:
    """Split cores into disjoint sets of nearly equal size.

    With fewer cores than engines, each engine gets one core, and engines share cores in turns: fits that iterate were
    slower where each engine could use all cores, as they wait for each other. A physical core is divided only if there
    are fewer physical cores than engines.
    """
    logical = [(cpu,) for core in cores for cpu in core]
    if not size:
        return []
    if size > len(logical):
        return [logical[rank % len(logical)] for rank in range(size)]
    units = cores if size <= len(cores) else logical
    bounds = [len(units) * rank // size for rank in range(size + 1)]
    return [tuple(cpu for unit in units[a:b] for cpu in unit) for a, b in itertools.pairwise(bounds)]
