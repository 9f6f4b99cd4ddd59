"""The docstrings of all public names, as numpydoc asks; pyproject.toml says which of its checks count."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path
from typing import Any

import public_names
from numpydoc.hooks.validate_docstrings import parse_config
from numpydoc.validate import validate

CHECKS = parse_config(str(Path(__file__).parents[2]))["checks"]


def public() -> list[tuple[str, bool]]:
    """Return every public name and every public method, and whether its signature is one for users.

    That of networks is skorch's, which need not be installed. The estimators of `xpulab.spmd` have the docstrings of
    those that they are made from.
    """
    packages = {name: names for name, names in public_names.packages().items() if not name.startswith("xpulab.spmd")}
    found = []
    for module, names in [*packages.items(), *public_names.RETURNED.items()]:
        for short in names:
            name = f"{module}.{short}"
            thing: Any = getattr(importlib.import_module(module), short)
            error = inspect.isclass(thing) and issubclass(thing, BaseException)
            net = name.startswith("xpulab.torch.NeuralNet")
            found.append((name, public_names.made_by_users(name) and not error and not net))
            if inspect.isclass(thing) and not error:
                found += [(f"{name}.{member}", True) for member in public_names.members(thing)]
    return found


def faults(name: str, for_users: bool = True) -> list[str]:
    """Return what numpydoc finds in the docstring of a name."""
    counted = CHECKS if for_users else CHECKS - {"PR01", "PR02"}
    return [f"{name}: {code} {message}" for code, message in validate(name)["errors"] if code in counted]


def thin(rows: Any) -> Any:
    """Return the rows, and say nothing of the parameter."""
    return rows


def test_a_parameter_that_is_not_documented_is_found() -> None:
    assert faults(f"{__name__}.thin") == [f"{__name__}.thin: PR01 Parameters {{'rows'}} not documented"]


def test_the_docstrings_of_all_public_names_are_as_numpydoc_asks() -> None:
    names = public()
    assert len(names) > 300
    assert [fault for name, for_users in names for fault in faults(name, for_users)] == []
