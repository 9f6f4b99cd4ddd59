"""Reads what failed from the files that ``pytest --junitxml`` writes."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path

__all__ = ["count_tests", "failures_in"]


def count_tests(file: Path) -> int:
    """Return the number of tests of the run."""
    return sum(1 for _ in ElementTree.parse(file).iter("testcase"))


def failures_in(file: Path) -> dict[str, list[str]]:
    """Return the tests that failed, also those that passed at their second run: test -> traceback of each failure.

    `conftest.py` notes the traceback of each failure as a property. The file's own elements have those of the last run.
    """
    found: dict[str, list[str]] = {}
    for case in ElementTree.parse(file).iter("testcase"):
        texts = [each.get("value", "") for each in case.iterfind("properties/property[@name='traceback']")]
        last = [each.text or each.get("message") or "" for each in case if each.tag in ("failure", "error")]
        for text in texts + last:
            known = found.setdefault(f"{case.get('classname')}::{case.get('name')}", [])
            if text not in known:
                known.append(text)
    return found
