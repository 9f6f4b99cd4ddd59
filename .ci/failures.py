"""Prints what failed in the runs of pytest whose JUnit files are in a folder: python .ci/failures.py FOLDER."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from junit import failures_in

_LINES = 80  # at most, of a traceback: its end says what went wrong

for file in sorted(Path(sys.argv[1]).glob("*.xml")):
    for test, tracebacks in failures_in(file).items():
        print(f"\n--- {file.stem}: {test}")
        print("\n".join(tracebacks[0].splitlines()[-_LINES:]))
