"""Child processes of a user's code on a rank: each way to start them works, and they end with their work."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from strikes import come_to, pressed_when
from waiting import until

import xpulab
from xpulab.console.cells import CellInterrupted, run_cell

pytestmark = pytest.mark.cluster

PROCESS = """
import multiprocessing
def double(number, queue=None):
    print(f"double {number}")
    queue and queue.put(2 * number)
    return 2 * number
queue = multiprocessing.get_context("fork").Queue()
child = multiprocessing.get_context("fork").Process(target=double, args=(21, queue))
child.start()
print(queue.get(), child.join(), child.exitcode)
"""

POOLS = """
import math, multiprocessing, concurrent.futures, joblib
class Pair:
    def __init__(self, one): self.both = one, one
with concurrent.futures.ProcessPoolExecutor(2) as pool:
    print(isinstance(pool.submit(Pair, 1).result(), Pair), list(pool.map(lambda number: number + 1, [1, 2])))
with multiprocessing.Pool(2) as pool:
    print(pool.map(math.sqrt, [4, 9]))
with multiprocessing.get_context("spawn").Pool(1) as pool:
    print(pool.map(math.sqrt, [4, 9]))
print(sum(joblib.Parallel(2)(joblib.delayed(pow)(number, 2) for number in range(4))))
"""


def printed(pair: xpulab.XPUCluster, cell: str) -> dict[int, str]:
    """Run a cell, and return what each rank has printed. On the screen, a late rank's lines come separately.

    In CPython 3.13, a buffer of a pool that is collected before what was exported of it says so, and nothing is lost.
    """
    ignored = r"Exception ignored in: <_io\.BytesIO .*?\nBufferError: Existing exports of data: [^\n]*\n"
    return {rank: re.sub(ignored, "", said, flags=re.DOTALL) for rank, said in run_cell(pair, cell).printed.items()}


def test_a_child_process_prints_and_gives_a_result_back(pair: xpulab.XPUCluster) -> None:
    assert printed(pair, PROCESS) == dict.fromkeys((0, 1), "double 21\n42 None 0\n")


def test_pools_of_processes_take_what_a_cell_has_defined(pair: xpulab.XPUCluster) -> None:
    assert printed(pair, POOLS) == dict.fromkeys((0, 1), "True [2, 3]\n[2.0, 3.0]\n[2.0, 3.0]\n14\n")


def test_pools_of_processes_work_after_a_script_on_the_engines(pair: xpulab.XPUCluster) -> None:
    def script(here: Any) -> None:
        from xpulab.spmd.__main__ import on_engine

        on_engine("script.py", b"import sys; assert sys.argv == ['script.py', 'a']", ["a"])

    pair.run(script)
    assert printed(pair, POOLS) == dict.fromkeys((0, 1), "True [2, 3]\n[2.0, 3.0]\n[2.0, 3.0]\n14\n")


def test_pools_of_processes_take_what_a_function_of_run_uses(pair: xpulab.XPUCluster) -> None:
    names: dict[str, Any] = {"__name__": "__main__"}  # as in a script or a notebook, which engines cannot import
    source = """
def half(number):
    return number / 2

def work(here):
    import concurrent.futures
    with concurrent.futures.ProcessPoolExecutor(1) as pool:
        return list(pool.map(half, [1, 2 + here.rank]))
"""
    exec(source, names)
    assert pair.run(names["work"]) == [[0.5, 1.0], [0.5, 1.5]]


@pytest.mark.parametrize(
    ("child", "status", "said"),
    [
        ("pass", 0, ""),
        ("raise SystemExit(3)", 3, ""),
        ("import sys; sys.exit('the reason')", 1, "the reason"),
        ("1 / 0", 1, "ZeroDivisionError: division by zero"),
        ("comm.barrier()", 1, "only the rank itself can communicate with other ranks; give it the result"),
        ("comm.send(1, dest=0)", 1, "send was called in a child process of this rank"),
        ("print(comm.rank == rank, comm.Get_size())", 0, "True 2"),
        ("input()", 1, "an engine has no keyboard"),
    ],
)
def test_a_bare_fork_ends_with_its_cell(
    child: str, status: int, said: str, pair: xpulab.XPUCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    run_cell(pair, f"import os\npid = os.fork()\nif pid == 0:\n    {child}")
    run_cell(pair, "print('status', os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))")
    out = capsys.readouterr().out
    assert said in out
    # A busy machine may delay a rank for so long that its line is not merged with the other's.
    assert [out.count(f"[{ranks}] status {status}\n") for ranks in ("0-1", "0", "1")] in ([1, 0, 0], [0, 1, 1])
    assert pair.run(lambda here: here.comm.allreduce(1)) == [2, 2]


def test_what_a_child_prints_after_its_cell_is_shown(
    pair: xpulab.XPUCluster, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    over = tmp_path / "over"
    wait = f"while not os.path.exists({str(over)!r}): time.sleep(0.01)"
    run_cell(pair, f"import os, time\nif os.fork() == 0:\n    {wait}\n    print('from a child')\n    os._exit(0)")
    said = ""

    def shown() -> bool:
        nonlocal said
        said += capsys.readouterr().out
        return "[0-1] from a child\n" in said or all(f"[{rank}] from a child\n" in said for rank in (0, 1))

    assert not shown()
    over.touch()
    until(shown)
    run_cell(pair, "os.wait()")


def test_stop_ends_a_cell_that_waits_for_a_pool(pair: xpulab.XPUCluster, tmp_path: Path) -> None:
    came, have_come = come_to(tmp_path / "came")
    with pytest.raises(CellInterrupted), pressed_when(have_come):
        run_cell(
            pair,
            "import concurrent.futures, os, time\n"
            "with concurrent.futures.ProcessPoolExecutor(1) as pool:\n"
            f"    pool.submit(os.getpid).result()\n    {came}\n"
            "    list(pool.map(time.sleep, [3600]))",
        )
    assert pair.run(lambda here: here.comm.allreduce(1)) == [2, 2]


@pytest.mark.usefixtures("merged_lines")
def test_a_child_of_a_program_in_a_cell_reads_no_keyboard(
    pair: xpulab.XPUCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    run_cell(pair, "import subprocess; print(subprocess.run(['cat'], timeout=5).returncode)")
    assert capsys.readouterr().out == "[0-1] 0\n"
