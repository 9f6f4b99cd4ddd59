"""What a kernel sends to pages about its reports, beside the updates of outputs."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

LOAD = "from xpulab import widgets; widgets.install(get_ipython())"
RUN = """
import time
from xpulab.report import progress
from xpulab.report.fit import FitReport, Iteration
with progress.open(FitReport('KMeans', 'fit', {'max_iter': 300}, 10, 2, 'float32')) as handle:
    for number in range(1, 80):
        handle.report.iterations.append(Iteration(number, {'inertia': 1 / number}, seconds=0.1))
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


def messages(client: Any, seconds: float) -> list[tuple[str, Any]]:
    """Return the kinds and contents of the messages of some seconds."""
    found = []
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            message = client.get_iopub_msg(timeout=0.2)
        except Exception:  # queue.Empty
            continue
        found.append((message["msg_type"], message["content"]))
    return found


def test_a_page_gets_widgets_and_reports_while_a_cell_runs_but_only_if_it_asks(client: Any) -> None:
    client.execute(RUN)
    before = messages(client, 4)
    assert sum(kind == "update_display_data" for kind, _ in before) > 3
    sent = [content["data"] for kind, content in before if kind == "comm_msg"]
    assert all(data["content"] == {"outputs": []} for data in sent)  # a sign of life where no update was drawn
    (messenger,) = [
        content["comm_id"] for kind, content in before if kind == "comm_open" and "_esm" in content["data"]["state"]
    ]

    page = uuid.uuid4().hex
    for kind, content in (
        ("comm_open", {"target_name": "jupyter.widget.control", "comm_id": page, "data": {}}),
        ("comm_msg", {"comm_id": page, "data": {"method": "request_states"}}),
    ):
        client.shell_channel.send(client.session.msg(kind, content))
    after = messages(client, 2)
    assert not any(kind == "status" and content["execution_state"] == "idle" for kind, content in after)
    (states,) = [
        content["data"]["states"] for kind, content in after if content.get("comm_id") == page and kind == "comm_msg"
    ]
    assert states[messenger]["state"]["fresh"] is False
    assert "initialize" in states[messenger]["state"]["_esm"]
    pushed = [content["data"]["content"]["outputs"] for kind, content in after if content.get("comm_id") == messenger]
    drawn = [output["drawn"] for outputs in pushed for output in outputs]
    assert len(drawn) > 2
    assert drawn == sorted(drawn)
    assert "▶" in pushed[0][0]["html"]
    assert not any(kind == "comm_close" for kind, _ in after)

    last = [
        content["data"]["content"]["outputs"]
        for kind, content in messages(client, 6)
        if content.get("comm_id") == messenger
    ]
    assert "✓" in [output for outputs in last for output in outputs if "html" in output][-1]["html"]
