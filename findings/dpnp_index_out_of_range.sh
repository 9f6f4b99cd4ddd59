#!/bin/bash
# dpnp 0.20.0 (on a CPU, Python 3.13): an array of indexes that are out of range is clipped to the first and the last
# element, in reading and in writing, where NumPy raises IndexError (and CuPy's documentation says that its indexes
# wrap around). Single integers raise. Exit status 1 if that has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.13}" -m venv "$folder/env"
"$folder/env/bin/pip" install -q dpnp==0.20.0 dpctl==0.22.1 numpy==2.5.5 intel-opencl-rt==2026.1.2 \
    dpcpp-cpp-rt==2026.1.2 mkl==2026.1.0
export LD_LIBRARY_PATH=$folder/env/lib OCL_ICD_FILENAMES=$folder/env/lib/libintelocl.so # the CPU as SYCL's device
cat >"$folder/try.py" <<'PYTHON'
import dpnp

array = dpnp.asarray([10.0, 20.0, 30.0])
print("read:", array[dpnp.asarray([5, -4])])
array[dpnp.asarray([7])] = 0
print("written:", array)
try:
    array[5]
except IndexError as error:
    print("one integer:", type(error).__name__)
PYTHON
diff - <("$folder/env/bin/python" "$folder/try.py" 2>/dev/null) <<'OUTPUT'
read: [30. 10.]
written: [10. 20.  0.]
one integer: IndexError
OUTPUT
echo "as seen"
