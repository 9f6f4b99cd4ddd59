from __future__ import annotations

import subprocess
import sys
import time

import psutil
import pytest


def test_a_process_ends_with_its_owner() -> None:
    owner = subprocess.Popen(["sleep", "60"])
    code = (
        "import sys, time; from xpulab import owner; owner.end_with(int(sys.argv[1]));"
        "print('up', flush=True); time.sleep(60)"
    )
    served = subprocess.Popen([sys.executable, "-c", code, str(owner.pid)], stdout=subprocess.PIPE)
    assert served.stdout is not None
    served.stdout.readline()
    owner.kill()
    owner.wait()
    started = time.monotonic()
    served.wait(10)
    served.stdout.close()
    assert time.monotonic() - started < 5
    assert not psutil.pid_exists(served.pid)


def test_a_process_whose_owner_has_gone_says_so() -> None:
    owner = subprocess.Popen(["true"])
    owner.wait()
    code = "import sys; from xpulab import owner; owner.end_with(int(sys.argv[1]))"
    done = subprocess.run([sys.executable, "-c", code, str(owner.pid)], capture_output=True, text=True)
    assert done.returncode != 0
    assert "has ended" in done.stderr


@pytest.mark.parametrize("signal", ["TERM", "KILL"])
def test_either_end_of_the_owner_counts(signal: str) -> None:
    owner = subprocess.Popen(["sleep", "60"])
    code = "import sys, time; from xpulab import owner; owner.end_with(int(sys.argv[1])); time.sleep(60)"
    served = subprocess.Popen([sys.executable, "-c", code, str(owner.pid)])
    time.sleep(0.5)
    subprocess.run(["kill", f"-{signal}", str(owner.pid)], check=True)
    owner.wait()
    assert served.wait(10) != 0
