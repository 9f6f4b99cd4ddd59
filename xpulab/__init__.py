"""xpulab: scikit-learn's estimators, computed on all accelerators of a notebook user.

In a notebook::

    import xpulab
    %xpu_cluster start -n 4
    from xpulab.cluster import KMeans
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from typing import TYPE_CHECKING, Any

from xpulab import missing
from xpulab._version import __version__
from xpulab.libraries import device_packages

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from xpulab import cluster, exceptions
    from xpulab.acceleration import accel
    from xpulab.data import ShardedArray
    from xpulab.deploy.cluster import XPUCluster
    from xpulab.deploy.current import current_cluster
    from xpulab.estimator.config import config_context, get_config, set_config
    from xpulab.estimator.interrupted import interrupted
    from xpulab.estimator.plain import to_sklearn
    from xpulab.explorer.view import explore
    from xpulab.scanning import scan
    from xpulab.widgets.board import board

__all__ = [
    "ShardedArray",
    "XPUCluster",
    "__version__",
    "accel",
    "board",
    "cluster",
    "config_context",
    "current_cluster",
    "exceptions",
    "explore",
    "get_config",
    "interrupted",
    "scan",
    "set_config",
    "to_sklearn",
]

# These names are imported at their first use: engines and the probe of devices import this package too, and must start
# quickly.
_HOMES = {
    "ShardedArray": "xpulab.data",
    "XPUCluster": "xpulab.deploy.current",  # which also registers the backend of joblib
    "accel": "xpulab.acceleration",
    "board": "xpulab.widgets.board",
    "config_context": "xpulab.estimator.config",
    "current_cluster": "xpulab.deploy.current",
    "explore": "xpulab.explorer.view",
    "get_config": "xpulab.estimator.config",
    "interrupted": "xpulab.estimator.interrupted",
    "scan": "xpulab.scanning",
    "set_config": "xpulab.estimator.config",
    "to_sklearn": "xpulab.estimator.plain",
}
_MODULES = (
    *("basic_statistics", "cluster", "covariance", "decomposition", "discriminant_analysis", "ensemble", "exceptions"),
    *("feature_extraction", "impute"),
    *("linear_model", "metrics", "mixture", "model_selection", "naive_bayes", "neighbors", "preprocessing"),
    *("spmd", "svm", "torch"),
)


device_packages.install()
missing.install()


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    said = f"module 'xpulab' has no attribute {name!r}"
    try:
        if name in _MODULES:
            return importlib.import_module(f"xpulab.{name}")
        if not name.startswith("_"):
            importlib.util.find_spec(f"xpulab.{name}")  # raises an error that says what to use, see `missing`
    except ImportError as error:
        said = str(error)
    raise AttributeError(said)


def __dir__() -> list[str]:
    return sorted({*__all__, *_MODULES})


def load_ipython_extension(ipython: InteractiveShell) -> None:
    """Register the magics and the live views: IPython calls this for ``%load_ext xpulab``."""
    from xpulab import magics

    magics.load(ipython)


def unload_ipython_extension(ipython: InteractiveShell) -> None:
    """Stop the clusters of this process, and remove the magics and views: IPython calls this for ``%unload_ext``."""
    from xpulab import magics

    magics.unload(ipython)


def _register_in_ipython() -> None:
    """Have ``%xpu_cluster`` work from now on, if this process is IPython; otherwise nothing of IPython is imported."""
    shell = sys.modules["IPython"].get_ipython() if hasattr(sys.modules.get("IPython"), "get_ipython") else None
    if shell is not None:
        from xpulab.console import first_use

        first_use.install(shell)


_register_in_ipython()
