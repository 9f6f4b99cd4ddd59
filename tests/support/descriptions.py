"""What engines would tell about themselves, for tests without engines."""

from __future__ import annotations

from typing import Any

from xpulab.sharing.descriptions import DeviceDescription, EngineDescription

GIB = 1 << 30


def described(rank: int = 0, kind: str = "gpu", memory: int = 16 * GIB, **changes: Any) -> EngineDescription:
    """Return the description of an engine on an Arc, or on a device of another kind that is called so."""
    values: dict[str, Any] = {
        "rank": rank,
        "mpi_rank": rank,
        "host": "node",
        "pid": 7 + rank,
        "device": DeviceDescription("Arc", "level_zero", kind, "1.3", memory, 512, False),
        "cores": (rank,),
        "here": True,
        "board": "/nowhere",
        "mpi": "MPI 4",
        "selector": "level_zero:0",
        "launch_shapes": "",
    }
    return EngineDescription(**{**values, **changes})
