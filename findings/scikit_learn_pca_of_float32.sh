#!/bin/bash
# scikit-learn 1.9.1: PCA of float32 rows, of which one column has values near 100,000 with a standard deviation of 4
# and the other has values near 0 with one of 1. The solver that svd_solver="auto" takes for rows with few columns,
# covariance_eigh, subtracts the product of the means from the matrix of products in float32. The largest variance that
# it finds is wrong by more than half. The other solvers are right, and so is this one in float64. Exit status 1 if
# that has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.13}" -m venv "$folder/env"
"$folder/env/bin/pip" install -q scikit-learn==1.9.1 numpy==2.5.5
cat >"$folder/try.py" <<'PYTHON'
import numpy as np
from sklearn.decomposition import PCA

random = np.random.default_rng(0)
rows = np.column_stack([100_000 + 4 * random.normal(size=1000), random.normal(size=1000)])
for dtype in "float32", "float64":
    for solver in "auto", "full", "randomized", "arpack":
        pca = PCA(1, svd_solver=solver, random_state=0).fit(rows.astype(dtype))
        found, true = pca.explained_variance_[0], rows.var(axis=0, ddof=1).max()
        error = abs(found - true) / true
        verdict = "right" if error < 0.01 else "wrong by more than half" if error > 0.5 else error
        print(dtype, pca._fit_svd_solver, verdict)
PYTHON
diff - <("$folder/env/bin/python" "$folder/try.py") <<'OUTPUT'
float32 covariance_eigh wrong by more than half
float32 full right
float32 randomized right
float32 arpack right
float64 covariance_eigh right
float64 full right
float64 randomized right
float64 arpack right
OUTPUT
echo "as seen"
