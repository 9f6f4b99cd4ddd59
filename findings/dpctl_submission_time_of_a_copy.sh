#!/bin/bash
# dpctl 0.17.0 with Intel's OpenCL runtime 2024.2.1 (the CPU, Python 3.11): the event of a copy between two pieces of
# USM memory says 0 for the time of its submission, while its beginning and its end are nanoseconds of the clock of
# time.perf_counter, so that the wait in the queue seems to have lasted since the computer's start. dpctl 0.22.1 with
# the runtime 2026.1.2 has all three. Exit status 1 if that has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat >"$folder/try.py" <<'PYTHON'
import time

import dpctl
import dpctl.memory

queue = dpctl.SyclQueue("cpu", property="enable_profiling")
one, other = (dpctl.memory.MemoryUSMDevice(1 << 20, queue=queue) for _ in range(2))
before = time.perf_counter_ns()
event = queue.memcpy_async(one, other, 1 << 20)
event.wait()
after = time.perf_counter_ns()
print("submitted:", "0" if event.profiling_info_submit == 0 else before < event.profiling_info_submit < after)
print("begun and ended:", before < event.profiling_info_start < event.profiling_info_end < after)
PYTHON
# seen PYTHON PACKAGE ...: what is seen with these packages
seen() {
    "$1" -m venv "$folder/env"
    "$folder/env/bin/pip" install -q "${@:2}"
    LD_LIBRARY_PATH=$folder/env/lib OCL_ICD_FILENAMES=$folder/env/lib/libintelocl.so "$folder/env/bin/python" "$folder/try.py"
    rm -rf "$folder/env"
}
diff - <(
    seen "${PYTHON:-python3.11}" dpctl==0.17.0 numpy==1.26.4 dpcpp-cpp-rt==2024.2.1 intel-cmplr-lib-rt==2024.2.1 \
        intel-opencl-rt==2024.2.1
    seen "${PYTHON_313:-python3.13}" dpctl==0.22.1 numpy==2.5.5 dpcpp-cpp-rt==2026.1.2 intel-opencl-rt==2026.1.2
) <<'OUTPUT'
submitted: 0
begun and ended: True
submitted: True
begun and ended: True
OUTPUT
echo "as seen"
