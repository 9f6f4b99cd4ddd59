"""The report of the latest call of any process on a cluster, from what the engines keep of it."""

from __future__ import annotations

import numpy as np

from xpulab.deploy.tasks.answers import Answer
from xpulab.deploy.tasks.conversation import Conversation
from xpulab.deploy.tasks.waiting import told_of_waiting
from xpulab.report.fit import FitReport, Iteration, Status
from xpulab.report.rendering import format_seconds
from xpulab.sharing.board import PASSES

__all__ = ["fill", "last_of_engines"]


def last_of_engines(cluster: Conversation) -> FitReport | None:
    """Return the report of the latest call of any process; None if there was none. Waits for a call that still runs."""
    with told_of_waiting("xpulab: the last call") as watch:
        held = [reply["result"]["last"] for reply in cluster.replies("last", {}, watch)]
    if held[0] is None:
        return None
    replies = [each["reply"] for each in held]
    report = FitReport.from_dict(held[0]["report"])
    fill(report, Answer(replies), [])
    report.seconds = max(reply["total"] for reply in replies)
    failed = [reply["error"] for reply in replies if reply["status"] == "error"]
    message = f"{failed[0]['type']}: {failed[0]['message']}".partition("\n")[0] if failed else ""
    ended: dict[str, Status] = {"ok": "finished", "interrupted": "interrupted"}
    report.finish(ended.get(replies[0]["status"], "failed"), message)
    return report


def fill(report: FitReport, answer: Answer, kept: list[Iteration]) -> None:
    """Complete the report from the ranks' answer. `kept` are the iterations before a resumed fit."""
    for engine, seconds, total, result in zip(
        report.engines, answer.seconds, answer.totals, answer.results, strict=True
    ):
        engine.seconds, engine.total = dict(seconds), total
        engine.rows = result.get("rows", engine.rows)
        engine.tile = result.get("tile")
        if "passes" in result:
            engine.passes = dict(zip(PASSES, result["passes"], strict=False))  # a prediction has no backward pass
    tried, took = answer.results[0].get("tuning", (0, 0.0))
    if tried:
        report.notes.append(f"the engines tried {tried} tiles in between, in {format_seconds(took)}")
    report.converged = answer.results[0].get("converged")
    history = answer.results[0].get("history")
    if history:
        names = answer.results[0]["metrics"]
        times = np.diff([0.0, *(elapsed for *_, elapsed in history)])
        report.iterations = kept + [
            Iteration(iteration, dict(zip(names, metrics, strict=True)), float(took), run)
            for (run, iteration, *metrics, _), took in zip(history, times, strict=True)
        ]
