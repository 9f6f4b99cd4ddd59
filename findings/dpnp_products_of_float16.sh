#!/bin/bash
# dpnp 0.20.0 (on a CPU, Python 3.13): products of float16. Those of two matrices, outer products and convolutions are
# computed. All with a vector and a sum raise an error, also the norm, einsum and a matrix times a vector. The words do
# not name the dtype. NumPy computes all of them. Exit status 1 if that has changed.
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

PRODUCTS = {
    "matrix @ matrix": lambda np, vector, matrix: matrix @ matrix,
    "outer": lambda np, vector, matrix: np.outer(vector, vector),
    "convolve": lambda np, vector, matrix: np.convolve(vector, vector),
    "matrix @ vector": lambda np, vector, matrix: matrix @ vector,
    "dot": lambda np, vector, matrix: np.dot(vector, vector),
    "vecdot": lambda np, vector, matrix: np.vecdot(vector, vector),
    "einsum": lambda np, vector, matrix: np.einsum("i,i->", vector, vector),
    "norm": lambda np, vector, matrix: np.linalg.norm(vector),
}
for name, product in PRODUCTS.items():
    assert product(np, np.ones(2, "f2"), np.ones((2, 2), "f2")).dtype == np.float16
    try:
        print(f"{name}:", product(dpnp, dpnp.ones(2, dtype="f2"), dpnp.ones((2, 2), dtype="f2")).dtype)
    except ValueError as error:
        print(f"{name}: {error}")
PYTHON
diff - <("$folder/env/bin/python" "$folder/try.py" 2>/dev/null) <<'OUTPUT'
matrix @ matrix: float16
outer: float16
convolve: float16
matrix @ vector: No gemv implementation is available for the specified data type of the input and output arrays.
dot: No dot implementation is available for the specified data type of the input and output arrays.
vecdot: No dot implementation is available for the specified data type of the input and output arrays.
einsum: No dot implementation is available for the specified data type of the input and output arrays.
norm: No dot implementation is available for the specified data type of the input and output arrays.
OUTPUT
echo "as seen"
