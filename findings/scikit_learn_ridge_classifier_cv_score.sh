#!/bin/bash
# scikit-learn 1.9.1 (1.6.1 does the same): `RidgeClassifierCV` without folds, the default, chooses its penalty by the
# errors of rows that were left out. With a `scoring` such as "accuracy" and two classes, it chooses nothing: the one
# column of targets, -1 and 1, is turned into a class by argmax, which is 0 for each row, and so is the prediction, so
# that every penalty has an accuracy of 1.0. The first of `alphas` is taken, in whatever order they are given. The
# accuracy of rows that were really left out is another, and of other penalties it is higher. With three classes, the
# figures agree. Exit status 1 if that has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.13}" -m venv "$folder/env"
"$folder/env/bin/pip" install -q scikit-learn==1.9.1 numpy==2.5.5
cat >"$folder/try.py" <<'PYTHON'
import numpy as np
from sklearn.linear_model import RidgeClassifier, RidgeClassifierCV
from sklearn.model_selection import LeaveOneOut, cross_val_score

rng = np.random.default_rng(0)
X = rng.normal(size=(60, 40))
score = X[:, 0] + rng.normal(size=60)
for classes in (2, 3):
    y = np.argsort(np.argsort(score)) * classes // 60
    for alphas in ([0.1, 10.0, 10_000.0], [10_000.0, 10.0, 0.1]):
        model = RidgeClassifierCV(alphas=alphas, scoring="accuracy").fit(X, y)
        fits = (RidgeClassifier(alpha=alpha) for alpha in alphas)
        left_out = [float(cross_val_score(fit, X, y, cv=LeaveOneOut()).mean().round(3)) for fit in fits]
        chosen, found = float(model.alpha_), float(round(model.best_score_, 3))
        print(f"{classes} classes: chosen {chosen} with {found}; left out: {dict(zip(alphas, left_out))}")
PYTHON
diff -b - <("$folder/env/bin/python" "$folder/try.py") <<'OUTPUT'
2 classes: chosen 0.1 with 1.0; left out: {0.1: 0.567, 10.0: 0.533, 10000.0: 0.0}
2 classes: chosen 10000.0 with 1.0; left out: {10000.0: 0.0, 10.0: 0.533, 0.1: 0.567}
3 classes: chosen 10.0 with 0.383; left out: {0.1: 0.367, 10.0: 0.383, 10000.0: 0.0}
3 classes: chosen 10.0 with 0.383; left out: {10000.0: 0.0, 10.0: 0.383, 0.1: 0.367}
OUTPUT
echo "as seen"
