#!/bin/bash
# scikit-learn 1.9.1, HDBSCAN: what `alpha` means depends on `algorithm`, which should only change how fast the fit is.
# With "kd_tree", "ball_tree" and "auto", distances of two rows are divided by alpha, and core distances are not, as the
# robust single linkage has it: of 300 rows of a normal distribution, alpha 0.5, 1 and 2 leave 53, 224 and 260 as noise.
# With "brute", and with metrics that only "brute" computes, such as "cosine", the matrix of distances is divided before
# the core distances are taken from it: alpha then changes the scale of the tree and no label, and 219 rows are noise
# for each alpha. (The two differ by a few rows at alpha 1, because ties are sorted in another order.) Nothing warns.
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
rng.normal(size=(120, 2))
X = rng.normal(size=(300, 2))
noise = {}
for algorithm in ("auto", "kd_tree", "ball_tree", "brute"):
    fits = [HDBSCAN(alpha=a, algorithm=algorithm, min_samples=10, copy=True).fit(X) for a in (0.5, 1.0, 2.0)]
    noise[algorithm] = [int((fit.labels_ == -1).sum()) for fit in fits]
    print(algorithm, "rows of noise for alpha 0.5, 1 and 2:", noise[algorithm])
assert noise["auto"] == noise["kd_tree"] == noise["ball_tree"], "changed"
assert noise["kd_tree"][0] < noise["kd_tree"][1] / 2 and noise["kd_tree"][1] < noise["kd_tree"][2], "changed"
assert len(set(noise["brute"])) == 1 and abs(noise["brute"][0] - noise["kd_tree"][1]) < 20, "changed"
END
