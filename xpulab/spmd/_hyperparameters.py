"""`get_hyperparameters` and `reset_hyperparameters`, with which sklearnex tunes the sizes of its own blocks."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["Hyperparameters", "hyperparameters_of"]

_BLOCKS = {"cpu_max_cols_batched": 4096, "cpu_small_rows_max_cols_batched": 1024, "cpu_small_rows_threshold": 10000}
_PRODUCTS = ("fit", {"cpu_grain_size": 1, "cpu_macro_block": 140, **_BLOCKS})
_LINES = ("fit", {"cpu_macro_block": 8192, "gpu_macro_block": 16384, **_BLOCKS})
_FORESTS = {
    "block_size": 32,
    "min_number_of_rows_for_vect_seq_compute": 32,
    "min_trees_for_threading": 100,
    "scale_factor_for_vect_parallel_compute": 0.3,
}
#: Estimator -> the method that has hyperparameters in sklearnex, and their defaults.
_OF: dict[str, tuple[str, Mapping[str, float]]] = {
    **dict.fromkeys(("EmpiricalCovariance", "PCA"), _PRODUCTS),
    **dict.fromkeys(("LinearRegression", "IncrementalLinearRegression"), _LINES),
    "RandomForestClassifier": ("predict", _FORESTS),
}


class Hyperparameters:
    """The hyperparameters of a method: attributes that may be set. They change nothing here.

    Parameters
    ----------
    estimator, op : str
        Names of the estimator and of its method.
    defaults : mapping of str to int or float
    """

    _owner: str

    def __init__(self, estimator: str, op: str, defaults: Mapping[str, float]) -> None:
        vars(self).update(defaults)
        vars(self)["_owner"] = f"{estimator}.{op}"

    def __setattr__(self, name: str, value: object) -> None:
        if name not in self.to_dict():
            raise ValueError(
                f"{self._owner} has no hyperparameter {name!r}; expected one of {', '.join(self.to_dict())}"
            )
        vars(self)[name] = value

    def to_dict(self) -> dict[str, float]:
        """Return the names and the numbers."""
        return {name: value for name, value in vars(self).items() if name != "_owner"}


def hyperparameters_of(estimator: str) -> dict[str, object]:
    """Return the static methods for a class's hyperparameters; none if sklearnex has none for this estimator."""
    if estimator not in _OF:
        return {}
    op, defaults = _OF[estimator]
    now: dict[str, Hyperparameters] = {}

    def known(given: str) -> None:
        if given != op:
            raise ValueError(f"{estimator} has no hyperparameters for op={given!r}; expected {op!r}")

    def get_hyperparameters(op: str) -> Hyperparameters:
        """Return the hyperparameters of a method. They are accepted for sklearnex, and change nothing."""
        known(op)
        return now.setdefault(op, Hyperparameters(estimator, op, defaults))

    def reset_hyperparameters(op: str) -> None:
        """Set the hyperparameters of a method to their defaults."""
        known(op)
        now.pop(op, None)

    return {
        "get_hyperparameters": staticmethod(get_hyperparameters),
        "reset_hyperparameters": staticmethod(reset_hyperparameters),
    }
