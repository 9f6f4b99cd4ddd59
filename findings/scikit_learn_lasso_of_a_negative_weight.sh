#!/bin/bash
# scikit-learn 1.9.1: negative sample weights, such as those of Monte Carlo events with interference, of which linear
# models take the square roots. With a single negative weight among ten, every coefficient of `Lasso` is 0.0 beside a
# finite intercept: there are a RuntimeWarning and a gap of nan, and no error, while `Ridge` says that an array must not
# contain NaN. If all weights are negative, the division by their sum turns their signs, and `Lasso` returns the fit of
# the positive ones without a word. Exit status 1 if that has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.13}" -m venv "$folder/env"
"$folder/env/bin/pip" install -q scikit-learn==1.9.1 numpy==2.5.5
cat >"$folder/try.py" <<'PYTHON'
import warnings

import numpy as np
from sklearn.linear_model import Lasso, Ridge

x = np.arange(10.0)[:, np.newaxis]
y = 2.0 * x.ravel() + np.where(x.ravel() % 2, 0.5, -0.5)
one = np.where(np.arange(10) == 4, -0.5, 1.0)

for name, weights in (("positive", np.ones(10)), ("all negative", -np.ones(10)), ("one negative", one)):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        lasso = Lasso(0.1).fit(x, y, sample_weight=weights)
    kinds = sorted({each.category.__name__ for each in caught})
    print(f"{name}: {lasso.coef_[0]:.3f}, intercept finite: {np.isfinite(lasso.intercept_)}, {kinds}")
warnings.simplefilter("ignore")
try:
    Ridge(0.1).fit(x, y, sample_weight=one)
except ValueError as error:
    print(error)
PYTHON
diff - <("$folder/env/bin/python" "$folder/try.py") <<'OUTPUT'
positive: 2.018, intercept finite: True, []
all negative: 2.018, intercept finite: True, []
one negative: 0.000, intercept finite: True, ['ConvergenceWarning', 'RuntimeWarning']
array must not contain infs or NaNs
OUTPUT
echo "as seen"
