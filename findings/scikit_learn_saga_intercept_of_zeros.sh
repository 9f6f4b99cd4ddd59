#!/bin/bash
# scikit-learn 1.9.1: `LogisticRegression(solver="saga", l1_ratio=1)` ends when the largest change of a coefficient in an
# epoch is at most `tol` times the largest coefficient. Where the penalty is so strong that all coefficients are zero,
# both are zero after the first epoch, whatever `tol` and `max_iter` are; the intercept, which has no penalty and which
# the rule does not see, is where this epoch has left it. Without a warning, `n_iter_` is 1, and the mean of the
# predicted probabilities is not the share of the class, as it is at the optimum of any logistic regression with an
# intercept. With a penalty that leaves one coefficient, it is. Exit status 1 if that has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.13}" -m venv "$folder/env"
"$folder/env/bin/pip" install -q scikit-learn==1.9.1 numpy==2.5.5
cat >"$folder/try.py" <<'PYTHON'
import warnings

from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import scale

warnings.simplefilter("error")
X, y = load_breast_cancer(return_X_y=True)
X = scale(X)
for C, tol in ((1e-3, 1e-4), (1e-3, 1e-12), (1e-2, 1e-12)):
    model = LogisticRegression(solver="saga", l1_ratio=1, C=C, tol=tol, max_iter=100_000, random_state=0).fit(X, y)
    mean = model.predict_proba(X)[:, 1].mean()
    several = "epoch" if model.n_iter_[0] == 1 else "epochs"
    print(f"C={C}, tol={tol}: one {several}" if several == "epoch" else f"C={C}, tol={tol}: many {several}", end="; ")
    print(f"{(model.coef_ != 0).sum()} coefficients; mean {mean:.3f}, share {y.mean():.3f}")
PYTHON
diff -b - <("$folder/env/bin/python" "$folder/try.py") <<'OUTPUT'
C=0.001, tol=0.0001: one epoch; 0 coefficients; mean 0.588, share 0.627
C=0.001, tol=1e-12: one epoch; 0 coefficients; mean 0.588, share 0.627
C=0.01, tol=1e-12: many epochs; 2 coefficients; mean 0.627, share 0.627
OUTPUT
echo "as seen"
