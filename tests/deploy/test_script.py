"""`xpulab run`: the ranks' arguments and devices, the marks of their output, and the exit status."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from presses import require_time_after_ctrl_c

from xpulab import cli

pytestmark = pytest.mark.cluster

# A shell starts what runs in its background with SIGINT ignored.
RUN = (
    "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    "from xpulab.cli import main; sys.exit(main(['run', *sys.argv[1:]]))"
)


def begun(script: Path, source: str, *words: str, n: int = 2, **options: Any) -> subprocess.Popen[str]:
    script.write_text(source)
    command = [sys.executable, "-c", RUN, "-n", str(n), str(script), *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


@pytest.fixture(scope="module")
def answered(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """What a script on two ranks has printed, and its messages, for several tests."""
    folder = tmp_path_factory.mktemp("script")
    (folder / "beside.py").write_text("found = 'a module beside the script'\n")
    source = """import dpctl
import os, sys, time
from beside import found
from mpi4py import MPI
rank = MPI.COMM_WORLD.rank
print(sys.argv[1:], __name__, __file__ == sys.argv[0], found, dpctl.SyclDevice().is_cpu)
sys.stdout.write("no end of line")
MPI.COMM_WORLD.Barrier()
print(f"\\nrank {rank} has {len(os.sched_getaffinity(0))} cores, {os.environ['ONEAPI_DEVICE_SELECTOR']}")
os.system("echo child $((1 + 1))")
print("to stderr", rank, file=sys.stderr)
names = "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "GROUP_RANK"
print("torchrun", *(os.environ[name] for name in names))
print("port", os.environ["MASTER_PORT"])
print("rank", rank, "read", repr(sys.stdin.read()))
"""
    (script := folder / "script.py").write_text(source)
    words = ["-n", "2", "--env", "GROUP_RANK=mine", str(script), "-n", "7", "two words", "--show"]
    world = {**os.environ, "RANK": "7", "MASTER_PORT": "29500"}
    done = subprocess.run(
        [sys.executable, "-c", RUN, *words], capture_output=True, text=True, timeout=120, env=world, input="typed"
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def test_the_runtime_the_plan_the_arguments_and_the_marks(answered: tuple[str, str]) -> None:
    said, error = answered
    lines = said.splitlines()
    assert any(
        line.endswith("['-n', '7', 'two words', '--show'] __main__ True a module beside the script True")
        for line in lines
    )
    assert {line for line in lines if "no end of line" in line} <= {f"[{r}] no end of line" for r in ("0", "1", "0-1")}
    cores = [line.partition("] ")[2] for line in lines if "cores" in line]
    assert [line.split(" has ")[0] for line in sorted(cores)] == ["rank 0", "rank 1"]
    assert all(line.endswith("opencl:0") for line in cores)
    assert "child 2" in said
    assert "[0] to stderr 0" in error
    assert "[1] to stderr 1" in error


@pytest.mark.parametrize("kind", ["module", "code"])
def test_modules_and_code_run_as_in_python(kind: str, tmp_path: Path) -> None:
    """They see the arguments, the names and the folder that they see under ``python -m`` and ``python -c``."""
    code = "import sys\ndef f(x: int): pass\nassert f.__annotations__ == {'x': int}\n"
    code += "print(__name__, sys.argv[1:], sys.argv[0].rpartition('/')[2])\nimport beside\nsys.exit(3)"
    (tmp_path / "beside.py").write_text("import os; print(os.path.basename(__file__))")
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__main__.py").write_text(code)
    words = {"module": ["-m", "package"], "code": ["-c", code]}[kind]
    done = subprocess.run(
        [sys.executable, "-c", RUN, "-n", "1", *words, "-x", "--", "two words"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    name = {"module": "__main__.py", "code": "-c"}[kind]
    assert done.stdout == f"[0] __main__ ['-x', '--', 'two words'] {name}\n[0] beside.py\n", done.stderr
    assert done.returncode == 3


def test_pytest_runs_on_the_ranks(tmp_path: Path) -> None:
    source = (
        "from mpi4py import MPI\n\ndef test_sum():\n    total = MPI.COMM_WORLD.allreduce(1)\n    assert total == 2\n"
    )
    (tmp_path / "test_ranks.py").write_text(f"{source}\ndef test_wrong():\n    total = 3\n    assert total == 2\n")
    for chosen, status, words in (("sum", 0, "1 passed"), ("wrong", 1, "assert 3 == 2")):
        command = ["-n", "2", "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", chosen, "test_ranks.py"]
        done = subprocess.run([sys.executable, "-c", RUN, *command], capture_output=True, text=True, cwd=tmp_path)
        assert done.returncode == status, done.stderr
        assert words in done.stdout


def test_a_script_has_torchruns_variables_with_one_port_for_all_ranks(answered: tuple[str, str]) -> None:
    """Those of the shell are of another world; those of --env are the user's."""
    found = answered[0].splitlines()
    assert "[0] torchrun 0 0 2 2 127.0.0.1 mine" in found
    assert "[1] torchrun 1 1 2 2 127.0.0.1 mine" in found
    ports = {line.partition("] port ")[2] for line in found if "] port " in line}
    assert len(ports) == 1
    assert ports != {"29500"}


