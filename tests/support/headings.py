"""The build of xpulab that made the outputs of a notebook, told by the headings of its views.

A notebook has a digest of these headings in its metadata. New headings of a report, a status or a plan ask for a new
run of the notebooks; all other changes do not. To stamp notebooks that were run, type::

    .venv/bin/python tests/support/headings.py notebooks/*.ipynb
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
from reports import engine as engine_report
from reports import report

from xpulab.deploy.plan.plan import plan
from xpulab.deploy.plan.probe import Probe
from xpulab.deploy.status import ClusterStatus, EngineStatus
from xpulab.explorer.picture import Picture
from xpulab.explorer.snapshot import Snapshot
from xpulab.report.calls import Calls

_PROBE = Path(__file__).parents[1] / "deploy" / "plan" / "probes" / "cpu_only.json"
_HEADINGS = re.compile(r'<(th scope="col"[^>]*|dt|summary)>(.*?)</(?:th|dt|summary)>', re.DOTALL)


def headings_of(html: str) -> list[str]:
    """Return the headings of tables, values and folded parts in HTML, without their tags."""
    return [re.sub("<[^>]*>", "", text).strip() for _, text in _HEADINGS.findall(html)]


def headings() -> list[str]:
    """Return the headings of the views that notebooks contain, as today's code makes them."""
    whole = report()
    whole.engines = [engine_report(rank, launch_shape="4x4x16") for rank in range(2)]
    calls = Calls()
    calls.over = True
    for k in (2, 3):
        calls.add(report(parameters={"n_clusters": k}))
    engine = EngineStatus(
        rank=0, host="a", pid=1, device="cpu", selector="opencl:cpu", cores=(0,), state="idle", heartbeat_age_s=0.1,
        memory_used=1, device_bytes=1, device_memory=1, launch_shape="4x4x16", memory_free=1, device_free=1,
    )  # fmt: skip
    picture = Picture(np.ones((1, 2, 2), np.int32), ("across", "up"), (0.0, 0.0), (1.0, 1.0))
    snapshot = Snapshot(picture, 4, 4, 2, 1, 0, np.zeros((1, 1, 2)), (1.0,), {}, False)
    views: list[Any] = [
        whole,
        whole.compare(whole),
        calls,
        ClusterStatus("running", 1, 1.0, (engine,)),
        plan(Probe.from_dict(json.loads(_PROBE.read_text())), 2),
        snapshot,
    ]
    return [heading for view in views for heading in headings_of(view._repr_html_())]


def digest() -> str:
    """Return a short digest of `headings`."""
    return hashlib.sha256("\n".join(headings()).encode()).hexdigest()[:16]


if __name__ == "__main__":
    for path in map(Path, sys.argv[1:]):
        content = json.loads(path.read_text(encoding="utf-8"))
        content["metadata"]["xpulab"] = {"headings": digest()}
        content["metadata"] = dict(sorted(content["metadata"].items()))
        path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
