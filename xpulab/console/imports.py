"""What Tab offers in import statements: the public modules and names of xpulab, and nothing else.

jedi and IPython would list all modules of the folder. To find the names imports nothing but modules without a list.
"""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from IPython.core.completer import CompletionContext, SimpleCompletion, context_matcher

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

__all__ = ["complete", "install"]

_FOLDER = Path(__file__).parents[1]

_AS = r"(?:\s+as\s+\w+)?\s*,\s*"  # after a module or a name that another one follows
_MODULE = re.compile(rf"(?:^|;)\s*(?:from\s+|import\s+(?:[\w.]+{_AS})*)((xpulab(?:\.\w+)*)\.(\w*))$")
_NAME = re.compile(rf"(?:^|;)\s*from\s+(xpulab(?:\.\w+)*)\s+import\s+\(?\s*(?:\w+{_AS})*(\w*)$")


def install(shell: InteractiveShell) -> None:
    """Have Tab complete such statements. Repeated calls do nothing."""
    if complete not in shell.Completer.custom_matchers:
        shell.Completer.custom_matchers.append(complete)


@context_matcher(identifier="xpulab.imports", priority=1000)  # before IPython's, which leave only jedi's beside theirs
def complete(context: CompletionContext) -> Any:
    """Complete ``from xpulab.``, ``import xpulab.`` and ``from xpulab.cluster import``; a matcher of IPython's."""
    if found := _MODULE.search(context.text_until_cursor):
        typed, module, begun = found.groups()
        offered, before = dict.fromkeys(_modules(module), "module"), f"{module}."
    elif found := _NAME.search(context.text_until_cursor):
        module, typed = found.groups()
        offered, before, begun = _names(module), "", typed
    else:
        return {"completions": []}
    chosen = [SimpleCompletion(before + name, type=kind) for name, kind in offered.items() if name.startswith(begun)]
    return {"completions": chosen, "matched_fragment": typed, "suppress": True}


def _names(module: str) -> dict[str, str]:
    """Return the public names that can be imported from a module, with their kinds; empty for an internal one."""
    inner = dict.fromkeys(_modules(module), "module")
    if module == "xpulab":
        return _kinds(name for name in _public() if not name.startswith("_")) | inner
    if module.split(".")[1] not in _modules("xpulab"):
        return {}
    written = _written(module)
    if written is None and not inner:
        imported = importlib.import_module(module)
        written = getattr(imported, "__all__", dir(imported))
    return _kinds(written or ()) | inner


def _kinds(names: Iterable[str]) -> dict[str, str]:
    return {name: "class" if name[0].isupper() else "function" for name in names}


def _modules(package: str) -> list[str]:
    """Return the public modules in a package; none for an internal one."""
    found = [each.name for each in pkgutil.iter_modules([str(_place(package))]) if not each.name.startswith("_")]
    if package == "xpulab":
        return [name for name in found if name in _public()]
    return found if package.split(".")[1] in _modules("xpulab") else []


def _place(module: str) -> Path:
    return _FOLDER.joinpath(*module.split(".")[1:])


def _public() -> list[str]:
    return dir(sys.modules["xpulab"])


def _written(module: str) -> list[str] | None:
    """Return `__all__` as a module's source has it; None if it has none, or computes it."""
    place = _place(module)
    file = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    if not file.exists():
        return []
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.Assign) and [getattr(each, "id", "") for each in node.targets] == ["__all__"]:
            return list(ast.literal_eval(node.value))
    return None
