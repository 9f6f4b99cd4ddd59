"""Other users of the machine, clients without the keys, and text from data can do no harm."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import zmq
from reports import EVIL
from zmq.utils.monitor import recv_monitor_message

import xpulab
from xpulab.cluster import KMeans
from xpulab.console.cells import CellOutput
from xpulab.deploy.status import ClusterStatus
from xpulab.exceptions import EngineError
from xpulab.explorer.session import Explorer

NOBODY = 65534


@pytest.fixture
def ours(pair: xpulab.XPUCluster) -> xpulab.XPUCluster:
    """The cluster of 2 engines, as the active cluster."""
    return pair.activate()


def as_nobody(code: str, *arguments: str) -> Any:
    """Run code that sets `found` as another Unix user, and return `found`."""
    if os.getuid() != 0:
        pytest.skip("only root can become another user")
    become = f"os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})"
    program = f"{_TRY}\n{become}\n{code}\nassert os.getuid() == {NOBODY}\nprint(json.dumps(found))"
    done = subprocess.run([sys.executable, "-c", program, *arguments], cwd="/", capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


#: The modules are imported before the process becomes another user, who may not be able to read this Python's folder.
_TRY = """
import encodings.idna, json, os, socket, sys
def attempt(call, *arguments):
    try:
        return repr(call(*arguments))
    except OSError as error:
        return type(error).__name__
"""


def folder_of(cluster: xpulab.XPUCluster) -> Path:
    assert cluster.engines.processes is not None
    return cluster.engines.processes.folder


def connection(cluster: xpulab.XPUCluster) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder_of(cluster) / "security" / "ipcontroller-client.json").read_text())
    return content


@pytest.mark.cluster
def test_another_user_reads_no_file_of_the_cluster(ours: xpulab.XPUCluster) -> None:
    folder = folder_of(ours)
    files = [str(path) for path in folder.rglob("*")]
    assert {"cluster.json", "ipcontroller-client.json", "ipcontroller-engine.json"} <= {Path(f).name for f in files}
    found = as_nobody(
        "found = [attempt(os.listdir, sys.argv[1]), *(attempt(open, name) for name in sys.argv[2:])]",
        str(folder),
        *files,
    )
    assert set(found) == {"PermissionError"}


@pytest.mark.cluster
def test_another_user_opens_no_shared_memory(ours: xpulab.XPUCluster) -> None:
    from xpulab.sharing.memory import SharedBlock

    with SharedBlock.create(1 << 20) as block:
        paths = [block.path, ours.facts[0].board]
        folders = [f"/proc/{fact.pid}/fd" for fact in ours.facts]
        memory = [f"/proc/{fact.pid}/mem" for fact in ours.facts]
        found = as_nobody(
            "found = [attempt(os.open, path, os.O_RDONLY) for path in sys.argv[1:]]", *paths, *folders, *memory
        )
        assert set(found) == {"PermissionError"}
        assert all(os.path.exists(path.partition("?")[0]) for path in paths)  # the attempts were on existing files


@pytest.mark.cluster
def test_another_user_sees_no_key_among_the_arguments(ours: xpulab.XPUCluster) -> None:
    pids = ours.engines.processes.pids()  # type: ignore[union-attr]
    found = as_nobody("found = [open(f'/proc/{pid}/cmdline').read() for pid in sys.argv[1:]]", *map(str, pids))
    assert any("xpulab" in line for line in found)
    assert not any(connection(ours)["curve_serverkey"] in line for line in found)


@pytest.mark.cluster
def test_another_user_gets_only_the_greeting(ours: xpulab.XPUCluster) -> None:
    """All users of the host can connect to the ports; after ZeroMQ's public greeting they need the keys."""
    port = connection(ours)["registration"]
    code = """
def talk(port, mechanism):
    with socket.create_connection(("127.0.0.1", port), 5) as s:
        s.settimeout(5)
        said = b""
        try:
            s.sendall(b"\\xff" + bytes(8) + b"\\x7f\\x03\\x00" + mechanism.ljust(20, b"\\0") + bytes(32))
            while len(said) < 64 and (part := s.recv(4096)):
                said += part
            s.sendall(b"\\x04\\x29\\x05READY\\x0bSocket-Type\\x00\\x00\\x00\\x06DEALER\\x08Identity\\x00\\x00\\x00\\x00")
            while (part := s.recv(4096)):  # until the other side closes
                said += part
        except (ConnectionResetError, BrokenPipeError):
            pass
        return said.hex()
found = [talk(int(sys.argv[1]), mechanism) for mechanism in (b"NULL", b"CURVE")]
"""
    plainly, pretending = map(bytes.fromhex, as_nobody(code, str(port)))
    assert len(plainly) <= 64
    assert len(pretending) == 64  # no byte beyond the greeting
    assert pretending[12:32].rstrip(b"\0") == b"CURVE"
    assert ours.run(lambda task: task.comm.rank) == [0, 1]


@pytest.fixture
def context() -> Iterator[zmq.Context[Any]]:
    with zmq.Context() as context:
        yield context


