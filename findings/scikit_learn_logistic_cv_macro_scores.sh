#!/bin/bash
# scikit-learn 1.9.1: `LogisticRegressionCV` tells a scorer whose metric has the parameter `labels` all classes, and of
# two classes also `pos_label`. The scorers "f1_macro", "precision_weighted" and their like have a `pos_label` of their
# own, None, so that with two classes each of them ends in a TypeError about an argument that is given twice; scikit-learn's `cross_val_score` takes them. With three classes they work, and with two
# classes "f1" does. Exit status 1 if that has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.13}" -m venv "$folder/env"
"$folder/env/bin/pip" install -q scikit-learn==1.9.1 numpy==2.5.5
cat >"$folder/try.py" <<'PYTHON'
import warnings

import numpy as np
from sklearn.linear_model import LogisticRegression, LogisticRegressionCV
from sklearn.metrics import get_scorer_names
from sklearn.model_selection import cross_val_score

warnings.simplefilter("ignore")  # of defaults, and of classes that are not predicted
rng = np.random.default_rng(0)
X = rng.normal(size=(120, 3))
for classes in (2, 3):
    y = np.argsort(np.argsort(X[:, 0] + rng.normal(size=120))) * classes // 120
    for kind in ("macro", "micro", "weighted"):
        names = [f"{score}_{kind}" for score in ("f1", "jaccard", "precision", "recall")]
        assert set(names) <= set(get_scorer_names())
        said = set()
        for name in names:
            cross_val_score(LogisticRegression(), X, y, scoring=name, cv=3)
            try:
                LogisticRegressionCV(Cs=2, cv=3, scoring=name).fit(X, y)
                said.add("fitted")
            except TypeError as error:
                said.add(str(error).rpartition("got ")[2])
        print(f"{classes} classes: {', '.join(names)}: {', '.join(sorted(said))}")
    if classes == 2:
        print(f"2 classes: f1: {LogisticRegressionCV(Cs=2, cv=3, scoring='f1').fit(X, y).C_.shape}")
PYTHON
diff -b - <("$folder/env/bin/python" "$folder/try.py") <<'OUTPUT'
2 classes: f1_macro, jaccard_macro, precision_macro, recall_macro: multiple values for keyword argument 'pos_label'
2 classes: f1_micro, jaccard_micro, precision_micro, recall_micro: multiple values for keyword argument 'pos_label'
2 classes: f1_weighted, jaccard_weighted, precision_weighted, recall_weighted: multiple values for keyword argument 'pos_label'
2 classes: f1: (1,)
3 classes: f1_macro, jaccard_macro, precision_macro, recall_macro: fitted
3 classes: f1_micro, jaccard_micro, precision_micro, recall_micro: fitted
3 classes: f1_weighted, jaccard_weighted, precision_weighted, recall_weighted: fitted
OUTPUT
echo "as seen"