def test_ranks_above_0_read_the_end_of_a_file_from_standard_input(answered: tuple[str, str]) -> None:
    read = [line for line in answered[0].splitlines() if " read " in line]
    assert sorted(read) == ["[0] rank 0 read 'typed'", "[1] rank 1 read ''"]


@pytest.mark.parametrize(
    ("ending", "status", "says"),
    [
        ("raise ValueError('mine')", 1, "rank 1 ended with status 1"),  # `sys.exit` is in two other tests
        ("os.kill(os.getpid(), 11)", 139, "rank 1 was killed by signal 11"),
        ("os._exit(5)", 5, "rank 1 ended with status 5"),
        ("os._exit(0)", 255, "rank 1 ended with status 0 before its script did (os._exit)"),
    ],
)
def test_the_status_of_the_first_that_fails(tmp_path: Path, ending: str, status: int, says: str) -> None:
    """The other rank waits for the failing rank in a collective."""
    source = f"""import os
from mpi4py import MPI
MPI.COMM_WORLD.Barrier()
if MPI.COMM_WORLD.rank == 1:
    {ending}
MPI.COMM_WORLD.Barrier()
"""
    process = begun(tmp_path / "script.py", source)
    _, error = process.communicate(timeout=120)
    assert process.returncode == status, error
    assert f"xpulab run: {says}" in error
    assert "BAD TERMINATION" not in error
    assert ("[1] ValueError: mine" in error) == ("mine" in ending)
    assert "runpy" not in error


def test_processes_that_mpi_would_start_are_refused_in_words(tmp_path: Path) -> None:
    source = """from mpi4py import MPI
from mpi4py.futures import MPIPoolExecutor
comm = MPI.COMM_WORLD
for each in (comm, MPI.COMM_SELF, comm.Dup()):
    assert not hasattr(type(each).Spawn, "__objclass__"), "this would be a call of MPI"
calls = [
    lambda: comm.Spawn("true"),
    lambda: MPI.COMM_SELF.Spawn_multiple(["true"]),
    lambda: MPIPoolExecutor(1).submit(pow, 2, 3).result(),
]
for call in calls:
    try:
        call()
    except Exception as error:
        print("refused:", error)
comm.Barrier()
"""
    said, error = begun(tmp_path / "script.py", source).communicate(timeout=120)
    assert error == ""
    for rank in (0, 1):  # whose lines are one if they come together
        mine = [line for line in said.splitlines() if line.startswith(("[0-1] ", f"[{rank}] "))]
        names = [
            re.findall(r"refused: (\w+) starts processes by MPI, .*, and Intel MPI's ranks", line) for line in mine
        ]
        assert names == [["Spawn"], ["Spawn_multiple"], ["Spawn"]]
    assert said.count("xpulab run -n 4 -m mpi4py.futures") == len(said.splitlines())


def test_ranks_work_for_an_executor_as_the_refusal_says(tmp_path: Path) -> None:
    task = "print(list(executor.map(pow, [1, 2, 3], [2, 2, 2])))\n"
    pool = "from mpi4py.futures import MPIPoolExecutor\nif __name__ == '__main__':\n"
    (tmp_path / "pool.py").write_text(f"{pool}    with MPIPoolExecutor() as executor:\n        {task}")
    comm = "from mpi4py.futures import MPICommExecutor\nwith MPICommExecutor() as executor:\n"
    (tmp_path / "comm.py").write_text(f"{comm}    if executor is not None:\n        {task}")
    for words in (["-m", "mpi4py.futures", "pool.py"], ["comm.py"]):
        command = [sys.executable, "-c", RUN, "-n", "2", *words]
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=120)
        assert (done.stdout, done.returncode) == ("[0] [1, 4, 9]\n", 0), done.stderr


def test_a_traceback_ends_with_what_to_type_if_it_is_known(tmp_path: Path) -> None:
    source = "class SyclProgramCompilationError(Exception): pass\nraise SyclProgramCompilationError('no')\n"
    _, error = begun(tmp_path / "script.py", source, n=1).communicate(timeout=120)
    assert "SyclProgramCompilationError: no" in error
    assert "If the device takes OpenCL C, there is a mistake in the source." in error


def test_a_rank_that_fails_before_it_uses_mpi_ends_the_others(tmp_path: Path) -> None:
    source = "import os, sys, time\nif os.environ['PMI_RANK'] == '1':\n    sys.exit('not today')\ntime.sleep(600)\n"
    process = begun(tmp_path / "script.py", source)
    _, error = process.communicate(timeout=120)
    assert process.returncode == 1
    assert error.splitlines()[-2:] == [
        "[1] not today",
        "xpulab run: rank 1 ended with status 1, and so all ranks were ended",
    ]


