"""The flow: magics and cli, widgets, estimators, deploy and data, engine, kernels; no module imports upward."""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import xpulab

ROOT = Path(xpulab.__file__).parent

# The layers, from top to bottom. A module may import from its own layer and from layers below it. None stands for the
# gap between the notebook's process and the engines: a module may import across it only what both sides share. If
# several names fit a module, the longest one counts.
ESTIMATORS = [
    "basic_statistics",
    "cluster",
    "covariance",
    "decomposition",
    "ensemble",
    "impute",
    "linear_model",
    "metrics",
    "mixture",
    "model_selection",
    "neighbors",
    "preprocessing",
    "torch",
]
LAYERS = [
    ["magics", "cli", "__main__", "demo", "doctor", "spmd.__main__"],
    ["widgets", "console", "report.profile", "explorer"],
    ["acceleration"],
    ESTIMATORS,
    ["estimator", "console.cells", "explorer.session"],
    ["deploy", "data", "caching", "checks"],
    None,
    ["engine"],
    ["engine.algorithms"],
    [
        "engine.comm",
        "engine.dataset",
        "engine.engine",
        "engine.files",
        "engine.helper",
        "engine.host",
        "engine.interruptible",
        "engine.meeting",
        "engine.travel",
        "engine.waiting",
    ],
    ["kernels"],
]
#: Code that runs on a rank and uses both sides of the gap: the proxies, and the engine of its own process.
ACROSS = ["spmd"]
SHARED = [
    "_version",
    "advice",
    "calls",
    "centring",
    "exceptions",
    "explorer.picture",
    "explorer.snapshot",
    "libraries",
    "missing",
    "report",
    "sharing",
]
#: These modules import PyTorch, which need not be installed.
WITH_TORCH = [] if importlib.util.find_spec("skorch") else ["torch._net", "torch._returned"]
NOTEBOOK_SIDE_NEVER = ("dpctl", "dpnp", "numba_dpex", "numba", "mpi4py")


def modules() -> list[tuple[str, Path]]:
    return [
        (".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"), path)
        for path in sorted(ROOT.rglob("*.py"))
        if path != ROOT / "__init__.py"
    ]


def place(module: str) -> str:
    """Return the entry of LAYERS or SHARED to which a module belongs."""
    names = [name for names in [*LAYERS, SHARED, ACROSS] if names for name in names]
    return max((name for name in names if f"{module}.".startswith(f"{name}.")), key=len)


def layer(module: str) -> int:
    return next(i for i, names in enumerate(LAYERS) if names and place(module) in names)


def imported(module: str, path: Path) -> set[str]:
    """Return the modules of xpulab that a file imports, including imports inside functions and for types."""
    known = {name for name, _ in modules()}
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("xpulab"):
            for alias in node.names:
                full = f"{node.module}.{alias.name}".removeprefix("xpulab.")
                found.add(full if full in known else node.module.removeprefix("xpulab").removeprefix("."))
        elif isinstance(node, ast.Import):
            found |= {alias.name.removeprefix("xpulab.") for alias in node.names if alias.name.startswith("xpulab.")}
    return {name for name in found if name in known and name != module}


def test_every_module_has_its_place() -> None:
    for module, _ in modules():
        assert place(module)


@pytest.mark.parametrize(("module", "path"), modules(), ids=lambda value: value if isinstance(value, str) else "")
def test_nothing_imports_upward(module: str, path: Path) -> None:
    gap = LAYERS.index(None)
    for other in imported(module, path):
        if place(other) in SHARED:
            continue
        assert place(module) not in SHARED, f"{module} is shared by both sides, and imports {other}"
        assert place(module) in ACROSS or place(other) not in ACROSS, f"{module} imports {other}, which runs on ranks"
        if place(module) in ACROSS:
            assert place(other) in ACROSS or layer(other) >= LAYERS.index(ESTIMATORS), f"{module} imports {other}"
            continue
        here, there = layer(module), layer(other)
        assert here <= there, f"{module} imports {other}, which is above it"
        assert not here < gap < there, f"{module} runs in the notebook, and imports {other}, which runs on engines"


def test_no_circle_of_imports() -> None:
    graph = {module: imported(module, path) for module, path in modules()}
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the modules of the circle


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
