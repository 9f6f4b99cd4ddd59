"""What around a start can make it fail: releases of packages, and the limit of open files."""

from __future__ import annotations

import resource

from xpulab.exceptions import XpulabWarning, warn
from xpulab.libraries import oneapi

__all__ = ["about_open_files", "warn_of_packages"]

_ENOUGH = 4096  # open files of a process, with which clusters of hundreds of engines start


def warn_of_packages() -> None:
    """Warn if packages that the engines use are missing, or are other releases than those that work together."""
    if wrong := oneapi.unlike_pins(oneapi.STACK.pins):
        warn(
            f"{'; '.join(wrong.values())}: the engines may not start, or fail later; type: {oneapi.to_install(wrong)}",
            XpulabWarning,
        )


def about_open_files(error: BaseException) -> str:
    """Return what to type if a process had too many open files; empty for other errors."""
    if "Too many open files" not in str(error):
        return ""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    first = ""
    if hard != resource.RLIM_INFINITY and hard < _ENOUGH:
        first = f"raise your user's limit nofile, now {hard}, in /etc/security/limits.conf, log in again, and then "
    return (
        f"a process of the cluster may have only {soft} open files, and needed more; {first}type: ulimit -n {_ENOUGH} "
        "in the shell that starts Python or Jupyter"
    )
