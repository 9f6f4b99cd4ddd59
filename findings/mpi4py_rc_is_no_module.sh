#!/bin/bash
# mpi4py 4.1.2: `sys.modules["mpi4py.rc"]` is no module, but an object of the class mpi4py.Rc, so that `import mpi4py.rc`
# works. It has no `__name__` and no `__file__`. A tool that goes through `sys.modules`, such as one that looks for the
# modules of a program that are not installed, fails at it with AttributeError. Nothing else in the packages that these
# commands install is like it.
# Exit status 1 if that has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/room"
"$folder/room/bin/pip" install -q mpi4py==4.1.2 numpy==2.4.1 scipy==1.17.1
"$folder/room/bin/python" - <<'END'
import sys
from types import ModuleType

import mpi4py.rc
import numpy
import scipy.linalg

others = sorted(name for name, module in sys.modules.items() if not isinstance(module, ModuleType))
print("not modules:", others)
thing = sys.modules["mpi4py.rc"]
print(type(thing), "has a name:", hasattr(thing, "__name__"))
assert others == ["mpi4py.rc"], "changed"
assert not hasattr(thing, "__name__") and not hasattr(thing, "__file__"), "changed"
END
