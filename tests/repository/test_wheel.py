"""The source distribution and the wheel: its files, and whether it works without a checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path
from typing import Any

import pytest

import xpulab
from xpulab.libraries import oneapi

ROOT = Path(__file__).parents[2]
LIMIT = 100 * 2**20  # largest size of a file that package indexes accept by default

pytestmark = pytest.mark.slow


def run(*command: Any, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder from which Python does not find the checkout."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        list(map(str, command)), cwd=folder, env=environment, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from the source distribution, and this from a copy: setuptools leaves files in the folder."""
    sources = tmp_path_factory.mktemp("sources")
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, sources)
    shutil.copytree(ROOT / "xpulab", sources / "xpulab", ignore=shutil.ignore_patterns("__pycache__"))
    built = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", built, sources, folder=built)
    (wheel,) = built.glob("*.whl")
    assert [path.name for path in built.glob("*.tar.gz")] == [f"xpulab-{xpulab.__version__}.tar.gz"]
    return wheel


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new environment with the wheel. All other packages are those of this environment, and are not copied."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    own = sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)})
    run(sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--target", own, wheel, folder=folder)
    Path(own, "packages.pth").write_text(f"{sysconfig.get_path('purelib')}\n")  # after the environment's own packages
    libraries, programs = oneapi.library_folder(), oneapi.mpiexec().parent
    linked = [path for path in libraries.iterdir() if not path.name.startswith("python")]
    linked += [path for pattern in ("mpi*", "hydra*") for path in programs.glob(pattern)]
    linked += [libraries.parent / name for name in ("etc", "opt") if (libraries.parent / name).exists()]
    for path in linked:
        (folder / path.relative_to(libraries.parent)).symlink_to(path)
    return folder


def test_the_wheel_is_for_every_python_and_holds_what_the_package_loads(wheel: Path) -> None:
    assert wheel.name == f"xpulab-{xpulab.__version__}-py3-none-any.whl"
    assert wheel.stat().st_size < LIMIT
    inside = set(zipfile.ZipFile(wheel).namelist())
    package = ROOT / "xpulab"
    catalogue = [path for suffix in ("kernels", "so") for path in (package / "kernels/catalogue").glob(f"*.{suffix}")]
    assert {path.suffix for path in catalogue} == {".kernels", ".so"}
    expected = [
        *package.rglob("*.py"),
        *package.rglob("*.js"),
        *package.rglob("*.css"),
        package / "py.typed",
        *catalogue,
    ]
    assert {path.relative_to(ROOT).as_posix() for path in expected} - inside == set()
    assert [
        name for name in inside if not name.startswith(("xpulab/", f"xpulab-{xpulab.__version__}.dist-info/"))
    ] == []


@pytest.mark.cluster
def test_the_demo_of_the_wheel_alone_agrees_with_scikit_learn_and_writes_its_report(
    environment: Path, tmp_path: Path
) -> None:
    python = environment / "bin/python"
    where = run(python, "-c", "import xpulab; print(xpulab.__file__)", folder=tmp_path).stdout.strip()
    assert Path(where).is_relative_to(environment)
    assert not Path(where).is_relative_to(ROOT)
    options = ("-n", 2, "--clusters", 8, "--rows", 20_000, "--out", "demo.html")
    done = run(python, "-m", "xpulab", "demo", *options, folder=tmp_path)
    lines = done.stdout.splitlines()
    begins = (
        "2 engines on ",
        "k-means of 20,000 pixels in 8 colours: xpulab took ",
        "The results agree",
        "The pictures",
    )
    assert [line.startswith(words) for line, words in zip(lines, begins, strict=True)] == [True] * 4
    page = (tmp_path / "demo.html").read_text()
    assert page.count("data:image/png;base64,") == 2
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert "the same in 8 colours" in page
