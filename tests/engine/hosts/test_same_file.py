"""Whether a host has the same file as the notebook's: its size, its beginning, its end, and drawn parts."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from xpulab.engine.hosts.same_file import SAMPLE, has_same, sample_of


@pytest.mark.parametrize("size", [0, 1, 4096, 1_000_000])
def test_the_same_content_under_another_path_is_the_same(tmp_path: Path, size: int) -> None:
    content = os.urandom(size)
    (tmp_path / "a").write_bytes(content)
    (tmp_path / "b").write_bytes(content)
    sample = sample_of(str(tmp_path / "a"))
    assert len(sample) == SAMPLE
    assert has_same(str(tmp_path / "b"), sample)


def test_other_files_are_not_the_same(tmp_path: Path) -> None:
    content = bytearray(np.random.RandomState(0).bytes(1_000_000))
    (tmp_path / "a").write_bytes(content)
    sample, other = sample_of(str(tmp_path / "a")), tmp_path / "b"
    for place in (0, 4095, len(content) - 1):
        changed = content.copy()
        changed[place] ^= 1
        other.write_bytes(changed)
        assert not has_same(str(other), sample), place
    other.write_bytes(content + b"0")
    assert not has_same(str(other), sample)
    other.write_bytes(content[:5000] + os.urandom(990_000) + content[-5000:])  # other in the middle
    assert not has_same(str(other), sample)
    for none in (tmp_path, tmp_path / "none"):
        assert not has_same(str(none), sample)
    os.mkfifo(tmp_path / "fifo")  # to open it would wait for ever
    assert not has_same(str(tmp_path / "fifo"), sample)


def test_the_files_of_a_folder_are_compared_with_their_names(tmp_path: Path) -> None:
    def made(folder: str, **files: bytes) -> str:
        for name, content in files.items():
            (tmp_path / folder / "c" / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / folder / "c" / name).write_bytes(content)
        return str(tmp_path / folder)

    one, other, none = np.random.RandomState(0).bytes(50_000), os.urandom(30_000), b""
    sample = sample_of(made("a.zarr", x=one, y=none, z=other))
    assert has_same(made("b.zarr", z=other, y=none, x=one), sample)
    assert not has_same(made("names.zarr", x=one, y2=none, z=other), sample)
    assert not has_same(made("places.zarr", x=other, y=none, z=one), sample)
    assert not has_same(made("content.zarr", x=one, y=none, z=os.urandom(30_000)), sample)
    assert not has_same(made("fewer.zarr", x=one, y=none), sample)
    (tmp_path / "file").write_bytes(one + other)
    assert not has_same(str(tmp_path / "file"), sample)
    (tmp_path / "empty").mkdir()
    assert has_same(str(tmp_path / "empty"), sample_of(str(tmp_path / "empty")))


def test_the_parts_are_drawn_anew(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(os.urandom(100_000))
    assert len({sample_of(str(tmp_path / "a")) for _ in range(5)}) == 5
