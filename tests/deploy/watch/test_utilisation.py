"""The use of a processor, which this process makes, and of a GPU, from what drivers write."""

from __future__ import annotations

import itertools
import math
import os
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from xpulab.deploy.watch.utilisation import Utilisation, device_counters, share_of


class Sampled(NamedTuple):
    """The time before and after a sample, and that of processors that this process had used."""

    began: float
    computed: float
    ended: float
    done: float


def sampled(use: Utilisation) -> Sampled:
    began = time.monotonic(), time.process_time()
    use.sample([0, 0])
    return Sampled(*began, time.monotonic(), time.process_time())


def test_a_process_that_computes_is_busy_and_one_that_sleeps_is_idle() -> None:
    use = Utilisation([os.getpid(), 0], [1, 1], [False, False])
    clock = [sampled(use)]
    while time.process_time() < clock[0].computed + 0.5:
        pass
    clock.append(sampled(use))
    time.sleep(0.5)
    clock.append(sampled(use))
    (busy, idle), elsewhere = use.samples
    for sample, (before, after) in zip((busy, idle), itertools.pairwise(clock), strict=True):
        # The kernel counts in hundredths of seconds.
        least, most = after.computed - before.done - 0.03, after.done - before.computed + 0.03
        assert (
            min(0.9, least / (after.ended - before.began)) <= sample[1] <= min(1, most / (after.began - before.ended))
        )
    assert busy[2] > 1 << 20
    assert len(elsewhere) == 0  # nothing was told of this process of another host


def test_processes_of_other_hosts_are_known_from_what_these_tell() -> None:
    """Their clocks differ, and they may have told nothing new since the last sample."""
    use = Utilisation([0, 0], [2, 1], [False, True])
    for read, used in ((1000.0, 50.0), (1002.0, 52.0), (1002.0, 52.0), (1003.0, 52.5)):
        use.sample([7, 8], {0: (read, used, 100.0), 1: (read, used, 100.0)})
    processor, gpu = use.samples
    assert [(share, memory) for _, share, memory in processor] == [(0.5, 100.0), (0.25, 100.0)]
    assert [memory for *_, memory in gpu] == [8, 8]
    assert all(math.isnan(share) for _, share, _ in gpu)
    assert 0 <= processor[-1][0] - processor[0][0] < 1  # by the clock of this host


def test_a_process_that_has_ended_has_no_more_samples() -> None:
    use = Utilisation([2**22 + 1], [1], [False])
    use.sample([0])
    use.sample([0])
    assert not use.samples[0]


@pytest.mark.parametrize(
    ("before", "after", "share"),
    [
        ("drm-engine-render:\t1000000000 ns", "drm-engine-render:\t1500000000 ns", 0.25),
        (
            "drm-cycles-rcs:\t100\ndrm-total-cycles-rcs:\t1000",
            "drm-cycles-rcs:\t400\ndrm-total-cycles-rcs:\t1400",
            0.75,
        ),
        ("drm-engine-capacity-video:\t2", "drm-engine-capacity-video:\t4", 0.0),
    ],
    ids=["i915", "xe", "capacity"],
)
def test_the_use_of_a_gpu_is_that_of_its_busiest_engine(before: str, after: str, share: float, tmp_path: Path) -> None:
    (tmp_path / "7" / "fd").mkdir(parents=True)
    (tmp_path / "7" / "fdinfo").mkdir()
    (tmp_path / "7" / "fd" / "3").symlink_to("/dev/dri/renderD128")
    (tmp_path / "7" / "fd" / "4").symlink_to("/dev/null")
    found = []
    for text in (before, after):
        about = f"drm-driver:\tx\ndrm-client-id:\t5\n{text}\ndrm-engine-copy:\t0 ns\n"
        (tmp_path / "7" / "fdinfo" / "3").write_text(about)
        found.append(device_counters(7, tmp_path))
    assert share_of(found[0], found[1], 2.0) == pytest.approx(share)
