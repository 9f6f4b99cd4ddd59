import numpy as np
import pytest
from scipy.special import expit, log_softmax, softmax
from sklearn.metrics import mean_tweedie_deviance

from xpulab.kernels.linear.linear_losses import Loss, Repeated, second_products
from xpulab.kernels.rows import Rows

SHAPES = [(1, 1, 2), (63, 3, 2), (64, 8, 3), (65, 17, 5), (5003, 1, 4), (5003, 50, 2), (1030, 130, 12), (9000, 2, 2)]
TOLERANCES = [(np.float32, 2e-6), (np.float64, 2e-14)]


def table(n, d, k, dtype):
    rng = np.random.default_rng(n + d + k)
    X = rng.normal(size=(n, d)).astype(dtype)
    columns = 1 if k == 2 else k
    coef = (rng.normal(size=(2, columns, d)) / np.sqrt(d)).astype(dtype)
    intercept = rng.normal(size=(2, columns)).astype(dtype)
    return X, rng.integers(0, k, n), rng.uniform(0.1, 2, n).astype(dtype), coef, intercept


def of_classes(k):
    return Loss("binary") if k == 2 else Loss("multinomial", k)


def uploaded(device, X, y, weights):
    return Rows.upload(device, X, weights), Rows.upload(device, y[:, None].astype(X.dtype))


def reference(X, y, weights, coef, intercept):
    """Compute loss, gradient, and the product of the second derivatives with the coefficients, in float64."""
    X = np.hstack([X.astype(np.float64), np.ones((len(X), 1))])
    both = np.concatenate([coef, intercept[..., None]], axis=2).astype(np.float64)
    raw, step = X @ both[0].T, X @ both[1].T
    if raw.shape[1] == 1:
        share = expit(raw)
        loss = np.logaddexp(0, raw[:, 0]) - y * raw[:, 0]
        residual, product = share - y[:, None], share * expit(-raw) * step
    else:
        share = softmax(raw, axis=1)
        loss = -log_softmax(raw, axis=1)[np.arange(len(y)), y]
        residual = share - np.eye(raw.shape[1])[y]
        product = share * (step - (share * step).sum(axis=1, keepdims=True))
    return weights @ loss, (residual * weights[:, None]).T @ X, (product * weights[:, None]).T @ X


@pytest.mark.fraction(3)
@pytest.mark.parametrize(("dtype", "tolerance"), TOLERANCES)
@pytest.mark.parametrize(("n", "d", "k"), SHAPES)
@pytest.mark.parametrize("weighted", [False, True])
def test_against_numpy(device, n, d, k, weighted, dtype, tolerance):
    X, y, weights, coef, intercept = table(n, d, k, dtype)
    rows, codes = uploaded(device, X, y, weights if weighted else None)
    expected = reference(X, y, weights.astype(np.float64) if weighted else np.ones(n), coef, intercept)
    found = Repeated(rows, codes, of_classes(k))(coef[0], intercept[0])
    product = second_products(rows, codes, of_classes(k), coef[0], intercept[0], coef[1], intercept[1])
    assert found.loss == pytest.approx(expected[0], rel=tolerance)
    scale = np.abs(X).sum() + n  # residuals are at most 1
    np.testing.assert_allclose(found.gradient, expected[1], rtol=0, atol=tolerance * scale / d)
    np.testing.assert_allclose(product, expected[2], rtol=0, atol=2 * tolerance * scale / d)


def test_losses_of_rows_that_are_far_from_the_border(device):
    """They are not infinite, and not zero where the logarithm of a rounded probability would be zero."""
    for x, label in ((12.0, 1), (12.0, 0), (-12.0, 1), (40.0, 1), (-500.0, 1)):
        rows, codes = uploaded(device, np.array([[x]], np.float32), np.array([label]), None)
        for found in (
            Repeated(rows, codes, of_classes(2))(np.ones((1, 1)), np.zeros(1)),
            Repeated(rows, codes, of_classes(3))(np.array([[0.0], [1.0], [-1e4 * x]]), np.zeros(3)),
        ):
            assert found.loss == pytest.approx(np.logaddexp(0, -x if label else x), rel=1e-5)
            slope = -expit(-x) if label else expit(x)
            least = 0 if len(found.gradient) == 1 else 1e-7
            assert found.gradient[-1 if least == 0 else 1, 1] == pytest.approx(slope, rel=1e-5, abs=least)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_no_rows(device, dtype):
    rows, codes = uploaded(device, np.empty((0, 3), dtype), np.empty(0), None)
    one, none = np.ones((3, 3)), np.ones(3)
    np.testing.assert_array_equal(second_products(rows, codes, of_classes(3), one, none, one, none), np.zeros((3, 4)))


