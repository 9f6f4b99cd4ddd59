#!/bin/bash
# dpnp 0.20.0 (on a CPU, Python 3.13): a matrix with one NaN has rank 0, without a warning, also within a stack of
# matrices of which the others have theirs. With a `tol` of its own, the same matrix has rank 2. NumPy raises LinAlgError.
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

stack = np.stack([np.eye(3), np.eye(3)])
stack[1, 2, 2] = np.nan
print(dpnp.linalg.matrix_rank(dpnp.array(stack)))
print(dpnp.linalg.matrix_rank(dpnp.array(stack[1]), tol=1e-3))
try:
    print(np.linalg.matrix_rank(stack))
except np.linalg.LinAlgError as error:
    print(f"LinAlgError: {error}")
PYTHON
diff - <("$folder/env/bin/python" "$folder/try.py" 2>/dev/null | grep -v "On entry to") <<'OUTPUT'
[3 0]
2
LinAlgError: SVD did not converge
OUTPUT
echo "as seen"
