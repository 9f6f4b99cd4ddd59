"""The modules that run a user's code on a rank: variables, children, the queue, measurements, figures, advice."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import types
from typing import Any
from unittest import mock

import numpy as np
import pytest

import xpulab
from xpulab.engine.cells.advice import EXAMPLE, advice

cluster_test = pytest.mark.cluster


class SyclProgramCompilationError(Exception):
    """dpctl's error has this name."""


def test_advice_on_errors_of_dpctl_and_on_no_others() -> None:
    assert "dpctl does not pass on the reason" in advice(SyclProgramCompilationError())
    assert "opencl:gpu" in advice(SyclProgramCompilationError())
    assert advice(ValueError("anything")) == advice(ImportError("no such module", name="elsewhere")) == ""
    compile(EXAMPLE, "the example", "exec")


def test_advice_on_messages_that_open_mpi_does_not_take() -> None:
    """A stand-in of mpi4py with Open MPI's vendor: this process has loaded another MPI, or none."""
    error = type("Exception", (RuntimeError,), {})
    for vendor, known in (("Open MPI", True), ("Intel MPI", False)):
        mpi = types.SimpleNamespace(Exception=error, get_vendor=lambda vendor=vendor: (vendor, (5, 0, 11)))
        with mock.patch.dict(sys.modules, {"mpi4py.MPI": mpi}):
            assert ("Open MPI takes none so large" in advice(error("MPI_ERR_ARG: invalid argument"))) == known
            assert advice(error("MPI_ERR_RANK: invalid rank")) == ""


def test_figures_are_drawn_as_png_and_closed() -> None:
    import matplotlib.image
    from matplotlib import pyplot

    from xpulab.engine.cells import figures

    figures.taken()  # those of other tests in this process
    with pyplot.style.context("default"):
        one, other, left = (pyplot.figure(figsize=(number, 1)) for number in (1, 2, 3))
        figures.draw(other)
        pyplot.close(left)
        figures.show()
    assert pyplot.get_fignums() == []
    drawn, shown = figures.taken()
    assert (len(drawn), shown) == (2, [])  # no code of a user runs, whose output would show them
    assert all(matplotlib.image.imread(io.BytesIO(png), "png").ndim == 3 for png in drawn)
    assert figures.taken() == ([], [])
    assert one is not left


def test_a_program_that_a_cell_starts_draws_without_mpi() -> None:
    """It has the cell's environment, and MPI would take it for another rank."""
    code = "import sys, matplotlib.pyplot as plt; plt.plot([1]); plt.show(); print('mpi4py' in sys.modules)"
    environment = os.environ | {"MPLBACKEND": "module://xpulab.engine.cells.figures"}
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert (run.stdout, run.stderr) == ("False\n", "")


def test_names_complete_without_running_a_users_code() -> None:
    from xpulab.engine.cells.shell import names

    class Loud:
        value = 3

        @property
        def asked(self) -> int:
            raise AssertionError("it was asked")

        def method(self) -> None: ...

    namespace = {"loud": Loud(), "np": np, "Loud": Loud, "_hidden": 1}
    assert names(namespace, "") == {"loud": "instance", "np": "module", "Loud": "class"}
    found = names(namespace, "loud")
    assert found is not None
    assert {name: found[name] for name in ("value", "asked", "method")} == {
        "value": "instance", "asked": "property", "method": "function",
    }  # fmt: skip
    assert names(namespace, "loud.method()") is names(namespace, "nobody") is None


def variables(here: Any) -> dict[str, Any]:
    """On an engine: push, use and pull variables, and run cells, as the notebook's tasks do."""
    import pickle

    import numpy as np

    from xpulab.engine.cells.cell import pull, push, run

    rows = np.arange(6.0)
    things: dict[str, Any] = {"pushed": {"pickle": pickle.dumps({"rows": rows}), "buffers": []}}
    push(here.task, things, [1])
    names = here.task.engine.namespace
    found: dict[str, Any] = {"pushed": sorted(names.get("pushed", {}))}
    lent = pull(here.task, "pushed", [0, 1]) if here.rank == 1 else {}
    found["pulled"] = pickle.loads(lent["value"]["pickle"], buffers=lent["value"]["buffers"]) if lent else None
    found["left out"] = run(here.task, "1 / 0", "cell", [1 - here.rank], [], [])
    names.pop("pushed", None)
    return found


@cluster_test
def test_variables_of_cells_are_those_of_the_ranks_that_get_them(pair: xpulab.XPUCluster) -> None:
    first, second = pair.run(variables)
    assert (first["pushed"], second["pushed"]) == ([], ["rows"])
    np.testing.assert_array_equal(second["pulled"]["rows"], np.arange(6.0))
    assert first["left out"] == second["left out"] == {"outcome": "left out"}


def coroutines(here: Any) -> tuple[int, str, str]:
    """On an engine: await a value, a task that an earlier coroutine has begun, and an error."""
    import asyncio

    from xpulab.engine.cells.awaiting import awaited

    begun: list[Any] = []

    async def three() -> int:
        await asyncio.sleep(0)
        return 3

    async def begin() -> None:
        begun.append(asyncio.ensure_future(asyncio.sleep(0.01, "later")))

    async def fail() -> None:
        await asyncio.sleep(0)
        raise LookupError

    value = awaited(three())
    awaited(begin())
    awaited(asyncio.sleep(0.05))
    try:
        awaited(fail())
    except LookupError as error:
        frame = error.__traceback__
        assert frame is not None
        names = [frame.tb_frame.f_code.co_name]
        while (frame := frame.tb_next) is not None:
            names.append(frame.tb_frame.f_code.co_name)
    return value, begun[0].result(), names[-1]


