"""The tree of tests and benchmarks: short folders, and modules of engine/ that have tests of their own."""

from __future__ import annotations

import ast
import functools
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MOST = 20  # files in a folder
ENGINE = ROOT / "xpulab" / "engine"
#: Calls of monkeypatch in the tests, and uses of private names of the package there; both are to become fewer.
MONKEYPATCHES = 195
PRIVATE_NAMES = 195
#: Modules of the package with more than 400 lines, and functions outside of kernels with more than eight parameters.
LONG_MODULES = 46
MANY_PARAMETERS = 34
#: Tests that may run once more if they fail; uses of `threading.Timer` and `time.sleep` in tests, where a condition
#: would not depend on the load of the machine.
FLAKY = 38
TIMERS = 4
SLEEPS = 76
#: Modules of engine/ that only the tests of others reach today: those of engine/torch that import PyTorch.
REACHED_THROUGH_OTHERS = 12


def imports_of(path: Path) -> set[str]:
    """Return the modules that a file imports, also inside of functions; it may import a name of them."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            found |= {str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found


def test_no_folder_has_many_files() -> None:
    files = [path for name in ("tests", "benchmarks") for path in (ROOT / name).rglob("*") if path.is_file()]
    counts = Counter(path.parent.relative_to(ROOT) for path in files if "__pycache__" not in path.parts)
    assert {str(folder): count for folder, count in counts.items() if count > MOST} == {}


def test_no_two_files_of_tests_have_the_same_name() -> None:
    """pytest would import the first of them in place of the second."""
    names = Counter(path.name for path in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []


def nodes_of(folder: str) -> Iterator[tuple[Path, list[ast.AST]]]:
    """Yield each file in a folder with the nodes of its syntax tree; one at a time, for Python's collector."""
    for path in (ROOT / folder).rglob("*.py"):
        yield path, list(ast.walk(ast.parse(path.read_text())))


def is_private(name: str) -> bool:
    """Return whether a name begins with an underscore, and is none of Python's or a front end's, such as `__init__`."""
    return name.startswith("_") and not name.endswith("_")


@functools.cache
def facts_of_the_package() -> tuple[set[str], list[str]]:
    """Return what the package defines, from one pass over its files.

    Returns
    -------
    private : set of str
        Private names of modules, functions, classes, variables and attributes.
    many : list of str
        Functions outside of kernels with more than eight parameters.
    """
    found, many = set(), []
    for path, nodes in nodes_of("xpulab"):
        found.add(path.stem)
        for node in nodes:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                found.add(node.name)
            elif isinstance(node, (ast.Attribute, ast.Name)) and isinstance(node.ctx, ast.Store):
                found.add(node.attr if isinstance(node, ast.Attribute) else node.id)
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and n_parameters(node) > 8:
                many.append(f"{path.relative_to(ROOT)}::{node.name}")
    return set(filter(is_private, found)), [name for name in many if not name.startswith("xpulab/kernels/")]


@dataclass
class Facts:
    """What tests do, from one pass over their files."""

    n_patches: int = 0
    n_flaky: int = 0
    private: Counter[str] = field(default_factory=Counter)  # uses of private names of the package, by file
    waits: Counter[str] = field(default_factory=Counter)  # uses of timers and sleeps


@functools.cache
def facts_of_the_tests() -> Facts:
    found, (private, _) = Facts(), facts_of_the_package()
    for path, nodes in nodes_of("tests"):
        tree = nodes[0]
        assert isinstance(tree, ast.Module), path
        found.n_flaky += n_flaky(tree, nodes)
        contexts = [item for node in nodes if isinstance(node, ast.With) for item in node.items]
        within = [item.optional_vars for item in contexts if is_monkeypatch(item.context_expr, {"monkeypatch"})]
        patches = {"monkeypatch", *(each.id for each in within if isinstance(each, ast.Name))}
        found.n_patches += sum(is_monkeypatch(node, patches) for node in nodes)
        used = sum(name in private for node in nodes for name in names_used(node))
        found.private[str(path.relative_to(ROOT))] += used
        attributes = [node for node in nodes if isinstance(node, ast.Attribute) and node.attr in ("Timer", "sleep")]
        found.waits.update(map(ast.unparse, attributes))
    return found


def names_used(node: ast.AST) -> list[str]:
    """Return the names that a node reads or changes in other objects, also in texts such as `"module.name"`."""
    if isinstance(node, ast.Attribute):  # but attributes of a test's own class
        return [] if isinstance(node.value, ast.Name) and node.value.id in ("self", "cls") else [node.attr]
    if isinstance(node, ast.ImportFrom):
        return [word for name in (node.module or "", *(alias.name for alias in node.names)) for word in name.split(".")]
    if isinstance(node, ast.keyword):
        return [node.arg or ""]
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.fullmatch(r"[\w.]+", node.value):
        return node.value.split(".")
    return []


def is_monkeypatch(node: ast.AST, patches: set[str]) -> bool:
    """Return whether a node is a call of a method of monkeypatch, under one of these names."""
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id in patches
    )


@pytest.mark.slow
def test_few_tests_patch_the_package_or_use_its_private_names() -> None:
    """A test uses what users, callers or the environment use, so that it holds for other code that does the same."""
    found = facts_of_the_tests()
    assert found.n_patches <= MONKEYPATCHES
    assert found.private.total() <= PRIVATE_NAMES, found.private.most_common(9)


def test_modules_of_the_engine_have_tests_of_their_own() -> None:
    """`tests/engine` and `tests/torch` mirror the folder: a test imports the module, and computes with it alone."""
    folders = (ROOT / "tests" / "engine", ROOT / "tests" / "torch")
    tests = [imports_of(path) for folder in folders for path in folder.rglob("test_*.py")]
    modules = {
        ".".join(path.relative_to(ENGINE).with_suffix("").parts)
        for path in ENGINE.rglob("*.py")
        if path.name not in ("__init__.py", "__main__.py")  # the latter is a program, which test_main.py runs
    }
    own = {name for name in modules if any(f"xpulab.engine.{name}" in imported for imported in tests)}
    assert len(modules - own) <= REACHED_THROUGH_OTHERS, sorted(modules - own)


def n_parameters(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the number of parameters of a function, without that for the object itself."""
    arguments = node.args
    named = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg)
    return sum(each is not None and each.arg not in ("self", "cls") for each in named)


@pytest.mark.slow
def test_few_modules_are_long_and_few_functions_take_much() -> None:
    """Kernels cut into device functions pass on what one loop would have as variables."""
    n_long = sum(len(path.read_text().splitlines()) > 400 for path in (ROOT / "xpulab").rglob("*.py"))
    _, many = facts_of_the_package()
    assert n_long <= LONG_MODULES
    assert len(many) <= MANY_PARAMETERS, many


def n_flaky(tree: ast.Module, nodes: list[ast.AST]) -> int:
    """Return how many tests of a file may run once more if they fail."""
    tests = [node for node in nodes if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]
    marks = [ast.unparse(node) for node in tree.body if isinstance(node, ast.Assign)]
    if any(mark.startswith("pytestmark") and "flaky" in mark for mark in marks):
        return len(tests)
    return sum(any("flaky" in ast.unparse(each) for each in node.decorator_list) for node in tests)


@pytest.mark.slow
def test_few_tests_depend_on_the_load_of_the_machine() -> None:
    found = facts_of_the_tests()
    assert found.n_flaky <= FLAKY
    assert found.waits["threading.Timer"] <= TIMERS
    assert found.waits["time.sleep"] <= SLEEPS
