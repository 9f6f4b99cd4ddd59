"""Errors of a module or a criterion that does not fit its input, in a few lines: most are about a shape or a dtype.

PyTorch's traceback of such an error has sixty lines of its own modules, and no line says what the module received.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import skorch
import torch

from xpulab.engine.waiting import cause_of
from xpulab.exceptions import UsageError, XpulabError

__all__ = ["of_criterion", "of_module"]

_LIBRARIES = (
    *(f"{Path(module.__file__).parent}/" for module in (torch, skorch)),
    f"{Path(__file__).parents[2]}/",
)


@contextlib.contextmanager
def of_module(module: torch.nn.Module, batch: object) -> Iterator[None]:
    """Raise a `UsageError` of five lines in place of an error of a module that computes the output for a batch."""
    try:
        yield
    except (RuntimeError, IndexError, ValueError) as error:
        _pass_on(error)
        raise UsageError(
            f"the module cannot compute an output for its rows: {_said(error)}\n"
            f"  in {_layer(module, error)}\n"
            f"  {_line(error)}\n"
            f"  received: {_described(batch)}\n"
            "expected: layers that fit these rows, and each other. To try the module without engines, type: "
            "net.to_skorch().forward(X[:2])"
        ) from error


@contextlib.contextmanager
def of_criterion(criterion: object, output: object, y: object) -> Iterator[None]:
    """Raise a `UsageError` of five lines in place of an error of a criterion that computes a loss."""
    try:
        yield
    except (RuntimeError, IndexError, ValueError) as error:
        _pass_on(error)
        raise UsageError(
            f"the criterion cannot compute a loss of the module's output: {_said(error)}\n"
            f"  in {_first_line(criterion)}\n"
            f"  received: an output, {_described(output)}\n"
            f"            and y, {_described(y)}\n"
            "expected: for a classifier, an output with a column for each class, which are numbered from 0 in y; for a "
            "regressor, y in the shape and the dtype of the output"
        ) from error


def _pass_on(error: Exception) -> None:
    """Raise errors of xpulab as they are, and the reason for which this rank has left a collective."""
    if isinstance(error, XpulabError):
        raise error
    if isinstance(error, RuntimeError) and (cause := cause_of(error)) is not error:
        raise cause


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


def _layer(module: torch.nn.Module, error: Exception) -> str:
    """Return the innermost layer that raised the error."""
    names = {id(layer): name for name, layer in module.named_modules()}
    inside = [frame.f_locals.get("self") for frame, _ in traceback.walk_tb(error.__traceback__)]
    layer = next((each for each in reversed(inside) if id(each) in names), module)
    return ": ".join(filter(None, [names[id(layer)], _first_line(layer)]))


def _line(error: Exception) -> str:
    """Return the user's line that raised the error."""
    frames = traceback.extract_tb(error.__traceback__)
    mine = [frame for frame in frames if not frame.filename.startswith(_LIBRARIES)]
    if not mine:
        return "called by PyTorch's modules alone"
    source = f": {mine[-1].line}" if mine[-1].line else ""
    return f"called in {mine[-1].name}, line {mine[-1].lineno}{source}"


def _first_line(thing: object) -> str:
    """Return the description of a layer; the name of its class alone if it consists of layers."""
    described = repr(thing)
    return type(thing).__name__ if "\n" in described else described


def _described(values: Any) -> str:
    if isinstance(values, dict):
        return ", ".join(f"{name}: {_described(value)}" for name, value in values.items())
    if isinstance(values, list | tuple):
        return ", ".join(map(_described, values))
    if not hasattr(values, "shape"):
        return type(values).__name__
    return f"{str(values.dtype).removeprefix('torch.')} of shape {tuple(values.shape)}"
