"""What is predicted from the logarithms of the joint probabilities of rows and classes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

__all__ = ["KINDS"]


def _normalised(joint: np.ndarray) -> np.ndarray:
    most = joint.max(axis=1, keepdims=True)
    with np.errstate(invalid="ignore"):
        away: np.ndarray = joint - most
    return away - np.log(np.exp(away).sum(axis=1, keepdims=True))


#: Functions of an array (n_samples, n_classes): the number of the class, the logarithms, and the probabilities.
KINDS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "label": lambda joint: joint.argmax(axis=1),
    "joint": lambda joint: joint,
    "log_proba": _normalised,
    "proba": lambda joint: np.exp(_normalised(joint)),
}
