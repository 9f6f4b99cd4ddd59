"""The report of the latest call of any process on a cluster, from what the engines keep of it."""

from __future__ import annotations

import numpy as np

from xpulab.deploy.tasks.answers import Answer
from xpulab.deploy.tasks.conversation import Conversation
from xpulab.deploy.tasks.waiting import told_of_waiting
from xpulab.report.fit import FitReport, Iteration, Status
from xpulab.report.rendering import counted, format_seconds, format_size
from xpulab.sharing.answers import LastCall
from xpulab.sharing.board import PASSES

__all__ = ["fill", "last_of_engines"]


def last_of_engines(tasks: Conversation) -> FitReport | None:
    """Return the report of the latest call of any process; None if there was none. Waits for a call that still runs."""
    with told_of_waiting("xpulab: the last call") as watch:
        held: list[LastCall | None] = [reply["result"]["last"] for reply in tasks.replies("last", {}, watch)]
    calls = [each for each in held if each is not None]
    if not calls:
        return None
    replies = [each["reply"] for each in calls]
    report = FitReport.from_dict(calls[0]["report"])
    fill(report, Answer(replies), [])
    report.seconds = max(reply["total"] for reply in replies)
    failed = [error for reply in replies if reply["status"] == "error" and (error := reply["error"])]
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
        engine.launch_shape = result.get("launch_shape")
        if "passes" in result:
            engine.passes = dict(zip(PASSES, result["passes"], strict=False))  # a prediction has no backward pass
    tried, took = answer.results[0].get("tuning", (0, 0.0))
    if tried:
        report.notes.append(f"the engines tried {tried} launch shapes in between, in {format_seconds(took)}")
    reading = [result["reading"] for result in answer.results if "reading" in result]
    report.reading = max((each["waited"] for each in reading), default=0.0)
    report.notes += _about_reading(reading)
    report.notes += answer.results[0].get("notes", [])
    report.converged = answer.results[0].get("converged")
    report.final = dict(answer.results[0].get("final", {}))
    report.chosen_run = answer.results[0].get("run", 0)
    report.every_run = answer.results[0].get("every_run", False)
    history = answer.results[0].get("history")
    if history:
        names = answer.results[0]["metrics"]
        times = np.diff([0.0, *(elapsed for *_, elapsed in history)])
        report.iterations = kept + [
            Iteration(iteration, dict(zip(names, metrics, strict=True)), float(took), run)
            for (run, iteration, *metrics, _), took in zip(history, times, strict=True)
        ]


def _about_reading(each: list[dict[str, float]]) -> list[str]:
    """Say what the ranks have read again, because they do not keep all rows."""
    if not each:
        return []
    kept, rows, nbytes = (sum(reading[name] for reading in each) for name in ("kept", "rows", "nbytes"))
    passes = int(max(reading["passes"] for reading in each))
    waited, took = (max(reading[name] for reading in each) for name in ("waited", "seconds"))
    share, again = 100 * kept / max(1, rows), counted(passes, "pass", "passes")
    rate = nbytes / max(took, 1e-9) / 1e9
    return [
        f"{share:.0f} % of the rows were kept on the engines ({kept:,} of {rows:,}); the others were read again in "
        f"{again} of {format_size(nbytes / max(1, passes))} each, at {rate:.2f} GB/s; an engine "
        f"waited for them up to {format_seconds(waited)}"
    ]
