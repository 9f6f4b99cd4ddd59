"""Counts the bytes that calls send to the engines."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from xpulab.data import Outgoing
from xpulab.sharing.memory import SharedBlock


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of bytes that this process writes into shared memory, or lets the engines read in its own memory."""
    counted: list[int] = []
    write, send = SharedBlock.write, Outgoing.send_rows

    def writing(block: SharedBlock, data: np.ndarray, offset: int) -> None:
        counted.append(data.nbytes)
        write(block, data, offset)

    def sending(outgoing: Outgoing, rows: np.ndarray, *rest: Any) -> dict[str, Any]:
        source = send(outgoing, rows, *rest)
        if "memory" in source:
            counted.append(rows.nbytes)
        return source

    monkeypatch.setattr(SharedBlock, "write", writing)
    monkeypatch.setattr(Outgoing, "send_rows", sending)
    return counted
