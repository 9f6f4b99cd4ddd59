#!/bin/bash
# impi-rt 2021.17.2 and then mpich 5.0.2 in one environment: both install bin/mpiexec and a library libmpi.so.12, the
# second package replaces the files of the first, and `pip check` finds nothing wrong. When mpich is uninstalled, the
# mpiexec is gone, although impi-rt is still installed. Exit status 1 if that has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/room"
cd "$folder/room"
bin/pip install -q impi-rt==2021.17.2
before=$(sha256sum bin/mpiexec)
bin/pip install -q mpich==5.0.2
after=$(sha256sum bin/mpiexec)
[ "$before" != "$after" ] || { echo "changed: mpich leaves the mpiexec of impi-rt as it is"; exit 1; }
bin/pip check
bin/pip uninstall -q -y mpich
bin/pip show -q impi-rt
[ ! -e bin/mpiexec ] || { echo "changed: there is an mpiexec after mpich has gone"; exit 1; }
bin/pip check
echo "as seen: impi-rt is installed, pip check is content, and there is no mpiexec"
