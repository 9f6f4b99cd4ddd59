"""What a rank knows of the hosts: which ranks are its neighbours, which are elsewhere, and who carries rows."""

from __future__ import annotations

from typing import Any

import pytest

import xpulab

pytestmark = pytest.mark.cluster


def described(here: Any, leaders: list[int], carrier: int) -> list[dict[str, Any]]:
    """On an engine: describe the host of each rank."""
    from xpulab.engine.host import RankHost

    hosts = [RankHost(rank, leaders, carrier) for rank in range(len(leaders))]
    return [{**vars(host), "others": host.others()} for host in hosts]


def test_ranks_of_one_host(pair: xpulab.XPUCluster) -> None:
    found = pair.run(described, [0, 0, 0], 0)[0]
    assert [host["leads"] for host in found] == [True, False, False]
    assert [host["followers"] for host in found] == [[1, 2], [0, 2], [0, 1]]
    assert not any(host["several"] or host["others"] for host in found)


@pytest.mark.parametrize(("carrier", "here"), [(0, [0, 1]), (4, [4])], ids=["rank 0", "the helper rank"])
def test_ranks_of_several_hosts(pair: xpulab.XPUCluster, carrier: int, here: list[int]) -> None:
    found = pair.run(described, [0, 0, 2, 2, 4], carrier)[0]
    assert [rank for rank, host in enumerate(found) if host["here"]] == here
    assert [rank for rank, host in enumerate(found) if host["leads"]] == [0, 2, 4]
    assert [rank for rank, host in enumerate(found) if host["carries"]] == [carrier]
    assert found[3]["followers"] == [2]
    assert all(host["several"] for host in found)
    assert found[0]["others"] == [rank for rank in range(5) if rank not in here]
