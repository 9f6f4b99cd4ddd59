"""Says what a user can type next, in IPython with the extension, in IPython without it, or in a script."""

from __future__ import annotations

import sys
from typing import Any

__all__ = ["to_attach", "to_have_interrupted", "to_repeat", "to_resume", "to_start", "to_stop_call"]


def _shell() -> Any:
    ipython = sys.modules.get("IPython")
    return None if ipython is None else ipython.get_ipython()


def _has_magics() -> bool | None:
    """Return whether IPython has loaded the extension; None outside of IPython."""
    shell = _shell()
    return None if shell is None else "xpu_cluster" in shell.magics_manager.magics["line"]


def to_start() -> str:
    """Return what to type to start a cluster."""
    return {
        True: "%xpu_cluster start",
        False: "%load_ext xpulab, and then %xpu_cluster start",
        None: "import xpulab; xpulab.XPUCluster().start()",
    }[_has_magics()]


def to_attach(name: str) -> str:
    """Return what to type to use a running cluster."""
    return f"%xpu_cluster attach {name}" if _has_magics() else f"xpulab.XPUCluster.attach({name!r})"


def to_stop_call() -> str:
    """Return what to type to end a call of another process, while a call of this process waits for it."""
    return f"interrupt this call, and type: {'%xpu_cluster stop --call' if _has_magics() else 'cluster.stop_call()'}"


def to_resume() -> str:
    """Return what to type to continue an interrupted fit, even if no variable holds its estimator."""
    return "model = %xpu_cluster resume" if _has_magics() else "import xpulab; model = xpulab.interrupted().resume()"


def to_have_interrupted() -> str:
    """Return what to type to have the estimator of an interrupted fit as it is, without going on with the fit."""
    shell = _shell()
    known = shell is not None and "xpulab" in shell.user_ns
    return "model = xpulab.interrupted()" if known else "import xpulab; model = xpulab.interrupted()"


def to_repeat() -> str:
    """Return what to do to repeat a call that left nothing behind."""
    return "call it again" if _has_magics() is None else "run the cell again"
