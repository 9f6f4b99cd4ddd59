"""The devices of this host: which engine uses each, and why others are idle."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from xpulab.deploy.plan import probe as probes
from xpulab.deploy.plan.plan import Plan, plan
from xpulab.deploy.plan.probe import ALIGN, HEADER, DeviceInfo, Probe, core_ranges, row_of
from xpulab.deploy.processes.others import in_use
from xpulab.exceptions import PlanError
from xpulab.report.rendering import Displayed, Html, block, escape, plain, table_html, table_text

if TYPE_CHECKING:
    from xpulab.deploy.cluster import XPUCluster

__all__ = ["Devices", "devices"]

_HEADER = (*HEADER, "used by")
_ALIGN = ALIGN + "l"


@dataclass(frozen=True)
class Devices(Displayed):
    """The devices of a host, and their engines. A notebook shows them as a table.

    Attributes
    ----------
    probe : Probe
        The devices found.
    plan : Plan or None
        Plan of the running cluster, or of the cluster that ``%xpu_cluster start`` would start; None if no engine can be
        placed.
    running : bool
        Whether the engines of the plan run.
    """

    probe: Probe
    plan: Plan | None
    running: bool

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-serialisable values."""
        return asdict(self)

    def used_by(self, device: DeviceInfo) -> str:
        """Return a text that says which ranks use a device, or why it is idle.

        For example ``"rank 0, 1"``, ``"rank 0 on tile 0; tile 1 idle: only 1 engine"`` or
        ``"idle: engines run on the GPU"``.
        """
        if self.plan is None:
            return "idle"
        ranks: dict[int | None, list[int]] = {}
        for p in self.plan.ranks:
            if not p.address and p.device.selector == device.selector:
                ranks.setdefault(p.tile, []).append(p.rank)
        idle: dict[str, list[int | None]] = {}
        for unused in self.plan.idle:
            if unused.host in ("", self.probe.host) and unused.device.selector == device.selector:
                idle.setdefault(unused.reason, []).append(unused.tile)
        parts = [f"rank {core_ranges(r)}" + ("" if tile is None else f" on tile {tile}") for tile, r in ranks.items()]
        for reason, tiles in idle.items():
            named = [tile for tile in tiles if tile is not None]
            which = f"tile {core_ranges(named)} " if named and (ranks or len(idle) > 1) else ""
            parts.append(f"{which}idle: {reason}")
        return "; ".join(parts) or "idle: the plan has no engine for it"

    def __str__(self) -> str:
        table = table_text(_HEADER, self._rows(), _ALIGN)
        return "\n".join(
            [plain(self.probe.title), f"  {self._whose}", table, *(f"  {plain(note)}" for note in self._notes)]
        )

    def _repr_html_(self) -> Html:
        table = table_html(_HEADER, self._rows(), _ALIGN, caption=self.probe.title)
        notes = [f'<div class="xpu-note">{escape(text)}</div>' for text in (self._whose, *self._notes)]
        return block("devices", [table, *notes])

    def _rows(self) -> list[tuple[object, ...]]:
        return [(*row_of(device), self.used_by(device)) for device in self.probe.devices]

    @property
    def _notes(self) -> tuple[str, ...]:
        return (*(self.plan.others if self.plan else ()), *self.probe.errors)

    @property
    def _whose(self) -> str:
        if self.running:
            return "The column 'used by' shows the running engines."
        if self.plan is None:
            return "No engine can run on these devices; type: %xpu_cluster doctor"
        return "No cluster is running; the column 'used by' shows what %xpu_cluster start would do."


def devices(cluster: XPUCluster | None = None) -> Devices:
    """Ask the drivers for the devices, and say which engine uses each.

    Parameters
    ----------
    cluster : XPUCluster, optional
        The running cluster, if there is one.

    Returns
    -------
    Devices

    Raises
    ------
    DeviceError
        If a driver crashes or hangs.
    """
    found = probes.probe()
    if cluster is not None and cluster.running:
        return Devices(found, cluster.plan(), True)
    try:
        chosen = plan(found)
        return Devices(found, replace(chosen, others=in_use(chosen)), False)
    except PlanError:
        return Devices(found, None, False)
