#!/bin/bash
# scikit-learn 1.9.1 (1.6.1 does the same): of twelve rows with eight columns, `HuberRegressor` without a penalty ends
# without a warning, far above the least value of its own objective, however small `tol` and large `max_iter` are: the
# coefficients of `QuantileRegressor` (least absolute deviations) with a scale near 0 have a value that is 2 % (with an
# epsilon of 1.35) to 7 % (with 1.0) less. Exit status 1 if that has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.13}" -m venv "$folder/env"
"$folder/env/bin/pip" install -q scikit-learn==1.9.1 numpy==2.5.5
cat >"$folder/try.py" <<'PYTHON'
import warnings

import numpy as np
from sklearn.linear_model import HuberRegressor, QuantileRegressor

warnings.simplefilter("error")
rng = np.random.default_rng(0)
X = rng.normal(size=(12, 8))
y = X @ np.arange(1.0, 9) + 3 * rng.standard_t(1, 12) + 100


def objective(coef, intercept, scale, epsilon):
    z = np.abs(y - X @ coef - intercept) / scale
    return (scale + scale * np.where(z < epsilon, z**2, 2 * epsilon * z - epsilon**2)).sum()


other = QuantileRegressor(alpha=0.0).fit(X, y)
for epsilon in (1.0, 1.05, 1.35):
    model = HuberRegressor(epsilon=epsilon, alpha=0.0, tol=1e-8, max_iter=100_000).fit(X, y)
    reached = objective(model.coef_, model.intercept_, model.scale_, epsilon)
    less = 1 - objective(other.coef_, other.intercept_, 1e-12, epsilon) / reached
    print(f"epsilon {epsilon}: another point has {'more than 1 %' if less > 0.01 else 'hardly'} less")
PYTHON
diff -b - <("$folder/env/bin/python" "$folder/try.py") <<'OUTPUT'
epsilon 1.0: another point has more than 1 % less
epsilon 1.05: another point has more than 1 % less
epsilon 1.35: another point has more than 1 % less
OUTPUT
echo "as seen"
