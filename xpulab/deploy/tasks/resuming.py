"""The error of a cluster on which no fit was interrupted that could go on."""

from __future__ import annotations

from sklearn.exceptions import NotFittedError

from xpulab.advice import to_repeat
from xpulab.exceptions import XpulabError

__all__ = ["NothingToResumeError"]


class NothingToResumeError(XpulabError, NotFittedError):  # type: ignore[misc]
    """No fit was interrupted that could go on; IPython shows only the message."""

    def __init__(self, message: str = "") -> None:
        super().__init__(
            message
            or "no fit that could go on was interrupted on this cluster; a fit can go on once an iteration has ended: "
            f"{to_repeat()}"
        )
