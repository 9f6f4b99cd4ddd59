#!/bin/bash
# scikit-learn 1.9.1, GridSearchCV with n_jobs=2 whose `fit` is called a second time: the search sends itself with each
# fit to joblib's processes, and with itself the `best_estimator_` of the fit before. A model that keeps its rows, such
# as neighbours, sends them again and again. Here 10,000 x 10 rows are 0.8 MB: the first fit of the search pickles no
# fitted model, the second one between one and eight times, for eight fits, as joblib has put them together. With
# scikit-learn 1.8.0 neither does: since 1.9 the function that fits a fold gets the search, for callbacks. A new search,
# or clone(search), sends nothing of it.
# Exit status 1 if that has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat > "$folder/twice.py" <<'END'
import os
import sys

import numpy as np
import sklearn
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.model_selection import GridSearchCV

here, sent = os.getpid(), []


class Keeps(ClassifierMixin, BaseEstimator):
    def __init__(self, a=1):
        self.a = a

    def fit(self, X, y):
        self.classes_, self.rows_ = np.unique(y), np.array(X)
        return self

    def predict(self, X):
        return np.zeros(len(X), int)

    def __getstate__(self):
        if os.getpid() == here and hasattr(self, "rows_"):
            sent.append(self.rows_.nbytes)
        return super().__getstate__()


if __name__ == "__main__":
    X, y = np.random.default_rng(0).random((10_000, 10)), np.arange(10_000) % 2
    search = GridSearchCV(Keeps(), {"a": [1, 2, 3, 4]}, cv=2, n_jobs=2)
    counts = []
    for _ in range(2):
        sent.clear()
        search.fit(X, y)
        counts.append(len(sent))
    print(f"scikit-learn {sklearn.__version__}: fitted models that were pickled in each fit of the search: {counts}")
    first, second = counts
    assert first == 0 and (second > 0) == (sys.argv[1] == "sends"), "changed"
END
for release in 1.9.1:sends 1.8.0:keeps; do
    "${PYTHON:-python3}" -m venv --clear "$folder/room"
    "$folder/room/bin/pip" install -q "scikit-learn==${release%:*}" numpy==2.4.1
    "$folder/room/bin/python" "$folder/twice.py" "${release#*:}"
done
