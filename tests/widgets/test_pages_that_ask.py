"""What a kernel sends to pages about its reports, beside the updates of outputs."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

LOAD = "from xpulab import widgets; widgets.install(get_ipython())"
#: A fit whose report changes until the file `ended` is there.
RUN = """
import itertools, time
from pathlib import Path
from xpulab.report import progress
from xpulab.report.fit import FitReport, Iteration
with progress.open(FitReport('KMeans', 'fit', {{'max_iter': 300}}, 10, 2, 'float32')) as handle:
    for number in itertools.takewhile(lambda _: not Path({ended!r}).exists(), itertools.count(1)):
        handle.report.iterations.append(Iteration(number, {{'inertia': 1 / number}}, seconds=0.1))
        handle.update()
        time.sleep(0.1)
"""


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    from jupyter_client.manager import start_new_kernel

    manager, client = start_new_kernel(kernel_name="python3")
    client.execute_interactive(LOAD, timeout=60)
    yield client
    client.stop_channels()
    manager.shutdown_kernel(now=True)


def messages(client: Any, until: Callable[[list[tuple[str, Any]]], bool]) -> list[tuple[str, Any]]:
    """Return the kinds and contents of the messages until a condition on them holds."""
    found: list[tuple[str, Any]] = []
    while not until(found):
        message = client.get_iopub_msg(timeout=60)
        found.append((message["msg_type"], message["content"]))
    return found


def of_kind(found: list[tuple[str, Any]], kind: str) -> list[Any]:
    return [content for each, content in found if each == kind]


def pushed_to(found: list[tuple[str, Any]], messenger: str) -> list[Any]:
    """The outputs of reports that pages got through this widget."""
    ours = [content["data"]["content"]["outputs"] for _, content in found if content.get("comm_id") == messenger]
    return [output for outputs in ours for output in outputs]


@pytest.mark.slow
def test_a_page_gets_widgets_and_reports_while_a_cell_runs_but_only_if_it_asks(client: Any, tmp_path: Path) -> None:
    client.execute(RUN.format(ended=str(tmp_path / "ended")))
    before = messages(client, lambda found: len(of_kind(found, "update_display_data")) > 3)
    sent = [content["data"] for content in of_kind(before, "comm_msg")]
    assert all(data["content"] == {"outputs": []} for data in sent)  # a sign of life where no update was drawn
    (messenger,) = [each["comm_id"] for each in of_kind(before, "comm_open") if "_esm" in each["data"]["state"]]

    page = uuid.uuid4().hex
    for kind, content in (
        ("comm_open", {"target_name": "jupyter.widget.control", "comm_id": page, "data": {}}),
        ("comm_msg", {"comm_id": page, "data": {"method": "request_states"}}),
    ):
        client.shell_channel.send(client.session.msg(kind, content))
    after = messages(client, lambda found: len([each for each in pushed_to(found, messenger) if "drawn" in each]) > 2)
    assert not any(each["execution_state"] == "idle" for each in of_kind(after, "status"))
    (states,) = [each["data"]["states"] for each in of_kind(after, "comm_msg") if each["comm_id"] == page]
    assert states[messenger]["state"]["fresh"] is False
    assert "initialize" in states[messenger]["state"]["_esm"]
    drawn = [output["drawn"] for output in pushed_to(after, messenger)]
    assert drawn == sorted(drawn)
    assert "▶" in pushed_to(after, messenger)[0]["html"]
    assert not of_kind(after, "comm_close")

    (tmp_path / "ended").touch()
    last = messages(client, lambda found: any(each["execution_state"] == "idle" for each in of_kind(found, "status")))
    assert "✓" in [output for output in pushed_to(last, messenger) if "html" in output][-1]["html"]
