"""The contracts in pyproject.toml about who imports whom, and what the notebook's process loads."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import sklearn
from sklearn.utils.fixes import parse_version

import xpulab
from xpulab import _sklearn

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(xpulab.__file__).parent
PYPROJECT = ROOT.parent / "pyproject.toml"
#: These modules import PyTorch, which need not be installed.
WITH_TORCH = [] if importlib.util.find_spec("skorch") else ["torch._net", "torch._returned"]
#: What is too long today, and how long it may be. A file or function that has become short enough must go from here.
TOO_LONG: dict[str, int] = {}
NOTEBOOK_SIDE_NEVER = ("dpctl", "dpnp", "numba_dpex", "numba", "mpi4py")


def modules() -> list[tuple[str, Path]]:
    return [
        (".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"), path)
        for path in sorted(ROOT.rglob("*.py"))
        if path != ROOT / "__init__.py"
    ]


def test_imports_keep_the_contracts() -> None:
    """No import upward and no circle, also not inside functions and for types."""
    pytest.importorskip("importlinter", reason="import-linter needs Python 3.11")
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command; lint_imports_command()"]
    done = subprocess.run(command, cwd=ROOT.parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert "0 broken" in done.stdout


def test_the_contracts_name_every_part_of_the_package() -> None:
    contracts = tomllib.loads(PYPROJECT.read_text())["tool"]["importlinter"]["contracts"]
    named = {name for each in contracts for line in each.get("layers", ()) for name in line.split(" : ")}
    named |= {name for each in contracts for name in each.get("forbidden_modules", ())}
    parts = {f"xpulab.{module.split('.')[0]}" for module, _ in modules()}
    inner = ("deploy.", "engine.")
    parts |= {f"xpulab.{'.'.join(module.split('.')[:2])}" for module, _ in modules() if module.startswith(inner)}
    assert {part for part in parts if not any(f"{name}.".startswith(f"{part}.") for name in named)} == set()


#: Parts below clusters, whose modules import no module of the package by a string.
BELOW = ("caching", "checks", "csr", "data", "report", "scanning", "sharing", "tables")


@pytest.mark.slow
def test_imports_by_a_string_close_no_circle() -> None:
    """import-linter sees import statements only."""
    imported: dict[str, set[str]] = {}
    by_string: set[tuple[str, str]] = set()
    for module, path in modules():
        name, names = f"xpulab.{module}", set[str]()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                names |= {str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)}
            elif isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
                text = ast.unparse(node.args[0]).strip("f'")
                by_string |= {(name, text)} if text.startswith("xpulab") else set()
        imported[name] = names | {target for source, target in by_string if source == name}
    assert {source for source, _ in by_string if source.split(".")[1] in BELOW} == set()

    def reached(start: str) -> set[str]:
        found, left = set[str](), [start]
        while left:
            new = imported.get(left.pop(), set()) - found
            found |= new
            left += new
        return found

    assert {(source, target) for source, target in by_string if source in reached(target)} == set()


@pytest.mark.slow
def test_private_names_of_scikit_learn_come_through_one_module() -> None:
    private = [
        f"{module}: {node.module}.{alias.name}"
        for module, path in modules()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "sklearn"
        for alias in node.names
        if "._" in f"{node.module}.{alias.name}"
    ]
    assert private == []


def test_each_private_name_is_where_it_is_looked_for() -> None:
    known = parse_version(sklearn.__version__)
    later = {"callback_management_context", "_align_api_if_sparse"} if known < parse_version("1.9") else set()
    names = {*_sklearn._HOMES, *_sklearn._MODULES} - later
    assert [name for name in sorted(names) if getattr(_sklearn, name) is None] == []


def lines_of_functions(path: Path) -> dict[str, int]:
    """Return the number of lines of each function's body, without its docstring; functions in it are parts of it."""
    lines: dict[str, int] = {}
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            body = node.body[ast.get_docstring(node) is not None :]
            n = (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0
            lines[node.name] = max(lines.get(node.name, 0), n)
    return lines


@pytest.mark.slow
def test_functions_modules_and_folders_are_short() -> None:
    """A function fits on a screen; a kernel may take two, because a compiler sees more in one loop than in several."""
    files = [path.relative_to(ROOT) for _, path in modules()]
    sizes = {str(file): (len((ROOT / file).read_text().splitlines()), 500) for file in files}
    sizes |= {f"{folder}/": (count, 20) for folder, count in Counter(file.parent for file in files).items()}
    for file in files:
        limit = 100 if file.parts[0] == "kernels" else 60
        sizes |= {f"{file}::{name}": (n, limit) for name, n in lines_of_functions(ROOT / file).items()}
    assert {name: n for name, (n, limit) in sizes.items() if n > TOO_LONG.get(name, limit)} == {}
    assert {name for name in TOO_LONG if name not in sizes or sizes[name][0] <= sizes[name][1]} == set()


def test_parameters_and_dictionaries_have_types() -> None:
    n_named = n_untyped = n_dictionaries = 0
    for path in ROOT.rglob("*.py"):  # one tree at a time: Python's collector looks at all that are there
        source = path.read_text()
        n_dictionaries += source.count("dict[str, Any]")
        for each in ast.walk(ast.parse(source)):
            if isinstance(each, ast.arguments):
                given = (*each.posonlyargs, *each.args, *each.kwonlyargs, each.vararg, each.kwarg)
                named = [one for one in given if one is not None and one.arg not in ("self", "cls")]
                n_named += len(named)
                n_untyped += sum(isinstance(one.annotation, ast.Name) and one.annotation.id == "Any" for one in named)
    assert n_untyped < 0.07 * n_named
    assert n_dictionaries < 240


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


def test_importing_the_package_is_light_and_a_plan_needs_nothing_of_a_start() -> None:
    heavy = ("ipyparallel", "sklearn", "matplotlib", "IPython")
    code = (
        f"import sys, xpulab; print([m for m in {heavy} if m in sys.modules])\n"
        "xpulab.XPUCluster(2).plan(); print({'ipyparallel', 'scipy', 'sklearn'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n") == ["[]", "set()", ""]


def test_all_names_what_can_be_imported() -> None:
    elsewhere = ("engine", "kernels", "spmd")  # what runs on engines
    here = [name for name, _ in modules() if name.split(".")[0] not in elsewhere and name not in WITH_TORCH]
    programs = ("__main__", "controller")
    names = ["xpulab", *(f"xpulab.{name}" for name in here if not name.endswith(programs))]
    absent = [
        f"{name}.{public}"
        for name, module in ((name, importlib.import_module(name)) for name in names)
        for public in getattr(module, "__all__", [])
        if getattr(module, public, None) is None
    ]
    assert absent == []