class Bomb:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> Any:
        return open, (str(self._path), "w")


def handshake(socket: Any, url: str, message: list[bytes]) -> str:
    """Return the outcome, "succeeded" or "failed", of the first handshake that ends."""
    monitor = socket.get_monitor_socket(zmq.EVENT_ALL)
    socket.linger = 0
    socket.connect(url)
    socket.send_multipart(message)
    outcomes = {
        zmq.EVENT_HANDSHAKE_SUCCEEDED: "succeeded",
        zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL: "failed",
        zmq.EVENT_HANDSHAKE_FAILED_AUTH: "failed",
        zmq.EVENT_DISCONNECTED: "failed",
    }
    outcome = None
    while outcome is None:
        assert monitor.poll(120_000)
        outcome = outcomes.get(recv_monitor_message(monitor)["event"])
    socket.disable_monitor()
    monitor.close()
    return outcome


@pytest.mark.cluster
@pytest.mark.parametrize(("keys", "outcome"), [("right", "succeeded"), ("none", "failed"), ("wrong", "failed")])
def test_only_clients_with_the_keys_can_connect(
    ours: xpulab.XPUCluster, context: zmq.Context[Any], tmp_path: Path, keys: str, outcome: str
) -> None:
    about = connection(ours)
    assert len(about["curve_serverkey"]) == 40
    bomb = pickle.dumps(Bomb(tmp_path / "unpickled"))
    header = json.dumps({"msg_id": "1", "msg_type": "apply_request", "session": "s", "username": "x"}).encode()
    message = [b"<IDS|MSG>", b"", header, b"{}", b"{}", bomb, bomb]
    for channel in ("registration", "broadcast"):
        ports = about[channel]
        for port in ports if isinstance(ports, list) else [ports]:
            with context.socket(zmq.DEALER) as socket:
                if keys != "none":
                    server = about["curve_serverkey"].encode() if keys == "right" else zmq.curve_keypair()[0]
                    socket.curve_serverkey = server
                    socket.curve_publickey, socket.curve_secretkey = zmq.curve_keypair()
                sent = [b""] if keys == "right" else message
                assert handshake(socket, f"{about['interface']}:{port}", sent) == outcome
    assert ours.run(lambda task: task.comm.allgather(task.comm.rank)) == [[0, 1]] * 2
    assert not (tmp_path / "unpickled").exists()


@pytest.mark.cluster
def test_neither_logs_nor_reports_hold_a_key(ours: xpulab.XPUCluster, tmp_path: Path) -> None:
    about = connection(ours)
    secrets = [about[name] for name in ("curve_serverkey", "key") if about[name]]
    assert secrets
    km = KMeans(2, random_state=0).fit(np.eye(9))
    with pytest.raises(EngineError) as error:
        ours.run(lambda task: 1 / 0)
    logs = "".join(path.read_text(errors="replace") for path in (folder_of(ours) / "log").iterdir())
    assert "IPEngine" in logs
    said = [logs, ours.logs(10_000), km.report_.to_html(), json.dumps(km.report_.to_dict()), str(error.value)]
    said += [(folder_of(ours) / "cluster.json").read_text(), ours.status()._repr_html_()]
    assert not [secret for secret in secrets for text in said if secret in text]


SCRIPT = "<script>alert('x')</script>"


def assert_escaped(html: str) -> None:
    assert "&lt;script&gt;" in html
    assert "<script" not in html


@pytest.mark.cluster
def test_the_text_of_an_exception_is_escaped(ours: xpulab.XPUCluster, monkeypatch: pytest.MonkeyPatch) -> None:

    def start(*_: object, **__: object) -> Any:
        raise ValueError(SCRIPT)

    monkeypatch.setattr("xpulab.estimator.sending.Packing.__call__", start)
    with pytest.raises(ValueError, match="script"):
        KMeans(2).fit(np.eye(9))
    assert_escaped(ours.last_report._repr_html_())
    assert_escaped(ours.last_report.to_html())


def test_the_name_of_a_device_is_escaped() -> None:
    from xpulab.deploy.status import EngineStatus

    engine = EngineStatus(0, SCRIPT, 1, SCRIPT, SCRIPT, (0,), SCRIPT, 0.1, 1, 1, 1, SCRIPT)
    assert_escaped(
        ClusterStatus("running", 1, 1.0, (engine,), (SCRIPT,), (SCRIPT,), id=SCRIPT, lives=SCRIPT)._repr_html_()
    )


@pytest.mark.cluster
def test_the_name_of_a_column_is_escaped(ours: xpulab.XPUCluster) -> None:
    frame = pd.DataFrame(np.random.default_rng(0).normal(size=(50, 2)), columns=[SCRIPT, EVIL])
    explorer = Explorer(frame, 2)
    assert_escaped(explorer.snapshot()._repr_html_())


def test_the_output_of_a_cell_is_escaped() -> None:
    output = CellOutput({0: SCRIPT}, {1: SCRIPT})
    assert not hasattr(output, "_repr_html_")
    assert not hasattr(output.text(), "_repr_html_")
    assert SCRIPT in str(output)
