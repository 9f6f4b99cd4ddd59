#!/bin/bash
# scikit-learn 1.9.1 (1.6.1 does the same): `LogisticRegressionCV` takes `l1_ratios` as a list. With `refit=False`, the
# mean of the best shares of the folds indexes this list with an array, which a list cannot: after all fits, `fit` raises
# a TypeError. The same shares as an array, or the list with `refit=True`, are fitted. Exit status 1 if that has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.13}" -m venv "$folder/env"
"$folder/env/bin/pip" install -q scikit-learn==1.9.1 numpy==2.5.5
cat >"$folder/try.py" <<'PYTHON'
import warnings

import numpy as np
from sklearn.linear_model import LogisticRegressionCV

warnings.simplefilter("ignore", FutureWarning)
rng = np.random.default_rng(0)
X = rng.normal(size=(120, 3))
y = (X[:, 0] + rng.normal(size=120) > 0).astype(int)
for ratios in ([0.1, 0.9], np.array([0.1, 0.9])):
    for refit in (True, False):
        model = LogisticRegressionCV(Cs=2, cv=3, solver="saga", l1_ratios=ratios, refit=refit, max_iter=10_000)
        try:
            said = f"fitted, coef_ of shape {model.fit(X, y).coef_.shape}"
        except TypeError as error:
            said = f"{error}"
        print(f"{type(ratios).__name__}, refit={refit}: {said}")
PYTHON
diff -b - <("$folder/env/bin/python" "$folder/try.py") <<'OUTPUT'
list, refit=True: fitted, coef_ of shape (1, 3)
list, refit=False: only integer scalar arrays can be converted to a scalar index
ndarray, refit=True: fitted, coef_ of shape (1, 3)
ndarray, refit=False: fitted, coef_ of shape (1, 3)
OUTPUT
echo "as seen"
