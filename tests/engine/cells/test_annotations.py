"""A user's code is compiled as it is in a file: annotations are objects, not text, as in this package's own modules."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import xpulab
from xpulab.console.cells import run_cell

ROOT = Path(xpulab.__file__).parent
#: What reads annotations at run time.
CODE = """
import dataclasses, functools, inspect, typing

def f(x: int, *rest: list[str], y: "later" = 1) -> float: ...

class Point(typing.NamedTuple):
    x: int

@dataclasses.dataclass
class Record:
    n: int
    fixed: typing.ClassVar[int] = 3

@functools.singledispatch
def kind(x): return "other"
@kind.register
def _(x: int): return "int"

z: complex = 1j
found = [
    f.__annotations__ == {"x": int, "rest": list[str], "y": "later", "return": float},
    str(inspect.signature(f)) == "(x: int, *rest: list[str], y: 'later' = 1) -> float",
    Point.__annotations__ == {"x": int}, [each.name for each in dataclasses.fields(Record)] == ["n"],
    dataclasses.fields(Record)[0].type is int, kind(1) == "int", __annotations__["z"] is complex,
]
"""


@pytest.mark.cluster
def test_annotations_of_a_cell_are_objects(pair: xpulab.XPUCluster) -> None:
    run_cell(pair, CODE)
    assert pair.pull("found") == [[True] * 7] * 2


@pytest.mark.cluster
def test_a_cell_may_ask_for_text(pair: xpulab.XPUCluster) -> None:
    run_cell(pair, "from __future__ import annotations\ndef g(x: int): ...\ntext = g.__annotations__")
    assert pair.pull("text") == [{"x": "int"}] * 2


@pytest.mark.cluster
def test_annotations_of_a_script_are_objects(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(CODE + "print(found)")
    command = [sys.executable, "-m", "xpulab", "run", "-n", "1", str(script)]
    assert str([True] * 7) in subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_all_code_of_the_user_is_compiled_so() -> None:
    """`compile` otherwise inherits the `__future__` statements of the module that calls it."""

    def inherits(node: Any) -> bool:
        is_call = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "compile"
        return is_call and "dont_inherit" not in [each.arg for each in node.keywords]

    files = [path for path in ROOT.rglob("*.py") if "compile(" in path.read_text()]
    trees = {path.name: ast.walk(ast.parse(path.read_text())) for path in files}
    assert [name for name, nodes in trees.items() if any(map(inherits, nodes))] == []
