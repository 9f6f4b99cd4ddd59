"""Imports packages of formats at their first use, so that engines and notebooks start without them."""

from __future__ import annotations

import importlib
from types import ModuleType

__all__ = ["needed"]


def needed(module: str, what: str) -> ModuleType:
    """Import a module that reads a format.

    Parameters
    ----------
    module : str
        Name of the module, such as ``"pyarrow.parquet"``.
    what : str
        What it reads, for the message.

    Raises
    ------
    ImportError
        If the package is missing or does not fit; the message says what to type.
    """
    package = module.partition(".")[0]
    try:
        return importlib.import_module(module)
    except ImportError as error:
        extra = "" if package == "pyarrow" else f"[{package}]"
        raise ImportError(f"{what} needs the package {package} ({error}); type: pip install 'xpulab{extra}'") from error
