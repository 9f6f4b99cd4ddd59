"""`config_context`, `get_config` and `set_config`, with the names and the arguments of those in sklearnex."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import sklearn

from xpulab.deploy.ranks import Ranks
from xpulab.exceptions import UsageError

__all__ = ["config_context", "get_config", "require_target", "set_config"]

_DEFAULTS: Mapping[str, Any] = {
    "target_offload": "auto",
    "allow_fallback_to_host": False,
    "allow_sklearn_after_onedal": True,
    "array_api_dispatch": False,  # scikit-learn's own needs array-api-compat, and concerns its own code only
}


class _Settings(threading.local):
    """The settings of a thread, as scikit-learn has them."""

    def __init__(self) -> None:
        self.now = _DEFAULTS


_settings = _Settings()


def get_config() -> Mapping[str, Any]:
    """Return the settings of scikit-learn, and those of scikit-learn-intelex.

    Returns
    -------
    dict of str to object
        What `set_config` takes.
    """
    return {**sklearn.get_config(), **_settings.now}


def set_config(
    target_offload: Any = None,
    allow_fallback_to_host: bool | None = None,
    allow_sklearn_after_onedal: bool | None = None,
    array_api_dispatch: bool | None = None,
    **sklearns: Any,
) -> None:
    """Change settings, so that a script written for `sklearnex.set_config` runs. None leaves a setting as it is.

    Parameters
    ----------
    target_offload : str or dpctl.SyclQueue, optional
        The device for which the script is written: "auto", a queue, "cpu", or a name as "gpu:0". The estimators compute
        on the devices of the ranks, and a call raises an error if these are of another kind.
    allow_fallback_to_host, allow_sklearn_after_onedal : bool, optional
        Accepted, and change nothing: nothing ever runs elsewhere without a word.
    array_api_dispatch : bool, optional
        Whether fitted attributes of the estimators of `xpulab.spmd` are arrays of the kind of X, such as dpnp's.
        Results with one entry per row are so in any case.
    **sklearns : Any
        Settings of `sklearn.set_config`, such as ``assume_finite``.

    Raises
    ------
    UsageError
        If `target_offload` is none of these.
    TypeError
        For settings that scikit-learn does not have.
    """
    given = {
        "target_offload": target_offload,
        "allow_fallback_to_host": allow_fallback_to_host,
        "allow_sklearn_after_onedal": allow_sklearn_after_onedal,
        "array_api_dispatch": array_api_dispatch,
    }
    if (
        target_offload is not None
        and not isinstance(target_offload, str)
        and not hasattr(target_offload, "sycl_device")
    ):
        raise UsageError(f"target_offload={target_offload!r} was given, expected 'auto', 'cpu', 'gpu:0' or a queue")
    sklearn.set_config(**sklearns)
    _settings.now = {**_settings.now, **{name: value for name, value in given.items() if value is not None}}


@contextlib.contextmanager
def config_context(**settings: Any) -> Iterator[None]:
    """Return a context with settings, so that a script written for `sklearnex.config_context` runs.

    Parameters
    ----------
    **settings : Any
        What `set_config` takes.

    Raises
    ------
    UsageError, TypeError
        As `set_config`.
    """
    before = _settings.now
    with sklearn.config_context():  # it restores all settings of scikit-learn
        set_config(**settings)
        try:
            yield
        finally:
            _settings.now = before


def require_target(ranks: Ranks) -> None:
    """Raise an error if the setting `target_offload` names another kind of device than that of a rank.

    Raises
    ------
    UsageError
    """
    target = _settings.now["target_offload"]
    if target == "auto":
        return
    for fact in ranks.facts:
        device = fact.device
        if isinstance(target, str):
            words = [word for word in target.split(":") if not word.isdecimal()]
            same = bool(words) and {*words} <= {device.device_type, device.backend}
        else:
            same = target.sycl_device.name.strip() == device.name.strip()
        if not same:
            raise UsageError(
                f"target_offload={target!r} was set, and rank {fact.rank} computes on {device.name} "
                f"({device.device_type}); expected 'auto' or {device.device_type!r}; the devices are chosen with "
                "xpulab run --devices, or %xpu_cluster start --devices"
            )
