"""The site, built once for its tests. Without Sphinx these tests are skipped, unless XPULAB_REQUIRE_DOCS is set."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NEEDED = ("sphinx", "numpydoc", "pydata_sphinx_theme", "myst_nb")

collect_ignore: list[str] = []
if not os.environ.get("XPULAB_REQUIRE_DOCS") and any(importlib.util.find_spec(name) is None for name in NEEDED):
    # Its modules import the extensions of docs/, and these import Sphinx.
    collect_ignore = [path.name for path in Path(__file__).parent.glob("test_*.py")]

sys.path.insert(0, str(ROOT / "docs" / "_extensions"))


@pytest.fixture(scope="session")
def site() -> Path:
    """The folder of the site, built by the command that CONTRIBUTING.md names."""
    target = ROOT / "build" / "docs"
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", "docs", str(target)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    return target
