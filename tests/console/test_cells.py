"""%%xpu runs a cell on every engine: its output, its variables, its exceptions, and how a stop ends it."""

from __future__ import annotations

import base64
import contextlib
import io
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from IPython.core.displaypub import CapturingDisplayPublisher
from IPython.core.interactiveshell import InteractiveShell
from strikes import acted_when, come_to, pressed_when
from traitlets.config import Config

import xpulab
from xpulab.console.cells import CellInterrupted, CellOutput, run_cell
from xpulab.deploy import cluster as registry
from xpulab.engine.cells.advice import EXAMPLE
from xpulab.exceptions import EngineError, NoClusterError, UsageError
from xpulab.sharing.transcript import LIMIT

pytestmark = pytest.mark.usefixtures("merged_lines")

#: An intercommunicator between two ranks.
BETWEEN = "between = comm.Split(rank).Create_intercomm(0, comm, 1 - rank)\n"
WITH_NUMBA_DPEX = sys.version_info < (3, 12)  # and with dpctl.tensor, which is in dpnp for later versions of Python


def test_equal_output_of_ranks_is_shown_once() -> None:
    output = CellOutput({0: "hello\n", 1: "hello\n", 2: "well\nhello\n", 3: "hello\n"}, {1: "7", 2: "8"})
    assert str(output).splitlines() == [
        "[2] well",
        "[0-3] hello",
        "[1] 7",
        "[2] 8",
    ]
    assert str(CellOutput({}, {})) == ""


def test_long_output_is_cut_and_last_shows_all_of_it() -> None:
    output = CellOutput({0: "\n".join(map(str, range(1042)))}, {})
    lines = str(output).splitlines()
    assert len(lines) == 41
    assert lines[-1] == "[0] … 1,002 more lines; to see them, type: %xpu_cluster last --output"
    assert output.text().splitlines()[-1] == "[0] 1041"


