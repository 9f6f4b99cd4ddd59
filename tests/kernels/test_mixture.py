import numpy as np
import pytest
from scipy.special import logsumexp

from xpulab.kernels.mixture import Densities, expectations, sums_of_densities, sums_of_shares
from xpulab.kernels.rows import Rows

SHAPES = [(1, 1, 1), (63, 3, 2), (65, 5, 8), (4099, 10, 3), (9000, 2, 2), (700, 33, 4)]
TOLERANCES = [(np.float32, 3e-6), (np.float64, 2e-14)]


def mixture(n, d, k, full, dtype):
    """Return rows of float `dtype`, and densities whose parameters have few digits."""
    rng = np.random.default_rng(n + d + k)
    means = rng.normal(0, 3, size=(k, d)).astype(np.float32)
    X = (means[rng.integers(k, size=n)] + rng.normal(size=(n, d))).astype(dtype)
    factors = rng.uniform(0.5, 1.5, size=(k, d)).astype(np.float32).astype(np.float64)
    if full:
        above = np.triu(rng.normal(size=(k, d, d)), 1) / np.sqrt(d)
        factors = above.astype(np.float32) + factors[:, :, None] * np.eye(d)
    constants = np.log(rng.dirichlet(np.ones(k))).astype(np.float32)
    return X, Densities(constants.astype(np.float64), means.astype(np.float64), factors)


def reference(X, densities):
    """Return the logarithms of the mixture's densities, the responsibilities, and the differences, in float64."""
    z = X.astype(np.float64)[:, None] - densities.means
    factors = densities.factors if densities.full else densities.factors[:, :, None] * np.eye(X.shape[1])
    logarithms = densities.constants - np.square(np.einsum("nki,kij->nkj", z, factors)).sum(axis=2) / 2
    norms = logsumexp(logarithms, axis=1)
    return norms, np.exp(logarithms - norms[:, None]), z


def check(found, shares, z, full, tolerance):
    n = len(z)
    products = np.einsum("nk,nki,nkj->kij", shares, z, z)
    np.testing.assert_allclose(found.weight, shares.sum(axis=0), atol=tolerance * n)
    np.testing.assert_allclose(found.first, np.einsum("nk,nki->ki", shares, z), atol=tolerance * np.abs(z).sum())
    expected = products if full else np.einsum("kii->ki", products)
    np.testing.assert_allclose(found.second, expected, atol=tolerance * np.square(z).sum())


@pytest.mark.fraction(3)
@pytest.mark.parametrize(("dtype", "tolerance"), TOLERANCES)
@pytest.mark.parametrize(("n", "d", "k"), SHAPES)
@pytest.mark.parametrize("full", [False, True])
def test_against_numpy(device, n, d, k, full, dtype, tolerance):
    X, densities = mixture(n, d, k, full, dtype)
    rows = Rows.upload(device, X)
    norms, shares, z = reference(X, densities)
    found = sums_of_densities(rows, densities)
    assert found.likelihood == pytest.approx(norms.sum(), rel=tolerance)
    np.testing.assert_array_equal(found.centers, densities.means)
    check(found, shares, z, full, tolerance)
    table = np.concatenate(list(expectations(rows, densities)))
    assert table.dtype == dtype
    np.testing.assert_allclose(table[:, -1], norms, rtol=10 * tolerance)
    np.testing.assert_allclose(table[:, :-1], shares, atol=20 * tolerance)
    given = sums_of_shares(rows, Rows.upload(device, shares.astype(dtype)), densities.means, full)
    assert given.likelihood == 0
    check(given, shares, z, full, tolerance)


@pytest.mark.usefixtures("least_memory")
@pytest.mark.parametrize("full", [False, True])
def test_few_chunks_at_a_time(device, full):
    """There are rows for several turns of a work-group, and more sums than may be in memory at once."""
    X, densities = mixture(3000, 7, 3, full, np.float64)
    rows = Rows.upload(device, X)
    norms, shares, z = reference(X, densities)
    found = sums_of_densities(rows, densities)
    assert found.likelihood == pytest.approx(norms.sum(), rel=1e-13)
    check(found, shares, z, full, 1e-13)
    np.testing.assert_allclose(np.concatenate(list(expectations(rows, densities)))[:, -1], norms, rtol=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("full", [False, True])
def test_no_rows(device, full, dtype):
    _, densities = mixture(1, 3, 2, full, dtype)
    rows = Rows.upload(device, np.empty((0, 3), dtype))
    for found in (
        sums_of_densities(rows, densities),
        sums_of_shares(rows, Rows.upload(device, np.empty((0, 2), dtype)), densities.means, full),
    ):
        assert found.likelihood == 0
        assert found.weight.tolist() == [0, 0]
        assert not found.first.any()
        assert found.second.shape == densities.factors.shape
        assert not found.second.any()
    assert list(expectations(rows, densities)) == []


def test_variances_of_narrow_components_far_from_the_origin_keep_their_digits(device):
    """In float32, sums of squares about the origin would have no digit of these variances."""
    rng = np.random.default_rng(0)
    X = (1000 + 0.01 * rng.normal(size=(200_000, 2))).astype(np.float32)
    densities = Densities(np.zeros(1), np.full((1, 2), 1000.0), np.full((1, 2), 100.0))
    found = sums_of_densities(Rows.upload(device, X), densities)
    np.testing.assert_allclose(found.second[0], np.square(X.astype(np.float64) - 1000).sum(axis=0), rtol=1e-5)


def test_rows_far_from_all_components_and_components_without_weight(device):
    """The logarithms of the densities stay finite where the densities are zero."""
    densities = Densities(np.array([0.0, -np.inf]), np.array([[0.0], [5.0]]), np.ones((2, 1)))
    rows = Rows.upload(device, np.array([[400.0], [5.0]], np.float32))
    (table,) = expectations(rows, densities)
    np.testing.assert_allclose(table, [[1, 0, -80000], [1, 0, -12.5]])
    assert sums_of_densities(rows, densities).likelihood == pytest.approx(-80012.5)


def test_shapes_that_do_not_fit_are_refused(device):
    rows = Rows.upload(device, np.zeros((5, 3), np.float32))
    with pytest.raises(ValueError, match=r"shape \(5, 3\) were given for 5 rows and 2 components"):
        sums_of_shares(rows, rows, np.zeros((2, 3)), False)
