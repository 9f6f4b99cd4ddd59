#!/bin/bash
# scikit-learn-intelex 2026.2.0 (the CPU, Python 3.13): without a bootstrap, the trees of a forest are not drawn
# independently of each other. With max_features=1 and twenty columns, the roots of 60 trees are splits of eight columns
# or fewer (scikit-learn 1.9.1: of sixteen or more, as drawing with replacement leads to expect), and of extremely
# randomized trees, whose thresholds are drawn too, at most 25 roots are different (scikit-learn: all 60). With a
# bootstrap the columns are as many as in scikit-learn. Such forests are less accurate: 100 extremely randomized trees of
# 20,000 rows are right for at least a hundredth of other rows less often. Exit status 1 if that has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.13}" -m venv "$folder/env"
"$folder/env/bin/pip" install -q scikit-learn-intelex==2026.2.0 scikit-learn==1.9.1 numpy==2.5.5
cat >"$folder/try.py" <<'PYTHON'
import numpy as np
import sklearn.ensemble
import sklearnex.ensemble


def rows_of(n, seed):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, 20), dtype=np.float32)
    return X, X[:, 0] * X[:, 1] + X[:, 2] - 0.5 * X[:, 3] ** 2 + 0.5 * rng.standard_normal(n) > 0


X, y = rows_of(5_000, 0)
for library in (sklearn, sklearnex):
    for kind in ("RandomForestClassifier", "ExtraTreesClassifier"):
        for bootstrap in (False, True):
            columns, roots = [], []
            for seed in (0, 1, 12345):
                made = getattr(library.ensemble, kind)(
                    60, max_features=1, bootstrap=bootstrap, random_state=seed, n_jobs=1
                )
                trees = [each.tree_ for each in made.fit(X, y).estimators_]
                columns.append(len({tree.feature[0] for tree in trees}))
                roots.append(len({(tree.feature[0], tree.threshold[0]) for tree in trees}))
            few = "eight or fewer" if max(columns) <= 8 else "sixteen or more" if min(columns) >= 16 else columns
            alike = "all different" if min(roots) == 60 else "at most 25" if max(roots) <= 25 else "others"
            said = f", roots: {alike}" if kind == "ExtraTreesClassifier" else ""
            print(f"{library.__name__}, {kind}, bootstrap={bootstrap}: columns of the roots: {few}{said}")
(X, y), (Q, q) = rows_of(20_000, 0), rows_of(20_000, 1)
right = [
    np.mean([np.mean(each.ensemble.ExtraTreesClassifier(random_state=s).fit(X, y).predict(Q) == q) for s in range(3)])
    for each in (sklearn, sklearnex)
]
print(f"at least a hundredth less often right: {right[0] - right[1] > 0.01}")
PYTHON
diff - <("$folder/env/bin/python" "$folder/try.py") <<'OUTPUT'
sklearn, RandomForestClassifier, bootstrap=False: columns of the roots: sixteen or more
sklearn, RandomForestClassifier, bootstrap=True: columns of the roots: sixteen or more
sklearn, ExtraTreesClassifier, bootstrap=False: columns of the roots: sixteen or more, roots: all different
sklearn, ExtraTreesClassifier, bootstrap=True: columns of the roots: sixteen or more, roots: all different
sklearnex, RandomForestClassifier, bootstrap=False: columns of the roots: eight or fewer
sklearnex, RandomForestClassifier, bootstrap=True: columns of the roots: sixteen or more
sklearnex, ExtraTreesClassifier, bootstrap=False: columns of the roots: eight or fewer, roots: at most 25
sklearnex, ExtraTreesClassifier, bootstrap=True: columns of the roots: sixteen or more, roots: others
at least a hundredth less often right: True
OUTPUT
echo "as seen"
