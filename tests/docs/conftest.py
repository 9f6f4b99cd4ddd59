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

ABSENT = [name for name in NEEDED if importlib.util.find_spec(name) is None]

sys.path.insert(0, str(ROOT / "docs" / "_extensions"))


class Skipped(pytest.Module):
    """A module of tests that is not imported, because it imports the extensions of docs/, and these import Sphinx."""

    def collect(self) -> list[pytest.Item]:
        """Skip the module."""
        pytest.skip(f"{', '.join(ABSENT)} not found; to install, type: .venv/bin/pip install -e '.[docs]'")


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    """Skip the modules of this folder where a package is missing, and say which."""
    if ABSENT and not os.environ.get("XPULAB_REQUIRE_DOCS"):
        return Skipped.from_parent(parent, path=module_path)
    return None


@pytest.fixture(scope="session")
def site() -> Path:
    """The folder of the site, built anew by the command that CONTRIBUTING.md names.

    A second build would not repeat the warnings of the first.
    """
    target = ROOT / "build" / "docs"
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-E", "-b", "html", "docs", str(target)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1400)
    assert done.returncode == 0, done.stdout + done.stderr
    return target
