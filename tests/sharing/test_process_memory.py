"""Memory of another process is read as it is there, and errors say which process it was."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from xpulab.sharing.process_memory import ProcessMemory, allow

SIZE = 3_000_001
OTHER = f"""
import json, numpy as np
from dataclasses import asdict
from xpulab.sharing.process_memory import ProcessMemory
rows = (np.arange({SIZE}) % 251).astype(np.uint8)
print(json.dumps(asdict(ProcessMemory.of(rows))), flush=True)
input()
"""


@pytest.fixture
def other() -> Iterator[tuple[subprocess.Popen[str], ProcessMemory]]:
    """A process that has numbers in its memory."""
    command = [sys.executable, "-c", OTHER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process, ProcessMemory(**json.loads(process.stdout.readline()))
        process.kill()


def test_the_bytes_are_those_of_the_other_process(
    other: tuple[subprocess.Popen[str], ProcessMemory],
) -> None:
    process, memory = other
    assert memory.pid == process.pid
    memory.require_running()
    found = np.empty(SIZE, np.uint8)
    memory.read(0, found)
    np.testing.assert_array_equal(found, (np.arange(SIZE) % 251).astype(np.uint8))
    part = np.zeros((3, 4), np.uint8)
    memory.read(1000, part)
    np.testing.assert_array_equal(part.reshape(-1), np.arange(1000, 1012) % 251)
    with pytest.raises(OSError, match=f"the memory of process {process.pid} cannot be read"):
        replace(memory, address=8).read(0, part)


def test_a_process_that_has_ended(other: tuple[subprocess.Popen[str], ProcessMemory]) -> None:
    process, memory = other
    process.kill()
    process.wait()
    with pytest.raises(ProcessLookupError, match=f"process {process.pid}, whose memory has the rows, has ended"):
        memory.require_running()
    with pytest.raises(OSError, match="cannot be read: No such process"):
        memory.read(0, np.empty(1, np.uint8))


def test_another_process_with_the_same_pid_is_noticed() -> None:
    own = ProcessMemory.of(np.empty(1))
    own.require_running()
    with pytest.raises(ProcessLookupError, match="has ended"):
        replace(own, started="1").require_running()


def test_to_allow_a_process_that_does_not_exist_changes_nothing() -> None:
    allow(2**22 - 1)
    found = np.empty(4)
    rows = np.arange(4.0)
    ProcessMemory.of(rows).read(0, found)
    np.testing.assert_array_equal(found, rows)
