"""The function `config_context`, with the name and the arguments of the one in scikit-learn-intelex."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import sklearn

from xpulab.exceptions import UsageError

__all__ = ["config_context"]


@contextlib.contextmanager
def config_context(
    *, array_api_dispatch: bool | None = None, target_offload: Any = "auto", **sklearns: Any
) -> Iterator[None]:
    """Return a context with settings, so that a script written for `sklearnex.config_context` runs.

    Parameters
    ----------
    array_api_dispatch : bool, optional
        Accepted, and changes nothing: the estimators of `xpulab.spmd` take arrays of devices where they are, and return
        results with one entry per row in arrays of the same kind, in any case. Fitted attributes are NumPy arrays.
    target_offload : "auto", default="auto"
        The estimators compute on the devices of the ranks.
    **sklearns : Any
        Settings of `sklearn.config_context`, such as ``assume_finite``.

    Raises
    ------
    UsageError
        If `target_offload` is anything else.
    TypeError
        For settings that scikit-learn does not have.
    """
    if target_offload != "auto":
        raise UsageError(
            f"target_offload={target_offload!r} was given, expected 'auto': the estimators compute on the devices of "
            "the ranks; choose these with xpulab run --devices, or %xpu_cluster start --devices"
        )
    with sklearn.config_context(**sklearns):
        yield
