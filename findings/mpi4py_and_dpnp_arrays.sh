#!/bin/bash
# mpi4py 4.1.2 with dpnp 0.20.0 (Python 3.13): a dpnp array is refused as a buffer of Allreduce, although both know
# DLPack. mpi4py asks for stream=-1, the number that CUDA's arrays understand, and dpnp expects a queue of SYCL. Nor
# can the array be sent as an object: it has no pickle. asnumpy() is what one has to type. Exit status 1 if that has
# changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.13}" -m venv "$folder/env"
"$folder/env/bin/pip" install -q dpnp==0.20.0 dpctl==0.22.1 numpy==2.5.5 intel-opencl-rt==2026.1.2 \
    dpcpp-cpp-rt==2026.1.2 mkl==2026.1.0 mpi4py==4.1.2 mpich==5.0.2
export LD_LIBRARY_PATH=$folder/env/lib OCL_ICD_FILENAMES=$folder/env/lib/libintelocl.so # the CPU as SYCL's device
cat >"$folder/try.py" <<'PYTHON'
import pickle

import dpnp
import numpy as np
from mpi4py import MPI

world = MPI.COMM_WORLD
array = dpnp.asarray([1.0, 2.0])


def outcome(call):
    try:
        call()
    except TypeError as error:
        return f"TypeError: {error}"
    return "passed"


print("Allreduce:", outcome(lambda: world.Allreduce(array, dpnp.empty(2))))
print("pickle:", outcome(lambda: pickle.dumps(array)))
print("asnumpy:", outcome(lambda: world.Allreduce(dpnp.asnumpy(array), np.empty(2))))
PYTHON
diff - <("$folder/env/bin/mpiexec" -n 1 "$folder/env/bin/python" "$folder/try.py" 2>/dev/null) <<'OUTPUT'
Allreduce: TypeError: stream argument type was expected to be dpctl.SyclQueue, got <class 'int'> instead
pickle: TypeError: no default __reduce__ due to non-trivial __cinit__
asnumpy: passed
OUTPUT
echo "as seen"
