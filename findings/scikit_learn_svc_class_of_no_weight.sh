#!/bin/bash
# scikit-learn 1.9.1 (1.6.1 does the same): if all rows of a class have the weight 0, liblinear and libsvm do not see the
# class, and `LinearSVC` and `SVC` give the coefficients of the classes that are left to the first labels. Of three
# classes, of which "a" has no weight, `classes_` has three labels and `coef_` of `LinearSVC` one row, and `predict` says
# "a" for the rows of "b", and "b" for those of "c", although they are far from each other. There is no Python warning;
# the libraries print a line. `LogisticRegression` does not confuse the labels. Exit status 1 if that has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.13}" -m venv "$folder/env"
"$folder/env/bin/pip" install -q scikit-learn==1.9.1 numpy==2.5.5
cat >"$folder/try.py" <<'PYTHON'
import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.svm import SVC, LinearSVC

X = np.array([[0.0, 0], [1, 0], [10, 10], [11, 10], [0, 10], [1, 10]])
y = np.array(["a", "a", "b", "b", "c", "c"])
weights = (y != "a").astype(float)
for model in (LinearSVC(), LogisticRegression(), SVC(kernel="linear")):
    model.fit(X, y, sample_weight=weights)
    print(f"{type(model).__name__}: classes_ {' '.join(model.classes_)}, predictions {' '.join(model.predict(X[2:]))}")
print("coef_ of LinearSVC:", LinearSVC().fit(X, y, sample_weight=weights).coef_.shape)
PYTHON
diff -b - <("$folder/env/bin/python" "$folder/try.py" 2>/dev/null) <<'OUTPUT'
LinearSVC: classes_ a b c, predictions a a b b
LogisticRegression: classes_ a b c, predictions b b c c
SVC: classes_ a b c, predictions a a b b
coef_ of LinearSVC: (1, 2)
OUTPUT
echo "as seen"
