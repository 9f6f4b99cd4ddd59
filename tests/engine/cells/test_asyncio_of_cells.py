"""asyncio in a cell and in a function of `run` works as in a file, and Stop ends it."""

from __future__ import annotations

import asyncio
import textwrap
from pathlib import Path
from typing import Any

import pytest
from strikes import pressed_when

import xpulab
from xpulab.console.cells import CellInterrupted, run_cell

pytestmark = pytest.mark.cluster

#: What begins loops of its own.
CODE = """
import asyncio, contextvars, threading

async def three():
    return await asyncio.to_thread(lambda: 3)

async def echo():
    server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
    async with server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.close()
        return await reader.read()

async def child():
    process = await asyncio.create_subprocess_exec("echo", "7", stdout=asyncio.subprocess.PIPE)
    return int((await process.communicate())[0])

async def within():
    try:
        asyncio.run(never := three())
    except RuntimeError as error:
        never.close()
        return "running event loop" in str(error)

found = [asyncio.run(each()) for each in (three, echo, child, within, three)]
loop = asyncio.new_event_loop()
found.append(loop.run_until_complete(three()))
loop.close()
thread = threading.Thread(target=lambda: found.append(asyncio.run(three())))
thread.start()
thread.join()
"""
FOUND = [3, b"", 7, True, 3, 3, 3]


def test_asyncio_runs_in_a_cell(pair: xpulab.XPUCluster) -> None:
    run_cell(pair, CODE)
    assert pair.pull("found") == [FOUND] * 2
    run_cell(pair, "found = await three(), asyncio.get_event_loop() is asyncio.get_running_loop()")
    assert pair.pull("found") == [(3, True)] * 2
    run_cell(pair, "found = asyncio.get_event_loop().run_until_complete(three())")
    assert pair.pull("found") == [3, 3]


def test_a_cell_may_close_the_loop_that_it_finds(pair: xpulab.XPUCluster) -> None:
    run_cell(pair, "import asyncio\nasyncio.get_event_loop().close()")
    run_cell(pair, "found = await asyncio.sleep(0, 4)")
    assert pair.pull("found") == [4, 4]


def test_asyncio_runs_in_a_function(pair: xpulab.XPUCluster) -> None:
    def run(here: Any, code: str) -> Any:
        found: dict[str, Any] = {}
        exec(code, found)
        return found["found"]

    assert pair.run(run, CODE) == [FOUND] * 2
    assert pair.run(lambda _: asyncio.run(asyncio.sleep(0, 5))) == [5, 5]


@pytest.mark.parametrize("how", ["asyncio.run(main())", "await main()"])
@pytest.mark.parametrize(
    "wait", ["asyncio.sleep(600)", "asyncio.to_thread(comm.recv, source=1 - rank)", "asyncio.to_thread(comm.Barrier)"]
)
def test_stop_ends_it(pair: xpulab.XPUCluster, tmp_path: Path, how: str, wait: str) -> None:
    """Its coroutines end with what they have in `finally`, and a thread that waits for another rank ends."""
    ready = tmp_path / "ready"
    if "Barrier" in wait:
        wait = f"({wait} if rank else asyncio.sleep(600))"
    main = f"""
    import asyncio, pathlib
    state = "begun"
    async def main():
        global state
        try:
            comm.Barrier()
            if rank == 0:
                pathlib.Path({str(ready)!r}).touch()
            await {wait}
        finally:
            state = "ended"
    """
    with pressed_when(ready), pytest.raises(CellInterrupted, match=r"line \d+: "):
        run_cell(pair, f"{textwrap.dedent(main)}\n{how}")
    run_cell(pair, "found = state, await asyncio.sleep(0, comm.allreduce(1))")
    assert pair.pull("found") == [("ended", 2)] * 2
