#!/bin/bash
# scikit-learn 1.9.1, HistGradientBoostingRegressor with categorical_features and interaction_cst: the trees have the
# columns of categories first, and the groups of interaction_cst are taken as numbers in that order, and not of the
# columns of X. (monotonic_cst is brought into that order.) Here the target is the product of columns 0 and 1 beside a
# column 2 of six categories. With interaction_cst=[{0, 1}, {2}], R2 is 0.31; with the groups [{1, 2}, {0}], which are
# those of the trees, it is 0.96, as is that of the right groups without categorical_features. Nothing warns. Seen in
# 1.6.1, too. Exit status 1 if that has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/room"
"$folder/room/bin/pip" install -q scikit-learn==1.9.1 numpy==2.5.5
"$folder/room/bin/python" - <<'END'
import numpy as np
from sklearn.ensemble import HistGradientBoostingRegressor

rng = np.random.default_rng(0)
X = np.column_stack([rng.normal(size=4000), rng.normal(size=4000), rng.integers(0, 6, 4000)])
y = X[:, 0] * X[:, 1] + X[:, 2] % 2


def score(groups, categories):
    model = HistGradientBoostingRegressor(
        interaction_cst=groups, categorical_features=categories, max_iter=60, random_state=0
    )
    return model.fit(X, y).score(X, y)


named, shifted = score([{0, 1}, {2}], [2]), score([{1, 2}, {0}], [2])
plain = score([{0, 1}, {2}], None)
print(f"R2: {named:.2f} with the groups of X, {shifted:.2f} with others, {plain:.2f} without categories")
assert named < 0.5 < 0.9 < min(shifted, plain), "changed"
END
