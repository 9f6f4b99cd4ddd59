"""Writes a page for each public package into `reference/packages`; autosummary makes a page for each name there."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import pkgutil
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx.ext.autodoc.mock import mock

import xpulab

#: Packages whose `__all__` is for xpulab itself.
INTERNAL = ("xpulab.widgets",)
#: What calls return, and where it is.
RETURNED = {
    "xpulab.report.fit": ["FitReport", "EngineReport", "Iteration", "Comparison"],
    "xpulab.report.profile": ["Profile"],
    "xpulab.console.background": ["BackgroundCell"],
    "xpulab.csr": ["ShardedCSR"],
    "xpulab.scanning": ["Scan"],
    "xpulab.report.history": ["Called", "History"],
    "xpulab.report.timeline": ["Timeline"],
    "xpulab.widgets.board": ["ClusterBoard"],
    "xpulab.console.cells": ["CellOutput"],
    "xpulab.deploy.tasks.names": ["Names", "Variable"],
    "xpulab.deploy.status": ["ClusterStatus", "EngineStatus"],
    "xpulab.deploy.plan.plan": ["Plan", "Placement"],
    "xpulab.doctor": ["DoctorReport", "Check"],
    "xpulab.explorer.session": ["Explorer"],
    "xpulab.explorer.mixture": ["MixtureExplorer"],
    "xpulab.explorer.density": ["DensityExplorer", "DensitySnapshot"],
    "xpulab.explorer.plane": ["DrawnRow"],
    "xpulab.explorer.plane_snapshot": ["Selection"],
    "xpulab.explorer.snapshot": ["Snapshot"],
}
#: Classes whose objects users get and do not make, beside those of RETURNED.
MADE_BY_XPULAB = (
    "xpulab.ShardedArray",
    "xpulab.acceleration.Acceleration",
    "xpulab.acceleration.AccelerationStatus",
    "xpulab.acceleration.Entry",
    "xpulab.acceleration.Lines",
    "xpulab.torch.Setting",
)
#: What a package is for, where its own docstring is not a sentence for readers.
_TITLES = {"xpulab": "Clusters, rows, models", "xpulab.torch": "PyTorch"}


def packages() -> dict[str, list[str]]:
    """Return the public names of each public package, in the order of the pages."""
    found = {"xpulab": [name for name in xpulab.__all__ if name not in ("__version__", "cluster", "exceptions")]}
    for module in _walk():
        names = getattr(module, "__all__", None)
        if names and module.__name__ not in INTERNAL:
            found[module.__name__] = sorted(names)
    found["xpulab.torch"] = _of_torch()
    found["xpulab.exceptions"] = list(importlib.import_module("xpulab.exceptions").__all__)
    return found


def _walk() -> list[Any]:
    """Return the packages below xpulab, and the modules of `xpulab.spmd`, that users import."""
    names = [f"xpulab.{found.name}" for found in pkgutil.iter_modules(xpulab.__path__) if found.ispkg]
    spmd = importlib.import_module("xpulab.spmd")
    names += [f"xpulab.spmd.{found.name}" for found in pkgutil.iter_modules(spmd.__path__)]
    modules = (name for name in sorted(names) if not name.rpartition(".")[2].startswith("_"))
    return [importlib.import_module(name) for name in modules if name != "xpulab.torch"]


def _of_torch() -> list[str]:
    """Return the names of `xpulab.torch`, and put the objects there, which it otherwise refuses outside of engines.

    What is not installed (PyTorch, skorch) is replaced by stand-ins while the modules are imported.
    """
    torch = importlib.import_module("xpulab.torch")
    absent = [name for name in ("torch", "skorch") if not _is_installed(name)]
    with mock(absent):
        if "torch" in absent:
            vars(importlib.import_module("torch"))["dtype"] = type("dtype", (), {})  # a module asks for its instances
        for homes, package in ((torch._IN_NOTEBOOK, "xpulab.torch"), (torch._ON_RANKS, "xpulab.engine.torch")):
            for name, home in homes.items():
                if name not in vars(torch):
                    setattr(torch, name, getattr(importlib.import_module(f"{package}.{home}"), name))
    return sorted([*torch._IN_NOTEBOOK, *torch._ON_RANKS])


def _is_installed(name: str) -> bool:
    """Return whether a package is installed; a folder on `sys.path` that has its name is not one."""
    spec = importlib.util.find_spec(name)
    return spec is not None and spec.origin is not None


def _page(package: str, names: list[str], title: str | None = None) -> str:
    about = (inspect.getdoc(importlib.import_module(package)) or "").partition(">>>")[0].strip()
    title = title or _TITLES.get(package, package)
    lines = [title, "=" * len(title), "", f".. module:: {package}", "", about, ""]
    if not names:
        return "\n".join(lines)
    lines += [".. autosummary::", "   :toctree: ../generated", "", *(f"   {name}" for name in names), ""]
    return "\n".join(lines)


def _of_exceptions(names: list[str]) -> str:
    lines = ["xpulab.exceptions", "=================", "", "All errors of xpulab are `XpulabError`.", ""]
    lines += [".. module:: xpulab.exceptions", ""]
    for name in names:
        lines += [f".. autoexception:: {name}", "   :show-inheritance:", ""]
    return "\n".join(lines)


def _of_returned() -> str:
    title = "What calls return"
    lines = [title, "=" * len(title), "", "Reports, plans, states and outputs, which read as text, too.", ""]
    lines += [".. autosummary::", "   :toctree: ../generated", "   :nosignatures:", ""]
    lines += [f"   ~{module}.{name}" for module, names in RETURNED.items() for name in names]
    lines += [""]
    return "\n".join(lines)


def _write_pages(app: Sphinx, config: Any) -> None:
    folder = Path(app.srcdir) / "reference" / "packages"
    folder.mkdir(parents=True, exist_ok=True)
    pages = {name: _page(name, names) for name, names in packages().items()}
    pages["xpulab.exceptions"] = _of_exceptions(packages()["xpulab.exceptions"])
    pages["returned"] = _of_returned()
    pages["xpulab.spmd"] = _page("xpulab.spmd", [])
    for name, text in pages.items():
        path = folder / f"{name}.rst"
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
    for path in folder.glob("*.rst"):
        if path.stem not in pages:
            path.unlink()


def made_by_users(name: str) -> bool:
    """Return whether users call this class; otherwise its signature is not for them."""
    module, _, short = name.rpartition(".")
    return short not in RETURNED.get(module, ()) and name not in MADE_BY_XPULAB


def members(cls: type) -> list[str]:
    """Return the public members of a class that xpulab defines, and that are for users."""
    found = []
    for member, value in inspect.getmembers(cls):
        function = getattr(value, "fget", None) or getattr(value, "func", None) or getattr(value, "__func__", value)
        home = (callable(function) and getattr(inspect.unwrap(function), "__module__", None)) or ""
        hidden = member.startswith("_") or member == "sklearn_class" or member in getattr(cls, "_internal", ())
        if home.startswith("xpulab") and not hidden:
            found.append(member)
    return found


def _skip(app: Sphinx, kind: str, name: str, member: Any, skip: bool, options: Any) -> bool | None:
    """Leave out members that xpulab does not define, such as scikit-learn's, and those that are for xpulab itself."""
    shown = app.env.current_document.docname.rpartition("/")[2]
    if kind != "class" or shown.endswith("exceptions"):
        return None
    module, _, short = shown.rpartition(".")
    cls = getattr(importlib.import_module(module), short)
    return None if name in members(cls) else True


def _sign(
    app: Sphinx, kind: str, name: str, obj: Any, options: Any, signature: str | None, returned: str | None
) -> tuple[str, None] | None:
    """Show no signature of a class that users do not make."""
    return ("", None) if kind in ("class", "exception") and not made_by_users(name) else None


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the extension."""
    app.connect("config-inited", _write_pages)  # before Sphinx looks for pages
    app.connect("autodoc-skip-member", _skip)
    app.connect("autodoc-process-signature", _sign)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