def test_a_rank_that_misses_one_that_has_ended_says_which(tmp_path: Path) -> None:
    """As with PyTorch's gloo, whose error says that the connection was closed, and not by which rank."""
    source = f"""import os, pathlib, psutil, sys
first = pathlib.Path({str(tmp_path / "first")!r})
if os.environ["RANK"] == "0":
    first.write_text(str(os.getpid()))
    sys.exit()
while not first.exists() or not (number := first.read_text()):
    pass
while psutil.pid_exists(int(number)) and psutil.Process(int(number)).status() != psutil.STATUS_ZOMBIE:
    pass
raise RuntimeError("Connection closed by peer")
"""
    process = begun(tmp_path / "script.py", source)
    _, error = process.communicate(timeout=120)
    assert process.returncode == 1
    assert error.splitlines()[-1] == (
        "xpulab run: rank 1 ended with status 1, and so all ranks were ended; rank 0 had ended before, without an error"
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_ctrl_c_and_the_end_of_the_command_end_all(tmp_path: Path, number: signal.Signals) -> None:
    source = "import time\nprint('begun', flush=True)\ntime.sleep(600)\n"
    process = begun(tmp_path / "script.py", source)
    assert process.stdout is not None
    begin = 0
    while begin < 2:
        line = process.stdout.readline()
        assert line, process.communicate()
        begin += 2 * line.startswith("[0-1] begun") + line.endswith("] begun\n") * (not line.startswith("[0-1]"))
    children = psutil.Process(process.pid).children(recursive=True)
    assert len(children) >= 3
    process.send_signal(number)
    _, error = process.communicate(timeout=120)
    assert process.returncode == (130 if number == signal.SIGINT else -number)
    assert "Traceback" not in error
    assert not psutil.wait_procs(children, timeout=120)[1]


def test_ctrl_c_leaves_the_time_to_save(tmp_path: Path) -> None:
    require_time_after_ctrl_c(tmp_path)


def test_show_starts_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script, started = tmp_path / "script.py", tmp_path / "started"
    script.write_text(f"open({str(started)!r}, 'w')")
    words = ["run", "-n", "2", "--devices", "cpu", "--env", "1:MINE=a b", "--show", str(script), "x y"]
    assert cli.main(words) == 0
    said = capsys.readouterr().out
    plan, _, command = said.partition("\n\n")
    assert "Plan: 2 engines" in plan
    first, second, third = command.strip().splitlines()
    assert first.startswith("env I_MPI_")
    assert " I_MPI_FABRICS=shm " in first
    assert "mpiexec -print-all-exitcodes -iface lo" in first
    assert first.count("MPI4PY_LIBMPI=") == 1
    assert second.strip().startswith("-n 1 -env ONEAPI_DEVICE_SELECTOR opencl:0 ")
    assert second.endswith(f"-m xpulab.spmd --rank 0 --cores 0 {script} 'x y' : \\")
    assert "-env MINE 'a b'" in third
    assert "-env MINE" not in second
    assert not started.exists()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("run",), "SCRIPT"),
        (("run", "no-such-file.py"), "received 'no-such-file.py', expected a file of Python code"),
        (("run", "--devices", "warp", __file__), "DeviceNotFoundError"),
        (("run", "-n", "1", __file__, ":"), "the script's argument ':' was given"),
    ],
)
def test_wrong_words(words: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(words) == 2
    assert says in capsys.readouterr().err


def test_what_each_rank_prints_is_in_files_of_its_own_with_the_time_of_each_line(tmp_path: Path) -> None:
    source = (
        "import sys\nfrom mpi4py import MPI\nrank = MPI.COMM_WORLD.rank\nprint('the same')\nprint('rank', rank)\n"
        "print('the same')\nprint('trouble', file=sys.stderr)\nsys.stdout.write('no end ü')"
    )
    words = [sys.executable, "-c", RUN, "-n", "2", "--output", str(tmp_path / "a" / "b"), "--timestamps"]
    (tmp_path / "script.py").write_text(source)
    done = subprocess.run([*words, str(tmp_path / "script.py")], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    time = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} "
    shown = "".join(f"{time}{line}\n" for line in (r"\[0-1\] the same", r"\[0\] rank 0", r"\[1\] rank 1"))
    assert re.fullmatch(shown + rf"{time}\[0-1\] the same\n{time}\[0-1\] no end ü\n", done.stdout)
    for rank in range(2):
        written = (tmp_path / "a" / "b" / f"rank-{rank}.out").read_text()
        assert re.fullmatch(f"{time}the same\n{time}rank {rank}\n{time}the same\n{time}no end ü", written)
        assert re.fullmatch(f"{time}trouble\n", (tmp_path / "a" / "b" / f"rank-{rank}.err").read_text())


def test_a_folder_for_output_that_cannot_be_made_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "script.py").touch()
    words = ["run", "-n", "1", "--output", str(tmp_path / "script.py" / "x"), str(tmp_path / "script.py")]
    assert cli.main(words) == 2
    assert "expected a folder for files" in capsys.readouterr().err
