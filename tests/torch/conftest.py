"""The tests of `xpulab.torch`: they are skipped where PyTorch is not installed."""

from __future__ import annotations

import importlib.util

import pytest


def _installed(name: str) -> bool:
    """Return whether a package is installed. This folder, whose parent is on the path, is not the package torch."""
    spec = importlib.util.find_spec(name)
    return spec is not None and spec.origin is not None


_MISSING = [name for name in ("torch", "skorch") if not _installed(name)]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests of this folder if a package that they need is missing."""
    if _MISSING:
        why = f"{' and '.join(_MISSING)} not installed; type: pip install -e '.[torch]'"
        for item in items:
            if __file__.rpartition("/")[0] in str(item.path):
                item.add_marker(pytest.mark.skip(reason=why))
