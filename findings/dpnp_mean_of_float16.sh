#!/bin/bash
# dpnp 0.20.0 (on a CPU, Python 3.13): the mean of 65,536 ones in float16 is nan, and so is their variance, without a
# warning. NumPy adds them in float32: its mean is 1. Of 65,504 ones, whose sum float16 holds, dpnp's mean is 1, too.
# Exit status 1 if that has changed.
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

for size in 65_504, 65_536:
    ones = dpnp.ones(size, dtype="float16")
    print(size, dpnp.mean(ones), dpnp.var(ones), np.mean(dpnp.asnumpy(ones)))
PYTHON
diff - <("$folder/env/bin/python" "$folder/try.py" 2>/dev/null) <<'OUTPUT'
65504 1. 0. 1.0
65536 nan nan 1.0
OUTPUT
echo "as seen"
