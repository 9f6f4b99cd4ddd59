"""Packages that are imported without their own code, until somebody asks for what it defines."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_the_code_of_a_bare_package_runs_when_one_of_its_names_is_asked_for(tmp_path: Path) -> None:
    package = tmp_path / "thick"
    package.mkdir()
    (package / "__init__.py").write_text("print('the package runs')\nfrom thick.heavy import weight\n")
    (package / "heavy.py").write_text("print('heavy runs')\nweight = 7\n")
    (package / "light.py").write_text("from thick import other, given\nfound = other.value + given\n")
    (package / "other.py").write_text("value = 1\n")
    (package / "home.py").write_text("given = 2\n")
    code = (
        "from xpulab.libraries.bare_packages import bare\n"
        "bare('thick', given='home'); bare('no_such_package')\n"
        "import thick.light; print(thick.light.found, thick.other.value)\n"
        "bare('thick'); print(thick.weight, thick.light.found)\n"
        "print(hasattr(thick, 'nothing'), hasattr(thick, 'given'))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout.splitlines() == ["3 1", "the package runs", "heavy runs", "7 3", "False False"], done.stderr
