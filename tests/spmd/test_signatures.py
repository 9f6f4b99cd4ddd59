"""The estimators of `xpulab.spmd` take the arguments of `sklearnex.spmd` 2026, of which signatures.txt is the table."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import sklearn

TABLE = Path(__file__).with_name("signatures.txt")

COMPARED = """
import importlib, inspect, sys
P = inspect.Parameter
theirs = {}
exec(open(sys.argv[1]).read(), theirs)
for path, peer in theirs.items():
    if path.startswith("__builtins"):
        continue
    module, name = path.split("__")
    ours = getattr(importlib.import_module(f"xpulab.spmd.{module}"), name)
    for method in (m for m in vars(peer) if inspect.isroutine(getattr(peer, m)) and m in vars(peer)):
        if method.startswith("__") and method != "__init__":
            continue
        wanted = list(inspect.signature(getattr(peer, method)).parameters.values())
        found = inspect.signature(getattr(ours, method)).parameters
        positions = [p.name for p in wanted if p.kind is P.POSITIONAL_OR_KEYWORD]
        if list(found)[: len(positions)] != positions:
            print(f"{path}.{method} has {list(found)}; expected {positions} first")
        for p in wanted:
            if p.name not in found or (p.kind, p.default) != (found[p.name].kind, found[p.name].default):
                print(f"{path}.{method}: {p.name} is {found.get(p.name)}; expected {p}")
        more = list(found.values())[len(positions) :]
        if any(p.default is P.empty and p.kind in (P.POSITIONAL_OR_KEYWORD, P.KEYWORD_ONLY) for p in more):
            print(f"{path}.{method} needs more than {positions}")
        takes_rows = method != "__init__" and {"X", "X_test"} & set(positions)
        if takes_rows and [(p.name, p.kind, p.default) for p in more[:1]] != [("queue", P.POSITIONAL_OR_KEYWORD, None)]:
            print(f"{path}.{method} does not take queue after {positions}")
"""


def test_every_public_method_takes_the_arguments_of_sklearnex() -> None:
    """The comparison runs in a separate process, because the notebook's process must not load the runtime."""
    done = subprocess.run([sys.executable, "-c", COMPARED, str(TABLE)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    differences = done.stdout.splitlines()
    if sklearn.__version__.startswith(("1.6.", "1.7.", "1.8.")):  # the table has the constructors of scikit-learn 1.9
        differences = [line for line in differences if "__init__" not in line]
    assert not differences
