"""Keeps the last reports of each folder of notebooks for a day, for a kernel that was restarted."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
import time
from pathlib import Path

import platformdirs

from xpulab.report.fit import FitReport
from xpulab.report.record import FitRecord
from xpulab.sharing.folder import write_private
from xpulab.sharing.owner import lives

__all__ = ["keep", "latest"]

_DAY = 24 * 3600.0
_one = threading.Lock()  # threads keep reports in their order: the last one is that of the end


def keep(report: FitRecord) -> None:
    """Keep the report of a call for other processes in this folder. Errors of the disk are ignored.

    Parameters
    ----------
    report : FitRecord
        It may still run; it is then kept as it is now.
    """
    with contextlib.suppress(OSError), _one:
        folder = _folder()
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        content = {**report.to_dict(), "seconds": report.elapsed}
        write_private(folder / _name(), json.dumps({"pid": os.getpid(), "report": content}))
        for each in folder.iterdir():
            if time.time() - each.stat().st_mtime > _DAY:
                each.unlink()


def latest() -> FitReport | None:
    """Return the last report of this notebook, or else of this folder, in which another process has kept it.

    A call that had not ended when its process ended is "interrupted", and its message says of when the report is.
    """
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        mine = _folder() / _name()
        kept = sorted(_folder().glob(f"{_name().partition('-')[0]}-*"), key=lambda each: each.stat().st_mtime)
        path = mine if mine.exists() else kept[-1] if kept else None
        if path is None or time.time() - path.stat().st_mtime > _DAY:
            return None
        content = json.loads(path.read_text())
        report = FitReport.from_dict(content["report"])
        then = time.strftime("%H:%M:%S", time.localtime(path.stat().st_mtime))
        report.notes.append(f"kept by process {content['pid']} at {then}")
        if report.status == "running":
            if lives(content["pid"]):
                report.message = f"it runs in process {content['pid']}; this is the report of {then}"
            else:
                report.finish("interrupted", f"its process has ended; this is the report of {then}")
        return report
    return None


def _folder() -> Path:
    return Path(os.environ.get("XPULAB_CACHE") or platformdirs.user_cache_dir("xpulab")) / "reports"


def _name() -> str:
    """Return the name of the file for this notebook: of its folder, and of itself if its server has named it."""
    parts = (str(Path.cwd()), os.environ.get("JPY_SESSION_NAME", ""))
    return "-".join(hashlib.sha256(part.encode()).hexdigest()[:20] for part in parts) + ".json"
