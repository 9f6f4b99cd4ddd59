"""How much of the engines' memory rows may take: what users type, and what it means on a host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from descriptions import GIB, described

import xpulab
from xpulab.deploy.memory import Memory, read_memory
from xpulab.deploy.tasks.limits import READING, Demand, that_fit
from xpulab.exceptions import UsageError


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, Memory(0.6)),
        (0.5, Memory(0.5)),
        ("0.5", Memory(0.5)),
        (1, Memory(1.0)),
        (0, Memory(0.0)),
        (4_000_000, Memory(nbytes=4_000_000)),
        ("4GB", Memory(nbytes=4 * 10**9)),
        ("4 gib", Memory(nbytes=4 * 2**30)),
        ("1.5G", Memory(nbytes=3 * 2**29)),
        ("0GB", Memory(nbytes=0)),
        ("100B", Memory(nbytes=100)),
    ],
)
def test_bytes_and_shares_are_read(given: Any, expected: Memory) -> None:
    found = read_memory(given)
    assert found.nbytes == expected.nbytes
    assert found.nbytes is not None or found == expected


@pytest.mark.parametrize("given", ["much", "4 XB", "-1", -1, True, float("nan"), float("inf"), "", [4]])
def test_anything_else_is_an_error_when_it_is_set(given: Any) -> None:
    with pytest.raises(UsageError, match=r"memory=.* was given; expected bytes, such as '4GB' or '512MiB', or a share"):
        xpulab.XPUCluster(memory=given)
    cluster = xpulab.XPUCluster()
    with pytest.raises(UsageError, match="expected bytes"):
        cluster.memory = given
    assert cluster.memory is None


def kept(memory: Memory, counts: Sequence[int], kinds: Sequence[str], held: int = 0, **more: Any) -> list[int]:
    facts = [described(rank, kind) for rank, kind in enumerate(kinds)]
    demand = Demand("X", counts, row_bytes=GIB / 100, sent=False, **more)
    return that_fit(demand, facts, [held] * len(counts), 10.0 * GIB + len(counts) * READING, memory)


def test_engines_of_a_host_share_its_memory_by_their_rows() -> None:
    assert kept(Memory(0.6), [1000, 500], ["cpu", "cpu"]) == [400, 200]
    assert kept(Memory(nbytes=3 * GIB), [1000, 500], ["cpu", "cpu"]) == [200, 100]
    assert kept(Memory(nbytes=20 * GIB), [1000, 500], ["cpu", "cpu"]) == [666, 333]  # no more than there is
    assert kept(Memory(0.0), [1000, 500], ["cpu", "cpu"]) == [0, 0]
    assert kept(Memory(1.0), [300, 100], ["cpu", "cpu"]) == [300, 100]


def test_what_is_there_already_and_what_grows_with_rows_count_too() -> None:
    assert kept(Memory(nbytes=3 * GIB), [1000, 500], ["cpu", "cpu"], held=GIB) == [66, 33]
    assert kept(Memory(0.5), [1000], ["cpu"], result=2.0 * GIB) == [400]
    assert kept(Memory(0.5), [1000], ["cpu"], work_share=1.0) == [250]
    assert kept(Memory(0.5), [1000], ["cpu"], work_per_row=GIB / 100) == [250]


def test_what_reads_rows_again_and_what_all_rows_have_counts_if_not_all_fit() -> None:
    assert kept(Memory(0.5), [1000], ["cpu"], every_row=GIB / 500) == [400]
    assert kept(Memory(0.5), [500], ["cpu"], every_row=GIB / 500) == [500]


def test_a_gpu_keeps_what_fits_into_its_own_memory() -> None:
    assert kept(Memory(0.5), [1000, 1000], ["gpu", "cpu"])[0] == 800  # of 16 GiB
    assert kept(Memory(nbytes=4 * GIB), [1000, 1000], ["gpu", "gpu"]) == [200, 200]
    assert kept(Memory(nbytes=20 * GIB), [1000, 1000], ["gpu", "gpu"]) == [800, 800]  # both on one GPU of 16 GiB


def test_bytes_are_those_of_all_engines_of_a_host() -> None:
    assert kept(Memory(nbytes=4 * GIB), [1000, 1000], ["gpu", "gpu"], held=GIB) == [100, 100]
    assert kept(Memory(nbytes=4 * GIB), [1000, 1000], ["gpu", "cpu"]) == [200, 200]
