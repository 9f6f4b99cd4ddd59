"""Prints what failed in the runs of pytest whose JUnit files are in a folder: python .ci/failures.py FOLDER."""

import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

_LINES = 60  # at most, of a traceback: its end says what went wrong

for file in sorted(Path(sys.argv[1]).glob("*.xml")):
    for case in ElementTree.parse(file).iter("testcase"):
        for kind in ("failure", "error"):
            for found in case.findall(kind):
                print(f"\n--- {file.stem}: {kind} of {case.get('classname')}::{case.get('name')}")
                print("\n".join((found.text or found.get("message") or "").splitlines()[-_LINES:]))
