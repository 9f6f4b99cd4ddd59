#!/bin/bash
# dpnp 0.20.0 (on a CPU, Python 3.13): decompositions of a symmetric matrix of which one number is NaN. dpnp.linalg.svd
# and pinv return NaN, and matrix_rank 0, where NumPy raises LinAlgError. cholesky raises the error that the matrix is
# not positive definite, where NumPy returns NaN. Its class has the name of NumPy's, and `except
# numpy.linalg.LinAlgError` does not catch it: both are kinds of ValueError only. Exit status 1 if that has changed.
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

CALLS = {
    "svd": lambda np, matrix: np.linalg.svd(matrix, compute_uv=False),
    "pinv": lambda np, matrix: np.linalg.pinv(matrix)[0],
    "matrix_rank": lambda np, matrix: np.linalg.matrix_rank(matrix),
    "cholesky": lambda np, matrix: np.linalg.cholesky(matrix)[1],
}
for name, call in CALLS.items():
    for package in np, dpnp:
        try:
            found = call(package, package.asarray([[np.nan, 1.0], [1.0, 2.0]]))
        except np.linalg.LinAlgError as error:
            found = f"NumPy's LinAlgError: {error}"
        except ValueError as error:
            found = f"{type(error).__module__}'s {type(error).__name__}: {error}"
        print(f"{package.__name__}, {name}: {found}")
PYTHON
diff - <("$folder/env/bin/python" "$folder/try.py" 2>/dev/null) <<'OUTPUT'
numpy, svd: NumPy's LinAlgError: SVD did not converge
dpnp, svd: [nan nan]
numpy, pinv: NumPy's LinAlgError: SVD did not converge
dpnp, pinv: [nan nan]
numpy, matrix_rank: NumPy's LinAlgError: SVD did not converge
dpnp, matrix_rank: 0
numpy, cholesky: [nan nan]
dpnp, cholesky: dpnp.linalg's LinAlgError: Matrix is not positive definite.
OUTPUT
echo "as seen"