@pytest.mark.usefixtures("least_memory")
@pytest.mark.parametrize("k", [2, 6])
def test_few_chunks_at_a_time(device, k):
    """There are rows for several turns of a work-group, and more sums than may be in memory at once."""
    X, y, weights, coef, intercept = table(3000, 5, k, np.float64)
    rows, codes = uploaded(device, X, y, weights)
    found = Repeated(rows, codes, of_classes(k))(coef[0], intercept[0])
    loss, gradient, _ = reference(X, y, weights, coef, intercept)
    assert found.loss == pytest.approx(loss, rel=1e-13)
    np.testing.assert_allclose(found.gradient, gradient, atol=1e-10)


def test_float32_sums_of_many_rows_are_precise(device):
    """Chains of additions are short, so a million losses of the same size lose no digits."""
    n = 1_000_000
    rows, codes = uploaded(device, np.full((n, 1), 0.1, np.float32), np.zeros(n), None)
    found = Repeated(rows, codes, of_classes(2))(np.ones((1, 1)), np.zeros(1))
    x = float(np.float32(0.1))
    assert found.loss == pytest.approx(n * np.log1p(np.exp(x)), rel=3e-6)
    assert found.gradient[0, 0] == pytest.approx(n * x * expit(x), rel=3e-6)
    assert found.gradient[0, 1] == pytest.approx(n * expit(x), rel=3e-6)


def test_shapes_that_do_not_fit_are_refused(device):
    rows, codes = uploaded(device, np.zeros((5, 3), np.float32), np.zeros(5), None)
    with pytest.raises(ValueError, match=r"shape \(1, 2\) and 5 targets were given for 5 rows of 3 features and 1"):
        Repeated(rows, codes, of_classes(2))(np.ones((1, 2)), np.ones(1))
    with pytest.raises(ValueError, match=r"shape \(1, 3\) .* and 3 columns"):
        Repeated(rows, codes, of_classes(3))(np.ones((1, 3)), np.ones(1))


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 2e-5), (np.float64, 1e-12)])
@pytest.mark.parametrize("log", [True, False])
@pytest.mark.parametrize("power", [-1.0, 0.0, 1.0, 1.5, 2.0, 3.0])
def test_deviances_against_scikit_learn(device, power, log, dtype, tolerance):
    """Losses without what is constant, their gradients, and second derivatives times a step."""
    X, _, weights, coef, _ = table(1030, 17, 2, dtype)
    coef, intercept = np.abs(coef) / 4, np.ones((2, 1), dtype)
    X = np.abs(X)  # all products are positive, as means are
    targets = np.random.default_rng(0).gamma(2, 1, len(X)).astype(dtype)
    rows, right = Rows.upload(device, X, weights), Rows.upload(device, targets[:, None])
    loss = Loss("log" if log else "identity", 1, (power,))
    found = Repeated(rows, right, loss)(coef[0], intercept[0])
    product = second_products(rows, right, loss, coef[0], intercept[0], coef[1], intercept[1])
    wide = np.hstack([X, np.ones((len(X), 1))]).astype(np.float64)
    raw, step = (wide @ np.append(coef[i, 0], intercept[i]).astype(np.float64) for i in (0, 1))
    y, w = targets.astype(np.float64), weights.astype(np.float64)
    mean = np.exp(raw) if log else raw
    base = mean_tweedie_deviance(y, mean, sample_weight=w, power=power) * w.sum() / 2 - w @ constant(y, power)
    residuals = mean**-power * (mean - y) * (mean if log else 1)
    if log:
        bends = (2 - power) * mean ** (2 - power) - (1 - power) * y * mean ** (1 - power)
    else:
        bends = (1 - power) * mean**-power + power * y * mean ** (-power - 1)
    assert found.loss == pytest.approx(base, rel=tolerance)
    for mine, each in ((found.gradient[0], residuals), (product[0], bends * step)):
        np.testing.assert_allclose(
            mine, (w * each) @ wide, rtol=0, atol=tolerance * np.abs(w * each) @ wide.max(axis=1)
        )


