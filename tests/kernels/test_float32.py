"""A float32 run holds no float64 on the device, as read from the SPIR-V of its kernels."""

import numpy as np
import pytest
from spirv import FLOAT64, capabilities

from xpulab.kernels.device import Device
from xpulab.kernels.distances import transform
from xpulab.kernels.lloyd import assign, inertia, lloyd_step, new_labels, own_distances
from xpulab.kernels.plusplus import accept, candidate_potentials, search, start
from xpulab.kernels.rows import Rows, column_sums, find_nonfinite, take


def run_everything(device, d, dtype, weighted):
    X = np.random.default_rng(0).normal(size=(300, d)).astype(dtype)
    rows = Rows.upload(device, X, np.ones(300) if weighted else None)
    shift, centers, labels = X.mean(axis=0), X[:9], new_labels(device, 300)
    column_sums(rows, shift)
    column_sums(rows, shift, squared=True)
    take(rows, [3], shift)
    find_nonfinite(rows)
    lloyd_step(rows, shift, centers, labels)
    assign(rows, shift, centers, labels)
    inertia(rows, shift, centers, labels)
    own_distances(rows, shift, centers, labels)
    list(transform(rows, centers))
    state, potential = start(rows, shift, centers[0])
    candidate_potentials(state, centers)
    accept(state, 1)
    search(state, potential / 2)


@pytest.mark.parametrize("d", [3, 130])
@pytest.mark.parametrize("weighted", [False, True])
def test_float32_kernels_hold_no_float64(d, weighted):
    device = Device()
    run_everything(device, d, np.float32, weighted)
    assert len(device.specialisations) >= 9
    holders = [s.name for s in device.specialisations.values() if FLOAT64 in capabilities(s.spirv)]
    assert holders == []


def test_the_check_sees_float64():
    device = Device()
    run_everything(device, 3, np.float64, False)
    assert any(FLOAT64 in capabilities(s.spirv) for s in device.specialisations.values())
