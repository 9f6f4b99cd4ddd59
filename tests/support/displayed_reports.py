"""The comparison of a notebook's outputs without the reports of calls, which are displayed after 0.2 seconds.

How long a call takes is the machine's: a report that one machine displays may be missing on another. Tests in a browser
look at the reports themselves.
"""

from __future__ import annotations

import re
from typing import Any

from nbval.plugin import IPyNbCell

_CALL = re.compile(r"\w+\.\w+: \w+ (for|in) |\d+ calls? of estimators, ")


def _without_reports(outputs: list[Any]) -> list[Any]:
    return [
        output for output in outputs if not (output["output_type"] == "display_data" and _CALL.match(_text(output)))
    ]


def _text(output: Any) -> str:
    return "".join(output["data"].get("text/plain", ""))


def leave_reports_out() -> None:
    """Let nbval compare the outputs of all cells without the reports of calls."""
    compare = IPyNbCell.compare_outputs

    def compare_outputs(cell: IPyNbCell, test: list[Any], ref: list[Any], skip_compare: Any = None) -> bool:
        return bool(compare(cell, _without_reports(test), _without_reports(ref), skip_compare))

    IPyNbCell.compare_outputs = compare_outputs
