#!/bin/bash
# scikit-learn 1.9.1, HistGradientBoostingRegressor with a column of one category and missing values: a split between
# the two is kept without the set of categories that go to the left, so that later rows of that category go to the
# right, with the missing ones. It happens where the category has the smaller gradients, here the larger targets: the
# loss in the fit is 0.004, and the mean squared error of predict for the same rows is 5.2, with one prediction for all.
# The same column taken as numbers, or targets of the other sign, give 0.004 in both. Nothing warns. Seen in 1.6.1, too.
# Exit status 1 if that has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/room"
"$folder/room/bin/pip" install -q scikit-learn==1.9.1 numpy==2.5.5
"$folder/room/bin/python" - <<'END'
import numpy as np
from sklearn.ensemble import HistGradientBoostingRegressor

there = np.random.default_rng(0).random(4000) < 0.6
X = np.where(there, 1.0, np.nan)[:, None]


def errors(y, categories):
    model = HistGradientBoostingRegressor(
        categorical_features=categories, max_iter=30, early_stopping=True, validation_fraction=None, scoring="loss"
    ).fit(X, y)
    return -2 * model.train_score_[-1], np.mean((model.predict(X) - y) ** 2)


fit, later = errors(3.0 * there, [0])
print(f"a category: {fit:.4f} in the fit, {later:.4f} of predict")
numbers, opposite = errors(3.0 * there, None), errors(-3.0 * there, [0])
print("as numbers: {:.4f} and {:.4f}; targets of the other sign: {:.4f} and {:.4f}".format(*numbers, *opposite))
assert fit < 0.01 and later > 5, "changed"
assert max(*numbers, *opposite) < 0.01, "changed"
END
