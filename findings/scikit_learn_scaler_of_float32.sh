#!/bin/bash
# scikit-learn 1.9.1: StandardScaler of float32 rows far from zero (even whole numbers from 16,777,216 on, which
# float32 holds exactly) has the exact mean in float64, and subtracts it after rounding it to float32. The transformed
# column has a mean of -0.16 instead of 0, with a standard deviation of 1. Exit status 1 if that has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.13}" -m venv "$folder/env"
"$folder/env/bin/pip" install -q scikit-learn==1.9.1 numpy==2.5.5
cat >"$folder/try.py" <<'PYTHON'
import numpy as np
from sklearn.preprocessing import StandardScaler

random = np.random.default_rng(0)
rows = 2.0**24 + 2 * random.integers(0, 8, (1000, 1))
for dtype in "float32", "float64":
    scaler = StandardScaler().fit(rows.astype(dtype))
    scaled = scaler.transform(rows.astype(dtype)).astype("float64")
    print(dtype, scaler.mean_.dtype, scaler.mean_, f"{abs(scaled.mean()):.2f} {scaled.std():.2f}")
PYTHON
diff - <("$folder/env/bin/python" "$folder/try.py") <<'OUTPUT'
float32 float64 [16777223.262] 0.16 1.00
float64 float64 [16777223.262] 0.00 1.00
OUTPUT
echo "as seen"
