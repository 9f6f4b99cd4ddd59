#!/bin/bash
# scikit-learn 1.9.1: models with rows of float32 have coefficients of float32, so that a pipeline stays in float32. Not
# so with `solver="newton-cholesky"` where some second derivatives are negative, as with a log link and a power of 0 or
# less: the solver warns that it goes on with "lbfgs", and the coefficients, the intercept and all predictions are
# float64 then, while `solver="lbfgs"` itself, on the same rows, has float32. Which dtype a fit has thus depends on the
# values of y. Exit status 1 if that has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.13}" -m venv "$folder/env"
"$folder/env/bin/pip" install -q scikit-learn==1.9.1 numpy==2.5.5
cat >"$folder/try.py" <<'PYTHON'
import warnings

import numpy as np
from sklearn.linear_model import TweedieRegressor

rng = np.random.default_rng(0)
X = rng.uniform(0.1, 1, size=(200, 4)).astype(np.float32)
mean = np.exp(X @ np.array([1.0, -1.0, 0.5, 2.0], np.float32))
targets = {"y near its mean": mean, "y far from it": mean * rng.gamma(0.5, 2, 200).astype(np.float32)}
for name, y in targets.items():
    for solver in ("lbfgs", "newton-cholesky"):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model = TweedieRegressor(power=-1, link="log", alpha=0.1, solver=solver, max_iter=1000).fit(X, y)
        resorts = any("resort to lbfgs" in str(each.message) for each in caught)
        found = model.coef_.dtype, np.asarray(model.intercept_).dtype, model.predict(X).dtype
        print(f"{name}, {solver}:", *found, "resorts to lbfgs" if resorts else "")
PYTHON
diff -b - <("$folder/env/bin/python" "$folder/try.py") <<'OUTPUT'
y near its mean, lbfgs: float32 float32 float32
y near its mean, newton-cholesky: float32 float32 float32
y far from it, lbfgs: float32 float32 float32
y far from it, newton-cholesky: float64 float64 float64 resorts to lbfgs
OUTPUT
echo "as seen"
