"""The SPIR-V of the kernels of float32 runs contains no float64."""

import numpy as np
import pytest
from scipy.sparse import csr_matrix
from spirv import FLOAT64, capabilities

from xpulab.kernels import scaling
from xpulab.kernels.compile.build import kernels_of
from xpulab.kernels.distance_sums import Queries
from xpulab.kernels.kmeans import sparse
from xpulab.kernels.kmeans.gather import Batches
from xpulab.kernels.kmeans.lloyd import assign, fresh_step, inertia, lloyd_step, new_labels, own_distances, transform
from xpulab.kernels.kmeans.plusplus import accept, candidate_potentials, search, start
from xpulab.kernels.linear.linear_losses import Loss, Repeated, second_products
from xpulab.kernels.mixture import Densities, expectations, sums_of_densities, sums_of_shares
from xpulab.kernels.moments import column_facts
from xpulab.kernels.products import cross, gram
from xpulab.kernels.project import project, projected
from xpulab.kernels.quantiles import order_statistics
from xpulab.kernels.row_passes import column_sums, find_nonfinite, take
from xpulab.kernels.rows import Rows
from xpulab.kernels.runtime.catalogue import find
from xpulab.kernels.runtime.device import Device


def run_everything(device, d, dtype, weighted):
    X = np.random.default_rng(0).normal(size=(300, d)).astype(dtype)
    rows = Rows.upload(device, X, np.ones(300) if weighted else None)
    shift, centers, labels = X.mean(axis=0), X[:9], new_labels(device, 300)
    column_sums(rows, shift)
    column_sums(rows, shift, squared=True)
    take(rows, [3], shift)
    find_nonfinite(rows)
    lloyd_step(rows, shift, centers, labels)
    batch, of_batch = Batches(rows, 20).take(np.arange(5, 25))
    fresh_step(batch, shift, centers, of_batch)
    assign(rows, shift, centers, labels)
    inertia(rows, shift, centers, labels)
    own_distances(rows, shift, centers, labels)
    list(transform(rows, centers))
    for kind in ("euclidean", "squares", "absolute", "largest", "powers"):
        Queries(device, centers, kind).sums(centers, np.array([4, 5]))
    state, potential = start(rows, shift, centers[0])
    candidate_potentials(state, centers)
    accept(state, 1)
    search(state, potential / 2)
    column_facts(rows, shift)
    column_facts(rows, shift, extremes=False)
    gram(rows, shift)
    cross(rows, projected(rows, centers.T, shift), shift)
    list(project(rows, centers.T, shift))
    for loss in (Loss("binary"), Loss("multinomial", 3), Loss("log", 1, (1.5,)), Loss("identity", 1, (1.5,))):
        k = loss.n_columns
        codes, table = Rows.upload(device, np.zeros((300, 1), dtype)), (np.zeros((k, d)), np.ones(k))
        Repeated(rows, codes, loss)(*table)
        second_products(rows, codes, loss, *table, *table)
    for factors in (np.ones((9, d)), np.ones((9, d, d))):
        densities = Densities(np.zeros(9), centers, factors)
        sums_of_densities(rows, densities)
        list(expectations(rows, densities))
        sums_of_shares(rows, Rows.upload(device, np.zeros((300, 9), dtype)), centers, factors.ndim == 3)
    scaling.centred(rows, shift, shift)
    scaling.stretched(rows, shift, shift, 0, 1)
    order_statistics(rows, np.full((2, d), 150))


@pytest.mark.parametrize("d", [3, 130])
@pytest.mark.parametrize("weighted", [False, True])
def test_float32_kernels_hold_no_float64(d, weighted):
    device = Device()
    run_everything(device, d, np.float32, weighted)
    assert len(device.programs) >= 22
    holders = [kernel.name for kernel in device.programs if FLOAT64 in capabilities(find(kernel).spirv)]
    assert holders == []


def test_the_check_sees_float64():
    device = Device()
    run_everything(device, 3, np.float64, False)
    assert any(FLOAT64 in capabilities(find(kernel).spirv) for kernel in device.programs)


def run_everything_sparse(device, dtype, weighted):
    dense = np.random.default_rng(0).normal(size=(300, 9)).astype(dtype)
    X = csr_matrix(dense * (dense > 0.5))
    rows = sparse.SparseRows.upload(device, X.data, X.indices, X.indptr, 9, np.ones(300) if weighted else None)
    shift, centers, labels = sparse.shift_for(rows, dense.mean(axis=0)), dense[:7], sparse.new_labels(device, 300)
    sparse.column_sums(rows, shift)
    sparse.take(rows, [3], shift)
    sparse.lloyd_step(rows, shift, centers, labels)
    sparse.assign(rows, shift, centers, labels)
    sparse.inertia(rows, shift, centers, labels)
    list(sparse.transform(rows, centers))
    state, potential = sparse.start(rows, shift, centers[0])
    sparse.candidate_potentials(state, centers)
    sparse.accept(state, 1)
    sparse.search(state, potential / 2)


@pytest.mark.parametrize("weighted", [False, True])
def test_float32_csr_kernels_hold_no_float64(weighted):
    device = Device()
    run_everything_sparse(device, np.float32, weighted)
    assert len(device.programs) == 7
    assert [kernel.name for kernel in device.programs if FLOAT64 in capabilities(find(kernel).spirv)] == []


def test_the_whole_catalogue_uses_float64_for_float64_alone():
    """The catalogue has every kernel that an engine may start, including the kernels of all launch shapes."""
    kernels = list(kernels_of("xpulab.kernels"))
    for kernel in kernels:
        with_float64 = FLOAT64 in capabilities(find(kernel).spirv)
        assert with_float64 == any(word.startswith("f8") for word in kernel.signature), kernel.key
    assert len(kernels) > 1000
