"""A script for a rank: the methods of `xpulab.spmd` against those of `sklearnex.spmd`, of which a table is given."""

import importlib
import inspect
import sys
from pathlib import Path
from typing import Any

P = inspect.Parameter


def compare(path: str, peer: Any) -> None:
    """Print how the methods of a class differ from those of its peer, named as in the table."""
    module, name = path.split("__")
    ours = getattr(importlib.import_module(f"xpulab.spmd.{module}"), name)
    for method in (m for m in vars(peer) if inspect.isroutine(getattr(peer, m))):
        if method.startswith("__") and method != "__init__":
            continue
        wanted = list(inspect.signature(getattr(peer, method)).parameters.values())
        found = inspect.signature(getattr(ours, method)).parameters
        positions = [p.name for p in wanted if p.kind is P.POSITIONAL_OR_KEYWORD]
        if list(found)[: len(positions)] != positions:
            print(f"differs: {path}.{method} has {list(found)}; expected {positions} first")
        for p in wanted:
            if p.name not in found or (p.kind, p.default) != (found[p.name].kind, found[p.name].default):
                print(f"differs: {path}.{method}: {p.name} is {found.get(p.name)}; expected {p}")
        more = list(found.values())[len(positions) :]
        if any(p.default is P.empty and p.kind in (P.POSITIONAL_OR_KEYWORD, P.KEYWORD_ONLY) for p in more):
            print(f"differs: {path}.{method} needs more than {positions}")
        takes_rows = method != "__init__" and {"X", "X_test"} & set(positions)
        if takes_rows and [(p.name, p.kind, p.default) for p in more[:1]] != [("queue", P.POSITIONAL_OR_KEYWORD, None)]:
            print(f"differs: {path}.{method} does not take queue after {positions}")


table: dict[str, Any] = {}
exec(Path(sys.argv[1]).read_text(), table)
del table["__builtins__"]
for path, peer in table.items():
    compare(path, peer)
print("compared", len(table), flush=True)
