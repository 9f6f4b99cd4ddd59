"""The names of the magics in IPython from ``import xpulab`` on: the first use loads them, as ``%load_ext xpulab`` does.

To load them takes 0.35 s, most of it for ipyparallel, which a program need not use; scikit-learn is not among them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from IPython.core.completer import CompletionContext, context_matcher
from IPython.core.magic import no_var_expand

from xpulab.console import errors, imports

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

__all__ = ["NAMES", "forget", "install"]

#: The kind of a magic -> the names of these magics.
NAMES = {"line": ("xpu_cluster", "autoxpu"), "cell": ("xpu", "xpu_profile")}
_TYPED = re.compile(rf"%({'|'.join(NAMES['line'])}|%({'|'.join(NAMES['cell'])}))\s")
_matchers: list[Callable[[CompletionContext], Any]] = []


def install(shell: InteractiveShell) -> None:
    """Register the names, unless the magics are loaded."""
    if "XPUMagics" in shell.magics_manager.registry or _matchers:
        return
    errors.install(shell)
    imports.install(shell)
    for kind, names in NAMES.items():
        for name in names:
            shell.magics_manager.register_function(_loading(shell, name), kind, name)

    @context_matcher(identifier="xpulab.first_use")
    def complete(context: CompletionContext) -> Any:
        if not _TYPED.search(context.full_text):
            return {"completions": []}
        _load(shell)
        return shell.magics_manager.registry["XPUMagics"].complete(context)

    _matchers.append(complete)
    shell.Completer.custom_matchers.append(complete)


def forget(shell: InteractiveShell) -> None:
    """Leave the names to the magics, which are being loaded."""
    while _matchers:
        shell.Completer.custom_matchers.remove(_matchers.pop())


def _load(shell: InteractiveShell) -> None:
    assert shell.extension_manager is not None
    shell.extension_manager.load_extension("xpulab")


def _loading(shell: InteractiveShell, name: str) -> Callable[..., Any]:
    @no_var_expand
    def magic(line: str, cell: str | None = None) -> Any:
        _load(shell)
        return shell.run_line_magic(name, line) if cell is None else shell.run_cell_magic(name, line, cell)

    magic.__doc__ = f"A magic of xpulab; for its help, type: %load_ext xpulab, and then {name}?"
    return magic
