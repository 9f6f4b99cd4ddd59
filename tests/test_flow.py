"""The contracts in pyproject.toml about who imports whom, and what the notebook's process loads."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

import xpulab

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(xpulab.__file__).parent
PYPROJECT = ROOT.parent / "pyproject.toml"
#: These modules import PyTorch, which need not be installed.
WITH_TORCH = [] if importlib.util.find_spec("skorch") else ["torch._net", "torch._returned"]
NOTEBOOK_SIDE_NEVER = ("dpctl", "dpnp", "numba_dpex", "numba", "mpi4py")


def modules() -> list[tuple[str, Path]]:
    return [
        (".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"), path)
        for path in sorted(ROOT.rglob("*.py"))
        if path != ROOT / "__init__.py"
    ]


def test_imports_keep_the_contracts() -> None:
    """No import upward and no circle, also not inside functions and for types."""
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command; lint_imports_command()"]
    done = subprocess.run(command, cwd=ROOT.parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert "0 broken" in done.stdout


def test_the_contracts_name_every_part_of_the_package() -> None:
    contracts = tomllib.loads(PYPROJECT.read_text())["tool"]["importlinter"]["contracts"]
    named = {name for each in contracts for line in each.get("layers", ()) for name in line.split(" : ")}
    named |= {name for each in contracts for name in each.get("forbidden_modules", ())}
    parts = {f"xpulab.{module.split('.')[0]}" for module, _ in modules()}
    parts |= {f"xpulab.{'.'.join(module.split('.')[:2])}" for module, _ in modules() if module.startswith("deploy.")}
    assert {part for part in parts if not any(f"{name}.".startswith(f"{part}.") for name in named)} == set()


def test_the_notebook_side_imports_no_device_code() -> None:
    elsewhere = ("engine", "kernels", "spmd", "__main__")
    here = [m for m, _ in modules() if m.split(".")[0] not in elsewhere and m not in WITH_TORCH]
    names = [f"xpulab.{m}" for m in here if m != "deploy.processes.controller"]
    code = (
        f"import sys, importlib\nfor name in {names!r}: importlib.import_module(name)\n"
        f"print([name for name in {NOTEBOOK_SIDE_NEVER!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_importing_the_package_is_light() -> None:
    heavy = ("ipyparallel", "sklearn", "matplotlib", "IPython")
    code = f"import sys, xpulab; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("name", ["xpulab", *(f"xpulab.{module}" for module, _ in modules())])
def test_all_names_what_can_be_imported(name: str) -> None:
    elsewhere = ("engine", "kernels", "spmd")
    if name.removeprefix("xpulab.").split(".")[0] in elsewhere or name.endswith(("__main__", "controller")):
        pytest.skip("runs on engines, or is a program")
    if name.removeprefix("xpulab.") in WITH_TORCH:
        pytest.skip("PyTorch and skorch are not installed")
    module = __import__(name, fromlist=["*"])
    for public in getattr(module, "__all__", []):
        assert getattr(module, public, None) is not None