def constant(y, power):
    """Return what half the deviance of a row has beside the loss."""
    if power in (0, 1):
        return y * np.log(y) - y if power else 0 * y
    return -np.log(y) - 1 if power == 2 else y ** (2 - power) / ((1 - power) * (2 - power))


def test_rows_beyond_the_last_and_rows_without_weight_add_nothing(device):
    """A mean of no distribution is not a number there; a block has more places than rows."""
    rows = Rows.upload(device, np.array([[1.0], [-1.0], [2.0]]), np.array([1.0, 0.0, 1.0]))
    right = Rows.upload(device, np.array([[1.0], [1.0], [3.0]]))
    loss, one, none = Loss("identity", 1, (1.5,)), np.ones((1, 1)), np.zeros(1)
    found = Repeated(rows, right, loss)(one, none)
    product = second_products(rows, right, loss, one, none, one, none)
    assert np.isfinite([found.loss, *found.gradient[0], *product[0]]).all()
    assert found.gradient[0, 1] == pytest.approx(2**-1.5 * (2 - 3))


def missed(v, limit):
    """Return losses, slopes and second derivatives of what is missed."""
    bend = 2.0 if limit > 1e9 else 1 / limit
    cut = np.clip(v, 0, limit)
    return bend * cut * (v - cut / 2), bend * cut, bend * ((v > 0) & (v <= limit))


@pytest.mark.fraction(3)
@pytest.mark.parametrize(("dtype", "tolerance"), TOLERANCES)
@pytest.mark.parametrize("limit", [0.5, np.inf])
@pytest.mark.parametrize(("n", "d", "k"), [(65, 17, 5), (5003, 50, 2), (1030, 130, 12), (300, 3, 1)])
def test_margins_and_distances_against_numpy(device, n, d, k, limit, dtype, tolerance):
    """Of one class, the targets are numbers."""
    X, y, weights, coef, intercept = table(n, d, max(k, 2), dtype)
    limit = min(limit, float(np.finfo(dtype).max))
    bend = 2.0 if limit > 1e9 else 1 / limit
    raw, step = (
        X.astype(np.float64) @ coef[i].astype(np.float64).T + intercept[i].astype(np.float64) for i in range(2)
    )
    if k == 1:
        targets, epsilon, up, down = np.random.default_rng(0).normal(size=n).astype(dtype), 0.2, 0.3, 0.7
        away = targets[:, None].astype(np.float64) - raw
        signs, by = np.where(away > 0, 1.0, -1.0), np.where(away > 0, up, down)
        short = np.abs(away) - epsilon
        loss = Loss("distance", 1, (limit, bend, epsilon, up, down))
    else:
        targets = y
        signs = np.where(np.arange(k) == y[:, None], 1.0, -1.0) if k > 2 else np.where(y == 1, 1.0, -1.0)[:, None]
        own = np.geomspace(0.5, 2, raw.shape[1])
        short, by = 1 - signs * raw, np.where(signs > 0, own, 1.0)
        loss = Loss("margin" if k == 2 else "margins", raw.shape[1], (limit, bend, *own))
    losses, slopes, bends = (by * each for each in missed(short, limit))
    near = np.abs(np.stack([short, short - limit])).min(axis=(0, 2)) < 1e-5  # where rounding decides
    assert near.mean() < 0.01
    rows, given = uploaded(device, X[~near], np.asarray(targets)[~near], weights[~near])
    w, ones = weights[~near].astype(np.float64), np.hstack([X[~near].astype(np.float64), np.ones((n - near.sum(), 1))])
    found = Repeated(rows, given, loss)(coef[0], intercept[0])
    product = second_products(rows, given, loss, coef[0], intercept[0], coef[1], intercept[1])
    assert found.loss == pytest.approx((w @ losses[~near]).sum(), rel=tolerance * 10)
    expected = (-signs * slopes)[~near] * w[:, None]
    scale = np.abs(expected).sum() * 5
    np.testing.assert_allclose(found.gradient, expected.T @ ones, rtol=0, atol=tolerance * scale)
    expected = (bends * step)[~near] * w[:, None]
    scale = np.abs(expected).sum() * 5
    np.testing.assert_allclose(product, expected.T @ ones, rtol=0, atol=tolerance * scale)