@cluster_test
def test_coroutines_of_cells_end_and_their_tasks_go_on(pair: xpulab.XPUCluster) -> None:
    assert pair.run(coroutines) == [(3, "later", "fail")] * 2


def ended_children(here: Any) -> list[int]:
    """On an engine: return the exit statuses of forked children."""
    from xpulab.engine.cells.forks import children_end_here

    statuses = []
    for error in (None, SystemExit(7), SystemExit("words"), ValueError("words")):
        child = 0
        with children_end_here(str):
            child = os.fork()
            if child == 0 and error is not None:
                raise error
        statuses.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    return statuses


@cluster_test
def test_children_end_where_they_were_forked(pair: xpulab.XPUCluster, capsys: pytest.CaptureFixture[str]) -> None:
    assert pair.run(ended_children) == [[0, 7, 1, 1]] * 2


def queues(here: Any) -> dict[str, Any]:
    """On an engine: say what the queue of cells is, and what a measurement finds."""
    import dpctl
    import numpy as np

    from xpulab.engine.cells.queues import shared_queue
    from xpulab.engine.cells.usage import measured, queue_of
    from xpulab.engine.cells.users_code import Here

    device = here.task.device.queue.sycl_device
    queue = shared_queue(device)
    again = Here(here.task)
    found = {
        "profiling": queue.has_enable_profiling,
        "shared": queue == dpctl.get_device_cached_queue(device) == again.queue,
        "here": (again.rank, again.size, again.comm is here.comm, again.number == here.task.number),
        "plain": queue_of(queue) is queue,
    }
    with measured(False) as nothing:
        here.comm.allreduce(1)
    with measured(True) as some:
        copy = queue_of(queue)
        found["measured"] = copy is not queue and copy == queue
        one, other = (dpctl.memory.MemoryUSMShared(512, queue=queue) for _ in range(2))
        copy.memcpy(one, other, 512)
        here.comm.Allreduce(np.ones(4), np.empty(4))
    with measured(True) as many:
        for _ in range(1200):  # the queue's are read at the end, and would push out all calls
            queue_of(queue).memcpy(one, other, 512)
        for _ in range(3):
            here.comm.Allreduce(np.ones(4), np.empty(4))
    found["nothing"], found["usage"], found["many"] = nothing, some["usage"], many["usage"]["moments"]
    return found


@cluster_test
def test_one_queue_and_what_is_measured_on_it(pair: xpulab.XPUCluster) -> None:
    for rank, found in enumerate(pair.run(queues)):
        assert found["profiling"]
        assert found["shared"]
        assert found["here"] == (rank, 2, True, True)
        assert found["plain"]
        assert found["measured"]
        assert found["nothing"] == {}
        counts = {(kind, name): (count, nbytes) for kind, name, count, nbytes, _ in found["usage"]["activities"]}
        assert counts == {("transfer", "memcpy"): (1, 512), ("MPI", "Allreduce"): (1, 32)}
        assert [kind for kind, *_ in found["many"]] == ["transfer"] * 997 + ["MPI"] * 3
        assert list(found["usage"]["collectives"]) == [("Allreduce", 0, 1)]
        began, moments = found["usage"]["began"], found["usage"]["moments"]
        assert {(kind, name) for kind, name, *_ in moments} == counts.keys()
        for _, _, moment, lasted in moments:
            assert began < moment < moment + lasted < began + found["usage"]["seconds"]


def kept(here: Any) -> dict[str, Any]:
    """On an engine: call short tasks as the notebook does."""
    from xpulab.engine import tasks
    from xpulab.engine.registry import METRIC_NAMES, TASKS
    from xpulab.engine.torch.tasks import METRICS
    from xpulab.sharing.process_memory import ProcessMemory

    own = np.arange(8, dtype=np.uint8)
    memory = ProcessMemory.of(own)
    here.task.engine.handles["mine"] = own
    before = "mine" in here.task.engine.handles
    TASKS["release"](here.task, handles=["mine", "never there"])
    return {
        "home": {TASKS[name].__module__ for name in ("release", "reads", "gather", "run")} == {tasks.__name__},
        "released": before and "mine" not in here.task.engine.handles,
        "reads": TASKS["reads"](here.task, memory=memory, expected=own.tobytes()),
        "reads other": TASKS["reads"](here.task, memory=memory, expected=b"x" * 8),
        "last": set(TASKS["last"](here.task)),
        "metrics": METRIC_NAMES["NeuralNet.fit"] == METRICS,
    }


@cluster_test
def test_short_tasks_of_a_rank(pair: xpulab.XPUCluster) -> None:
    for found in pair.run(kept):
        assert found["home"]
        assert found["released"]
        assert (found["reads"], found["reads other"]) == ({"read": True}, {"read": False})
        assert found["last"] == {"last"}
        assert found["metrics"]
