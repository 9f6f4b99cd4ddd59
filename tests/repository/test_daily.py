"""The tools for daily work: the tests of what has changed, and rounds of tests."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from junit import count_tests, failures_in

from tests.changed import changed_files, concerned_by

ROOT = Path(__file__).parents[2]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with a package of two estimators, a task, and tests of them."""
    files = {
        "xpulab/__init__.py": "from xpulab import first\n",
        "xpulab/cluster/__init__.py": "from xpulab.cluster._a import A\nfrom xpulab.cluster._b import B\n",
        "xpulab/cluster/_a.py": "class A:\n    def fit(self):\n        self._ask('fit', 'a.fit')\n",
        "xpulab/cluster/_b.py": "if TYPE_CHECKING:\n    from xpulab.cluster import A\nB = 1\n",
        "xpulab/cluster/part.css": "",
        "xpulab/engine/a.py": "from xpulab.engine import sums\n@task('a.fit')\ndef fit(): ...\n",
        "xpulab/engine/sums.py": "",
        "tests/conftest.py": "import xpulab.engine.sums\n",
        "tests/support/tools.py": "",
        "tests/cluster/test_a.py": "from xpulab.cluster import A\n",
        "tests/cluster/test_b.py": "from xpulab.cluster import B\nfrom tools import some\n",
        "tests/engine/test_sums.py": "def test():\n    from xpulab.engine.sums import total\n",
        "notebooks/01.ipynb": "{}",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        (["xpulab/cluster/_a.py"], ["tests/cluster/test_a.py"]),  # neither B's, which has it for types only
        (["xpulab/engine/a.py"], ["tests/cluster/test_a.py"]),  # which sends the task
        (["xpulab/engine/sums.py"], ["tests/cluster/test_a.py", "tests/engine/test_sums.py"]),
        (["tests/support/tools.py"], ["tests/cluster/test_b.py"]),
        (["tests/cluster/test_b.py", "tests/cluster/test_gone.py"], ["tests/cluster/test_b.py"]),
        (["xpulab/cluster/part.css"], ["tests/cluster/test_a.py", "tests/cluster/test_b.py"]),
        (["tests/conftest.py"], ["tests"]),
        (["notebooks/01.ipynb", "notebooks/02.ipynb"], ["notebooks/01.ipynb"]),
        (["docs/index.md"], ["tests/docs"]),
        (["LICENSE"], []),
    ],
)
def test_the_tests_of_a_change_are_found_by_the_imports(project: Path, changed: list[str], expected: list[str]) -> None:
    assert concerned_by(changed, project) == expected


def test_changed_files_are_those_that_differ_from_a_branch(project: Path) -> None:
    def git(*words: str) -> None:
        identity = ["-c", "user.name=A", "-c", "user.email=a@example.org"]
        subprocess.run(["git", *identity, *words], cwd=project, check=True, capture_output=True)

    git("init", "--initial-branch", "main")
    git("add", ".")
    git("commit", "-m", "first")
    assert changed_files(project) == []
    git("switch", "-c", "work")
    (project / "xpulab/engine/sums.py").write_text("1")
    git("commit", "-am", "second")
    (project / "xpulab/engine/a.py").unlink()
    (project / "new.py").touch()
    assert changed_files(project) == ["new.py", "xpulab/engine/a.py", "xpulab/engine/sums.py"]


#: A test that fails at every second run.
UNSTEADY = """
from pathlib import Path

def test_in_turn() -> None:
    here = Path(__file__).with_name("here")
    if here.exists():
        here.unlink()
        raise ValueError("the second run")
    here.touch()
"""


@pytest.mark.slow
def test_rounds_tell_what_failed_and_how_often(tmp_path: Path, environment: Callable[..., None]) -> None:
    (tmp_path / "test_it.py").write_text(UNSTEADY)
    command = [sys.executable, "-m", "tests.steady", str(tmp_path), "--rounds", "2", "--load", "1", "-n", "0"]
    environment(PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
    done = subprocess.run([*command, "--", "-c", "/dev/null"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "round 1: 1 tests, 0 failed, status 0" in done.stdout
    assert "round 2: 1 tests, 1 failed, status 1" in done.stdout
    assert "test_it::test_in_turn: 1 x; the first:" in done.stdout
    assert "ValueError: the second run" in done.stdout
    assert done.stdout.endswith("1 of 2 rounds failed\n")


@pytest.mark.parametrize("asked", ["by a mark", "by .ci/run"])
def test_the_first_failure_of_a_test_that_ran_twice_is_kept(
    tmp_path: Path, environment: Callable[..., None], asked: str
) -> None:
    mark = "import pytest\n@pytest.mark.flaky(reruns=1)\n" if asked == "by a mark" else ""
    environment(XPULAB_SECOND_TRY=None if mark else "1")
    (tmp_path / "conftest.py").write_text((ROOT / "tests/conftest.py").read_text())
    (tmp_path / "test_it.py").write_text(UNSTEADY.replace("def test", f"{mark}def test"))
    (tmp_path / "here").touch()
    options = ["-c", str(ROOT / "pyproject.toml"), "--rootdir", str(tmp_path), f"--junitxml={tmp_path / 'results.xml'}"]
    command = [sys.executable, "-m", "pytest", *options, "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert "first run of test_it.py::test_in_turn" in done.stdout
    (tracebacks,) = failures_in(tmp_path / "results.xml").values()
    assert count_tests(tmp_path / "results.xml") >= 1
    assert len(tracebacks) == 1
    assert "ValueError: the second run" in tracebacks[0]
