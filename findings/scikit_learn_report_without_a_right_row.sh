#!/bin/bash
# scikit-learn 1.9.1: the support of a class, which is a number of rows, changes its type with the predictions. As long
# as one row is predicted right, `precision_recall_fscore_support` returns whole numbers, and `classification_report`
# prints "12". If no row is right, the supports are float64, and the report prints "12.0", although the truth is the
# same: whoever compares reports as text, or uses the supports as indices, finds out at the first model that is always
# wrong. Exit status 1 if that has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.13}" -m venv "$folder/env"
"$folder/env/bin/pip" install -q scikit-learn==1.9.1 numpy==2.5.5
cat >"$folder/try.py" <<'PYTHON'
from sklearn.metrics import classification_report, precision_recall_fscore_support

truth = ["cat"] * 12
for name, guess in (("one right", ["dog"] * 11 + ["cat"]), ("none right", ["dog"] * 12)):
    support = precision_recall_fscore_support(truth, guess, zero_division=0)[3]
    line = classification_report(truth, guess, zero_division=0).splitlines()[2]
    print(f"{name}: {support.dtype} {support.tolist()}, reported as {line.split()[-1]}")
PYTHON
diff - <("$folder/env/bin/python" "$folder/try.py") <<'OUTPUT'
one right: int64 [12, 0], reported as 12
none right: float64 [12.0, 0.0], reported as 12.0
OUTPUT
echo "as seen"
