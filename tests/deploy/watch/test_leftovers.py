from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from xpulab.deploy.watch.leftovers import remove_leftovers


def test_unused_files_of_mpi_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xpulab.deploy.watch.leftovers._FOLDER", tmp_path)
    other, opened, mapped, left = (
        tmp_path / name for name in ("other", "Intel_MPI_opened", "Intel_MPI_mapped", "Intel_MPI_left")
    )
    for path in (other, opened, mapped, left):
        path.write_bytes(bytes(100))
    held = np.memmap(mapped, np.uint8, "r")
    with opened.open("rb"):
        remove_leftovers()
    assert set(tmp_path.iterdir()) == {other, opened, mapped}
    del held
