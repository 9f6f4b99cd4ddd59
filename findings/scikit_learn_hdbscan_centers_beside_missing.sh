#!/bin/bash
# scikit-learn 1.9.1, HDBSCAN takes rows with NaN and infinity, which get the labels -3 and -2, and has the parameter
# `store_centers`. Together they end in "IndexError: boolean index did not match indexed array": the mask of a cluster
# has all rows, and it is applied to the rows that are left. By then labels_ is set, as without store_centers, and
# centroids_ has numbers that nobody has computed, so that the object looks fitted after the exception.
# Exit status 1 if that has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/room"
"$folder/room/bin/pip" install -q scikit-learn==1.9.1 numpy==2.5.5
"$folder/room/bin/python" - <<'END'
import numpy as np
from sklearn.cluster import HDBSCAN

rng = np.random.default_rng(0)
X = np.vstack([rng.normal(c, 0.3, (40, 2)) for c in (0, 4, 8)])
whole = HDBSCAN(store_centers="centroid", copy=True).fit(X)
for value, label in ((np.nan, -3), (np.inf, -2)):
    holed = np.vstack([X, [[value, 1.0]]])
    plain = HDBSCAN(copy=True).fit(holed)
    model, said = HDBSCAN(store_centers="centroid", copy=True), "no error"
    try:
        model.fit(holed)
    except IndexError as error:
        said = f"IndexError: {error}"
    print(f"a row with {value}: label {plain.labels_[-1]}; with store_centers: {said}")
    assert plain.labels_[-1] == label and set(plain.labels_[:-1]) == {0, 1, 2}, "changed"
    assert said.startswith("IndexError: boolean index did not match"), "changed"
    assert (model.labels_ == plain.labels_).all() and len(model.centroids_) >= 3, "changed"
assert whole.centroids_.shape == (3, 2)
END
