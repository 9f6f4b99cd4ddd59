"""The flow of DESIGN: magics and cli, widgets, estimators, deploy and data, engine, kernels; nothing imports upward."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import xpulab

ROOT = Path(xpulab.__file__).parent

# From the top down. A module may import from its own layer and from those below; across the gap between the
# notebook's process and the engines' (None) only the modules that both sides share pass.
LAYERS = [
    ["magics", "cli", "__main__", "demo", "doctor"],
    ["widgets", "commands", "profiling"],
    ["cluster", "calls", "cells", "explorer"],
    ["deploy", "data"],
    None,
    ["engine"],
    ["kernels"],
]
SHARED = [
    "board", "checkpoint", "exceptions", "host_memory", "memory", "oneapi", "owner", "picture", "progress", "rendering",
    "report", "report_figure", "report_html", "report_text", "snapshot",
]  # fmt: skip
NOTEBOOK_SIDE_NEVER = ("dpctl", "dpnp", "numba_dpex", "numba", "mpi4py")


def modules() -> list[tuple[str, Path]]:
    return [
        (".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"), path)
        for path in sorted(ROOT.rglob("*.py"))
        if path != ROOT / "__init__.py"
    ]


def part(module: str) -> str:
    return module.split(".")[0]


def layer(name: str) -> int:
    return next(i for i, names in enumerate(LAYERS) if names and name in names)


def imported(path: Path) -> set[str]:
    """Parts of xpulab that a file imports, inside functions too."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            if node.module == "xpulab":
                found |= {alias.name for alias in node.names}
            elif node.module.startswith("xpulab."):
                found.add(node.module.split(".")[1])
        elif isinstance(node, ast.Import):
            found |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("xpulab.")}
    return {name for name in found if (ROOT / f"{name}.py").exists() or (ROOT / name).is_dir()}


def test_every_part_has_its_place() -> None:
    placed = {name for names in LAYERS if names for name in names} | set(SHARED)
    assert {part(module) for module, _ in modules()} == placed


@pytest.mark.parametrize(("module", "path"), modules(), ids=lambda value: value if isinstance(value, str) else "")
def test_nothing_imports_upward(module: str, path: Path) -> None:
    gap = LAYERS.index(None)
    for other in imported(path):
        if other in SHARED:
            continue
        assert part(module) not in SHARED, f"{module} is shared by both sides, and imports {other}"
        here, there = layer(part(module)), layer(other)
        assert here <= there, f"{module} imports {other}, which is above it"
        assert not here < gap < there, f"{module} runs in the notebook, and imports {other}, which runs on engines"


def test_the_notebook_side_imports_no_device_code() -> None:
    elsewhere = ("engine", "kernels", "__main__")
    names = [f"xpulab.{m}" for m, _ in modules() if part(m) not in elsewhere and m != "deploy.controller"]
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
    if part(name.removeprefix("xpulab.")) in ("engine", "kernels") or name.endswith(("__main__", "controller")):
        pytest.skip("runs on engines, or is a program")
    module = __import__(name, fromlist=["*"])
    for public in getattr(module, "__all__", []):
        assert getattr(module, public, None) is not None
