#!/bin/bash
# dpnp 0.20.0 (on a CPU, Python 3.13) with NumPy 2.5.5: np.array_equal of a dpnp array and itself is False. It tries
# np.asarray, which dpnp refuses with a TypeError, and takes any error for "not equal". np.allclose and
# np.testing.assert_array_equal let the TypeError pass; np.sum works, because it calls the array's own method. Exit
# status 1 if that has changed.
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

array = dpnp.asarray([1.0, 2.0])


def outcome(call):
    try:
        return call()
    except TypeError as error:
        return f"TypeError: {error}".partition(".")[0]


print("np.array_equal:", outcome(lambda: np.array_equal(array, array)))
print("dpnp.array_equal:", outcome(lambda: dpnp.array_equal(array, array)))
print("np.allclose:", outcome(lambda: np.allclose(array, array)))
print("np.testing:", outcome(lambda: np.testing.assert_array_equal(array, array)))
print("np.sum:", outcome(lambda: np.sum(array)))
PYTHON
diff - <("$folder/env/bin/python" "$folder/try.py" 2>/dev/null) <<'OUTPUT'
np.array_equal: False
dpnp.array_equal: True
np.allclose: TypeError: Implicit conversion to a NumPy array is not allowed
np.testing: TypeError: Implicit conversion to a NumPy array is not allowed
np.sum: 3.
OUTPUT
echo "as seen"
