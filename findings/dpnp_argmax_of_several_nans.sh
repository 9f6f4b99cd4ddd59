#!/bin/bash
# dpnp 0.20.0 (on a CPU, Python 3.13): argmax and argmin of numbers with several NaN. NumPy returns the index of the
# first NaN. dpnp returns that of the last among 100 numbers, and that of the first among a million. Exit status 1 if
# that has changed.
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

for size in 100, 1_000_000:
    numbers = np.zeros(size)
    numbers[[8, 14, 51]] = np.nan
    rows = dpnp.asarray(numbers)
    print(size, np.argmax(numbers), dpnp.argmax(rows), dpnp.argmin(rows), dpnp.argmax(rows[None], axis=1)[0])
PYTHON
diff - <("$folder/env/bin/python" "$folder/try.py" 2>/dev/null) <<'OUTPUT'
100 8 51 51 51
1000000 8 8 8 8
OUTPUT
echo "as seen"
