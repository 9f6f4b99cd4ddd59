#!/bin/bash
# dpnp 0.20.0 (on a CPU, Python 3.13): integers to the power -1 are 0, also 1, without an error or a warning, where
# NumPy 2.5.5 raises ValueError. dpnp.reciprocal of the same integers is float64, NumPy's is 0. Exit status 1 if that
# has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.13}" -m venv "$folder/env"
"$folder/env/bin/pip" install -q dpnp==0.20.0 dpctl==0.22.1 numpy==2.5.5 intel-opencl-rt==2026.1.2 \
    dpcpp-cpp-rt==2026.1.2 mkl==2026.1.0
export LD_LIBRARY_PATH=$folder/env/lib OCL_ICD_FILENAMES=$folder/env/lib/libintelocl.so # the CPU as SYCL's device
cat >"$folder/try.py" <<'PYTHON'
import dpnp
import numpy as np

numbers = dpnp.asarray([1, 2, 4])
print("dpnp:", numbers**-1, dpnp.reciprocal(numbers))
try:
    dpnp.asnumpy(numbers) ** -1
except ValueError as error:
    print("NumPy:", error)
print("NumPy:", np.reciprocal(dpnp.asnumpy(numbers)))
PYTHON
diff - <("$folder/env/bin/python" "$folder/try.py" 2>/dev/null) <<'OUTPUT'
dpnp: [0 0 0] [1.   0.5  0.25]
NumPy: Integers to negative integer powers are not allowed.
NumPy: [1 0 0]
OUTPUT
echo "as seen"