@pytest.mark.cluster
class TestOnEngines:
    @pytest.fixture(autouse=True)
    def engines(self, pair: xpulab.XPUCluster, capsys: pytest.CaptureFixture[str]) -> None:
        self.pair = pair
        self.capsys = capsys

    def said(self, source: str, **options: Any) -> str:
        """Return the output of a cell."""
        self.capsys.readouterr()
        run_cell(self.pair, source, **options)
        return self.capsys.readouterr().out

    def test_names_that_every_cell_can_use(self) -> None:
        said = self.said(
            "from mpi4py import MPI\n"
            "print(rank, size, (comm.rank, comm.size) == (rank, size), isinstance(comm, MPI.Intracomm))\n"
            "import dpctl, dpnp\n"
            "isinstance(device, dpctl.SyclDevice), isinstance(queue, dpctl.SyclQueue), dpnp.ones(2).sycl_queue == queue"
        )
        assert said.splitlines() == ["[0] 0 2 True True", "[1] 1 2 True True", "[0-1] (True, True, True)"]

    def test_the_queue_has_the_clock_of_the_device(self) -> None:
        source = """
import ctypes, dpctl, dpctl.memory, dpnp
from concurrent.futures import ThreadPoolExecutor
from dpctl.program import create_program_from_source
code = "kernel void spin(global float *x, int n) { for (int i = 0; i < n; i++) x[0] += sqrt(x[0] + i); }"
spin = create_program_from_source(queue, code).get_sycl_kernel("spin")
memory = dpctl.memory.MemoryUSMShared(4, queue=queue)
def seconds(n):
    event = queue.submit(spin, [memory, ctypes.c_int(n)], [1])
    event.wait()
    return (event.profiling_info_end - event.profiling_info_start) * 1e-9
few, many = seconds(1000), seconds(10_000_000)
with ThreadPoolExecutor() as pool:
    shared = pool.submit(lambda: dpnp.ones(2)).result().sycl_queue == queue
"""
        assert self.said(f"{source}\nqueue.has_enable_profiling, shared, 0 < few < many / 10 < 1") == (
            "[0-1] (True, True, True)\n"
        )

    def test_variables_live_on_and_the_last_value_is_shown_as_in_a_cell(self) -> None:
        assert self.said("def double(x):\n    return 2 * x\nmine = rank + 1") == ""
        assert self.said("double(mine)") == "[0] 2\n[1] 4\n"
        assert self.said("_ + 1") == "[0] 3\n[1] 5\n"
        assert self.said("double(mine);") == ""
        assert self.said("None") == ""
        assert self.said("display({'a': rank})\nimport sys; print('!', file=sys.stderr)") == (
            "[0] {'a': 0}\n[1] {'a': 1}\n[0-1] !\n"
        )

    def test_a_variable_comes_back_by_rank_and_device_arrays_as_numpy(self) -> None:
        output = run_cell(self.pair, "import dpnp\nbag = {'a': [dpnp.arange(3) * rank], 'b': rank}", out=["bag"])
        assert [bag["b"] for bag in output.values["bag"]] == [0, 1]
        assert [type(bag["a"][0]) for bag in output.values["bag"]] == [np.ndarray] * 2
        assert output.values["bag"][1]["a"][0].tolist() == [0, 1, 2]
        with pytest.raises(EngineError, match=r"there is no variable 'nothing' on this rank"):
            run_cell(self.pair, "1", out=["nothing"])

    def test_arrays_of_the_tensor_module_come_back_as_numpy_too(self) -> None:
        module = "dpctl.tensor" if WITH_NUMBA_DPEX else "dpnp.tensor"
        output = run_cell(self.pair, f"import {module} as tensor\nrow = tensor.arange(3) + rank", out=["row"])
        assert [type(row) for row in output.values["row"]] == [np.ndarray] * 2
        assert [row.tolist() for row in output.values["row"]] == [[0, 1, 2], [1, 2, 3]]

    def test_the_example_of_a_kernel_in_opencl_c_runs_as_it_is(self) -> None:
        assert self.said(EXAMPLE) == f"[0-1] the sum is {2.0 * sum(range(1000))}\n"
        output = run_cell(self.pair, "x", out=["x"])
        for x in output.values["x"]:
            np.testing.assert_array_equal(x, 2 * np.arange(1000, dtype=np.float32))

    @pytest.mark.skipif(WITH_NUMBA_DPEX, reason="numba-dpex is installed on Python 3.10 and 3.11")
    @pytest.mark.parametrize(
        "source",
        [
            "import numba_dpex as ndpx",
            "from numba_dpex import kernel_api as kapi",
            "import numba_dpex.kernel_api",
            "def late():\n    import numba_dpex\nlate()",
        ],
    )
    def test_an_import_of_numba_dpex_says_what_to_do_instead(self, source: str) -> None:
        with pytest.raises(EngineError, match="of 2 engines raised ModuleNotFoundError") as caught:
            run_cell(self.pair, source)
        message = str(caught.value)
        assert message.count("ModuleNotFoundError: No module named 'numba_dpex'") == 1
        assert "Write the kernel in OpenCL C, which dpctl compiles" in message
        assert "%xpu_cluster start --devices opencl:gpu" in message
        assert message.rstrip("\n").endswith(f"This cell runs as it is:\n\n%%xpu\n{EXAMPLE}".rstrip("\n"))

    @pytest.mark.skipif(WITH_NUMBA_DPEX, reason="dpctl has dpctl.tensor on Python 3.10 and 3.11")
    @pytest.mark.parametrize("source", ["import dpctl.tensor as dpt", "from dpctl import tensor"])
    def test_a_failed_import_of_dpctl_tensor_names_dpnp_tensor(self, source: str) -> None:
        with pytest.raises(EngineError, match=r"from Python 3\.12 on dpnp has it: import dpnp\.tensor"):
            run_cell(self.pair, source)

    def test_other_failed_imports_get_no_advice(self) -> None:
        with pytest.raises(EngineError, match=r"No module named 'numba_dpexy'\n*$"):
            run_cell(self.pair, "import numba_dpexy")

    def test_a_program_that_does_not_compile_gets_advice(self) -> None:
        source = "from dpctl.program import create_program_from_source as build\nbuild(queue, 'kernel void a(')"
        with pytest.raises(EngineError, match=r"SyclProgramCompilationError\n.* there is a mistake in the source"):
            run_cell(self.pair, source)

    def test_a_cell_on_some_ranks_has_a_communicator_of_these_ranks(self) -> None:
        assert self.said("comm.allreduce(10), comm.rank, rank, size", ranks=[1]) == "[1] (10, 0, 1, 2)\n"
        output = run_cell(self.pair, "kept = rank", ranks=[1], out=["kept"])
        assert output.values["kept"] == [1]
        with pytest.raises(UsageError, match=r"received 0,7, expected ranks from 0 to 1"):
            run_cell(self.pair, "1", ranks=[0, 7])

    def test_a_cell_on_some_ranks_does_not_wait_for_output_of_the_others(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("xpulab.deploy.tasks.exchange._PRINTED", 3600.0)
        run_cell(self.pair, "1", ranks=[1])

    def test_an_exception_is_shown_once_with_its_ranks_and_a_traceback_from_the_cell(self) -> None:
        with pytest.raises(EngineError) as caught:
            run_cell(self.pair, "def inner():\n    return 1 / 0\nprint('before')\ninner()")
        message = str(caught.value)
        assert message.startswith("2 of 2 engines raised ZeroDivisionError\nrank 0, 1 on ")
        assert message.count("ZeroDivisionError: division by zero") == 1
        assert "line 2, in inner\n    return 1 / 0" in message
        assert "site-packages" not in message
        assert "xpulab/engine" not in message
        assert self.capsys.readouterr().out == "[0-1] before\n"

    def test_a_rank_that_raises_ends_the_wait_of_the_others(self) -> None:
        for waiting in (
            "comm.barrier()",
            "comm.recv(source=1)",
            "comm.isend('x' * 10**7, 1).wait()",
            "comm.bcast(0, 1)",
        ):
            with pytest.raises(EngineError, match=r"1 of 2 engines raised ValueError\nrank 1 on"):
                run_cell(self.pair, f"if rank == 1:\n    raise ValueError('no')\n{waiting}")
            assert self.said("comm.allreduce(rank)") == "[0-1] 1\n"

    def test_errors_of_several_kinds_are_counted_by_kind(self) -> None:
        with pytest.raises(EngineError, match=r"1 of 2 engines raised ZeroDivisionError, 1 raised KeyError\n"):
            run_cell(self.pair, "{}['a'] if rank else 1 / 0")

    def test_magics_and_commands_of_ipython_run_on_the_ranks(self) -> None:
        assert self.said("x = 2\n!echo $x of $size on $$HOME && exit 3\n_exit_code") == (
            f"[0-1] 2 of 2 on {os.environ['HOME']}\n[0-1] 3\n"
        )
        assert self.said("found = !echo {rank}\nfound") == "[0] ['0']\n[1] ['1']\n"
        timed = self.said("%timeit -n 1 -r 1 sum(range(x))")
        assert timed.count("1 loop each") == (1 if timed.startswith("[0-1]") else 2)  # both may take as long
        timed = self.said("%time y = x + 1 + rank")
        assert "Wall time: " in timed
        assert self.said("y") == "[0] 3\n[1] 4\n"
        assert "Wall time: " in self.said("%%time\nz = y + 1")
        assert self.said("z") == "[0] 4\n[1] 5\n"
        assert "Docstring" in self.said("print?")
        with pytest.raises(EngineError, match="Line magic function `%nothing` not found"):
            run_cell(self.pair, "%nothing")

    def test_await(self, tmp_path: Path) -> None:
        assert self.said("import asyncio\nawait asyncio.sleep(0, rank + 5)") == "[0] 5\n[1] 6\n"
        assert (
            self.said("async def two():\n    await asyncio.sleep(0)\n    return 2\nn = await two()\nn") == "[0-1] 2\n"
        )
        run_cell(
            self.pair,
            "async def later():\n    await asyncio.sleep(0.1)\n    return 'later'\n"
            "going = asyncio.ensure_future(later())\nawait asyncio.sleep(0)",
        )
        assert self.said("await going") == "[0-1] 'later'\n"
        with pytest.raises(EngineError, match="raised ZeroDivisionError"):
            run_cell(self.pair, "await asyncio.sleep(0)\n1 / 0")
        came, have_come = come_to(tmp_path / "came")
        place = r"rank 0 was in line \d: await asyncio\.sleep"
        with pytest.raises(CellInterrupted, match=place), pressed_when(have_come):
            run_cell(self.pair, f"\nawait asyncio.sleep(600, {came})")
        assert self.said("await asyncio.gather(two(), two())") == "[0-1] [2, 2]\n"

    def test_variables_as_items_of_the_cluster(self) -> None:
        self.pair["sent"] = {"a": np.arange(3)}
        assert self.said("sent['a'] += rank\nsent") == "[0] {'a': array([0, 1, 2])}\n[1] {'a': array([1, 2, 3])}\n"
        assert [value["a"].sum() for value in self.pair["sent"]] == [3, 6]
        assert "sent" in self.pair._ipython_key_completions_()
        with pytest.raises(EngineError, match="there is no variable 'unknown'"):
            self.pair["unknown"]
        with pytest.raises(UsageError, match="expected the name of a variable"):
            self.pair["a b"] = 1
        with pytest.raises(TypeError, match="not iterable"):
            list(self.pair)  # type: ignore[call-overload]

    def test_a_cell_that_reads_from_the_keyboard_is_told_that_there_is_none(self) -> None:
        with pytest.raises(EngineError, match="EOFError: an engine has no keyboard, so input"):
            run_cell(self.pair, "input('name? ')")

    def test_arrays_on_the_device_and_functions_travel_between_ranks(self) -> None:
        source = "import dpnp\na = comm.allreduce(dpnp.arange(2) + rank)\nb = comm.bcast(lambda: rank, 0)()"
        assert self.said(f"{source}\ntype(a).__module__.startswith('dpnp'), dpnp.asnumpy(a).tolist(), b == 0") == (
            "[0-1] (True, [1, 3], True)\n"
        )

    @pytest.mark.parametrize(
        "source",
        [
            "import matplotlib.pyplot as plt\nplt.plot([0, rank])\nplt.show()",
            "import matplotlib.pyplot as plt\nplt.plot([0, rank]);",
            "import matplotlib.pyplot as plt\nfig, ax = plt.subplots()\nax.plot([0, rank])\nfig",
            "from matplotlib.figure import Figure\nfig = Figure()\nfig.subplots().plot([0, rank])\nfig",
            "from matplotlib.figure import Figure\nfig = Figure()\nfig.subplots().plot([0, rank])\ndisplay(fig)",
        ],
    )
    def test_a_figure_is_a_picture(self, source: str) -> None:
        lines = self.said(source).splitlines()
        figures = self.pair.last_output.figures
        assert [len(figures[rank]) for rank in (0, 1)] == [1, 1]
        for rank, line in enumerate(lines):
            assert figures[rank][0].startswith(b"\x89PNG")
            assert line.startswith(f"[{rank}] figure of ")
            assert line.endswith(f" pixels; its PNG is in xpulab.current_cluster().last_output.figures[{rank}][0]")
        assert len(lines) == 2
        assert figures[0] != figures[1]
        assert self.said("1 + rank") == "[0] 1\n[1] 2\n"
        assert self.pair.last_output.figures == {}

    def test_a_figure_of_a_cell_that_raises_after_it_was_shown_is_shown_and_others_are_forgotten(self) -> None:
        source = "import matplotlib.pyplot as plt\nplt.plot([0, 1])\nplt.show()\nplt.plot([1, 0])\n1 / 0"
        with pytest.raises(EngineError, match="2 of 2 engines raised ZeroDivisionError"):
            run_cell(self.pair, source)
        assert self.capsys.readouterr().out.startswith("[0-1] figure of ")
        assert [len(drawn) for drawn in self.pair.last_output.figures.values()] == [1, 1]
        assert self.said("plt.get_fignums()") == "[0-1] []\n"

    def test_a_syntax_error_is_raised_before_the_cell_is_sent(self) -> None:
        with pytest.raises(SyntaxError):
            run_cell(self.pair, "x = 1 +")

    def test_a_separator_of_records_that_a_child_prints_hides_nothing(self) -> None:
        said = self.said("import os\nos.system(r\"printf 'a\\036b\\n'\")\nprint('after')", ranks=[0])
        assert "[0] after" in said
        assert "b" in said.partition("after")[0]

    def test_a_loop_that_prints_does_not_fill_the_memory(self) -> None:
        def keep(task: Any, limit: int) -> None:
            from xpulab.sharing import transcript

            transcript.LIMIT = limit

        self.pair.run(keep, 1_000_000)
        try:
            said, output = self.said("for _ in range(300): print('x' * 9999)", ranks=[0]), self.pair.last_output
        finally:
            self.pair.run(keep, LIMIT)
        assert said.count("\n") == 41
        assert str(output.text()).endswith("[0] … 1,990,000 more characters, which xpulab did not keep")

    @pytest.mark.parametrize(
        "source",
        [
            "if rank == 0: comm.recv(source=1)",
            "import numpy as np\nif rank == 1: comm.Recv(np.empty(1), 0)",
            "if rank == 0: comm.barrier()",
            "if rank == 0: comm.irecv(source=1).wait()",
            f"{BETWEEN}if rank == 0: between.recv()",
            "from mpi4py.util import pkl5\nif rank == 0: pkl5.Intracomm(comm).recv()",
            "import numpy as np\nif rank == 0: comm.Sendrecv_replace(np.empty(1), 1, source=1)",
            "from mpi4py import MPI\nwin = MPI.Win.Allocate(8, comm=comm)\nif rank == 0: win.Fence()",
            "if rank == 0: comm.Split(0).barrier()\nelse: comm.Split(1)\nwhile True: pass",
            "!sleep 60",
            "import asyncio\nasync def wait():\n    await asyncio.sleep(60)\nawait wait()",
        ],
    )
    def test_ctrl_c_ends_the_cell_on_all_ranks(self, source: str, tmp_path: Path) -> None:
        run_cell(self.pair, "before = rank")
        came, have_come = come_to(tmp_path / "came")
        with pytest.raises(CellInterrupted, match=r"rank \d was in line \d: "), pressed_when(have_come):
            run_cell(self.pair, f"print('so far')\n{came}\n{source}")
        assert self.capsys.readouterr().out == "[0-1] so far\n"
        assert self.said("before, comm.allreduce(1)").endswith("(1, 2)\n")

    def test_a_rank_that_goes_on_after_another_raised_is_named(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setattr("xpulab.deploy.tasks.users_code._PATIENCE", 0.3)
        told, go_on = io.StringIO(), tmp_path / "go-on"
        source = f"import os, time\nif rank: 1 / 0\nwhile not os.path.exists({str(go_on)!r}): time.sleep(0.01)"
        words = "rank 1 raised an exception (ZeroDivisionError: division by zero), and rank 0 is still"
        with (
            pytest.raises(EngineError),
            contextlib.redirect_stderr(told),
            acted_when(lambda: words in told.getvalue(), go_on.touch),
        ):
            run_cell(self.pair, source)
        assert told.getvalue().count(words) == 1


class ZMQInteractiveShell(InteractiveShell):
    """Replaces a notebook's kernel, and keeps the displayed objects in ``display_pub.outputs``."""


@pytest.mark.cluster
def test_a_notebook_shows_the_pictures_under_the_names_of_their_ranks(
    pair: xpulab.XPUCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    InteractiveShell.clear_instance()
    shell: Any = ZMQInteractiveShell.instance(config=Config(HistoryManager={"enabled": False}))
    shell.display_pub = CapturingDisplayPublisher()
    pair.activate()
    try:
        run_cell(pair, "import matplotlib.pyplot as plt\nfor n in (0, rank):\n    plt.plot([n, 0])\n    plt.show()")
    finally:
        ZMQInteractiveShell.clear_instance()
    said = [line.partition(" figure of ")[0] for line in capsys.readouterr().out.splitlines()]
    assert said == ["[0-1]", "[0]", "[1]"]
    shown = [output["data"]["image/png"] for output in shell.display_pub.outputs]
    drawn = pair.last_output.figures
    assert [base64.b64decode(png) for png in shown] == [drawn[0][0], drawn[0][1], drawn[1][1]]
    assert [output["metadata"]["image/png"]["alt"] for output in shell.display_pub.outputs] == [
        "figure of rank 0-1",
        "figure of rank 0",
        "figure of rank 1",
    ]


@pytest.mark.cluster
def test_engines_import_no_library_of_arrays_nor_of_notebooks_until_a_cell_does() -> None:
    libraries = ["matplotlib", "dpnp", "dpctl.tensor", "dpnp.tensor", "numba_dpex", "numba"]
    libraries += ["ipyparallel.client", "jupyter_client.manager", "psutil"]
    source = f"import sys\nloaded = [name for name in {libraries} if name in sys.modules]"
    with xpulab.XPUCluster(1, timeout=60) as cluster:
        assert run_cell(cluster, "mine = {'a': [1, None]}", out=["mine"]).values["mine"] == [{"a": [1, None]}]
        assert run_cell(cluster, source, out=["loaded"]).values["loaded"] == [[]]
        source = "import ipyparallel, jupyter_client, psutil\nfound = ipyparallel.Client.__name__, psutil.pid_exists(1)"
        assert run_cell(cluster, source, out=["found"]).values["found"] == [("Client", True)]


@pytest.mark.cluster
def test_the_magic(pair: xpulab.XPUCluster, capsys: pytest.CaptureFixture[str], no_cluster: None) -> None:
    config = Config()
    config.HistoryManager.enabled = False
    shell: Any = InteractiveShell(config=config)
    shell.extension_manager.load_extension("xpulab")
    with pytest.raises(NoClusterError, match=r"type: import xpulab; xpulab\.XPUCluster\(\)\.start\(\)"):
        shell.run_cell_magic("xpu", "", "1")
    pair.activate()
    assert shell.run_cell_magic("xpu", "--ranks 0-1 --out squares", "squares = rank ** 2\nsquares") is None
    assert shell.user_ns["squares"] == [0, 1]
    assert capsys.readouterr().out == "[0] 0\n[1] 1\n"
    shown = shell.run_line_magic("xpu_cluster", "last --output")
    assert shell.display_formatter.format(shown)[0]["text/plain"] == "[0] 0\n[1] 1"
    assert shell.run_cell_magic("xpu", "-h", "1") is None
    shown = capsys.readouterr().out
    assert "usage: %%xpu [-h] [--ranks R,R] [--in A,B] [--scatter A,B] [--out A,B]" in " ".join(shown.split())
    shell.user_ns.update(B=np.arange(4), X=np.arange(3))
    shell.run_cell_magic("xpu", "--in B --scatter X --out both --out mine", "both, mine = int(B.sum()), X.tolist()")
    assert (shell.user_ns["both"], shell.user_ns["mine"]) == ([6, 6], [[0], [1, 2]])
    shell.run_cell_magic("xpu", "--in B,X --out all_of --in both", "all_of = B.size + len(X) + len(both)")
    assert shell.user_ns["all_of"] == [9, 9]
    with pytest.raises(UsageError, match="there is no variable nowhere in the notebook"):
        shell.run_cell_magic("xpu", "--in nowhere", "1")
    assert "You can write kernels in OpenCL C" in " ".join(shown.split())
    for name in ("xpu", "xpu_profile"):
        shell.run_cell(f"%%{name} -h")
        assert f"usage: %%{name} [-h]" in capsys.readouterr().out
    for line, words in [
        ("--ranks x", "received 'x', expected integers such as 0,2 or 0-3"),
        ("--out 1x", "received '1x', expected the name of a variable"),
        ("--rank 0", "did you mean --ranks"),
    ]:
        with pytest.raises(UsageError, match=words):
            shell.run_cell_magic("xpu", line, "1")
    registry.clusters.running.clear()
    shell.extension_manager.unload_extension("xpulab")
    assert "xpu" not in shell.magics_manager.magics["cell"]
