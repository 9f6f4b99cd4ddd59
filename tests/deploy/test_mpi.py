"""The command lines of launchers and of MPI libraries: their text, and that Intel MPI's starts ranks."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import xpulab
from xpulab import cli
from xpulab.deploy.launchers import slurm
from xpulab.deploy.launchers.scheduler import Job
from xpulab.deploy.launchers.slurm import Srun
from xpulab.deploy.launchers.ssh import Ssh
from xpulab.deploy.mpi import choice, intel, mpich, openmpi
from xpulab.deploy.mpi.command import HERE, LIBMPI, Found, RanksOfHost, shown, split
from xpulab.exceptions import UsageError
from xpulab.libraries import oneapi
from xpulab.sharing.program import program

SSH = "-oBatchMode=yes -oConnectTimeout=10 -oServerAliveInterval=5"


@pytest.mark.parametrize(("config", "options"), [(None, SSH), ("my config", f"-F 'my config' {SSH}")])
def test_a_command_by_ssh_reaches_the_host_as_it_is(config: str | None, options: str) -> None:
    words = Ssh("node1", config).command(["python", "-c", "print('a b')"])
    assert shlex.join(words[:-1]) == f"ssh {options} -T -- node1"
    assert shlex.split(words[-1]) == ["cd", "/", "&&", "exec", "python", "-c", "print('a b')"]


def test_a_host_is_never_taken_for_an_option_of_ssh() -> None:
    words = Ssh("-oProxyCommand=touch here").command(["true"])
    assert words.index("--") < words.index("-oProxyCommand=touch here")


SRUN = "--jobid=7 --overlap --nodes=1 --ntasks=1 --ntasks-per-node=1 --cpu-bind=none --mpi=none --chdir=/ --quiet"


def test_a_command_by_srun_shares_its_node_with_the_other_steps_of_the_job() -> None:
    words = Srun("node1", "7").command(["python", "-c", "print('a b')"])
    assert words == ["srun", *SRUN.split(), "--nodelist", "node1", "python", "-c", "print('a b')"]


def test_intel_mpi_starts_by_srun_in_a_job() -> None:
    ranks = [RanksOfHost("10.0.0.1", 2), RanksOfHost("node2", 1)]
    ours = intel.command(ranks, "eth1", None, (), slurm.starter(Job("7", ("node1", "node2")))).environment
    assert {name: value for name, value in ours.items() if "BOOTSTRAP" in name} == {
        "I_MPI_HYDRA_BOOTSTRAP": "rsh",
        "I_MPI_HYDRA_BOOTSTRAP_EXEC": "srun",
        "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS": f"{SRUN} --nodelist",
    }


@pytest.mark.parametrize("mpi", ["openmpi", "mpich"])
def test_other_mpis_are_refused_on_several_nodes_of_a_job(mpi: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "find", lambda name: Found("/a/mpiexec", (4, 1, 4)))
    with pytest.raises(UsageError, match=rf"mpi='{mpi}' .* --mpi intel, .* --launcher local, .* --hosts "):
        choice.command(
            mpi, [RanksOfHost("10.0.0.1", 1), RanksOfHost("node2", 1)], "eth1", job=Job("7", ("node1", "node2"))
        )


def test_intel_mpi_on_this_host_uses_shared_memory_and_the_loopback_interface(
    environment: Callable[..., None],
) -> None:
    environment(I_MPI_THREAD_YIELD=None)
    command = intel.command([RanksOfHost(HERE, 1)])
    assert command.words == (str(oneapi.mpiexec()), "-iface", "lo", "-hosts", "localhost")
    assert command.environment == {
        "I_MPI_PIN": "0",
        "I_MPI_OFFLOAD": "0",
        "I_MPI_SHM_CMA": "0",
        "I_MPI_THREAD_YIELD": "2",
        "I_MPI_FABRICS": "shm",
        "I_MPI_HYDRA_BOOTSTRAP": "fork",
    }


def test_ranks_of_intel_mpi_sleep_while_they_wait_if_they_share_cores_unless_the_user_has_chosen(
    environment: Callable[..., None],
) -> None:
    shared = [RanksOfHost(HERE, len(os.sched_getaffinity(0)) + 1)]
    environment(I_MPI_THREAD_YIELD=None)
    assert intel.command(shared).environment["I_MPI_THREAD_YIELD"] == "3"
    environment(I_MPI_THREAD_YIELD="2")
    assert "I_MPI_THREAD_YIELD" not in intel.command(shared).environment


def test_intel_mpi_on_several_hosts_starts_by_ssh_and_connects_by_tcp(environment: Callable[..., None]) -> None:
    environment(I_MPI_THREAD_YIELD=None)
    command = intel.command(
        [RanksOfHost("10.0.0.1", 2), RanksOfHost("node2", 1)], "eth1", "/a b/config", ["-genv", "A", "1"]
    )
    options = "-iface eth1 -ppn 1 -hosts 10.0.0.1,10.0.0.1,node2 -genv A 1"
    assert command.words == (str(oneapi.mpiexec()), *options.split())
    assert command.environment == {
        "I_MPI_PIN": "0",
        "I_MPI_OFFLOAD": "0",
        "I_MPI_SHM_CMA": "0",
        "I_MPI_FABRICS": "shm:ofi",
        "I_MPI_THREAD_YIELD": "2",
        "FI_PROVIDER": "tcp",
        "I_MPI_HYDRA_BOOTSTRAP": "ssh",
        "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS": f"-F '/a b/config' {SSH}",
    }


OPENMPI = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "OMPI_MCA_pml": "ob1",
}
OPENMPI_4 = {
    **OPENMPI,
    "OMPI_MCA_odls_base_sigkill_timeout": "0",
    "OMPI_MCA_ras": "^slurm,gridengine,tm,lsf,alps",
}
OPENMPI_5 = {
    **OPENMPI,
    "PRTE_ALLOW_RUN_AS_ROOT": "1",
    "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_odls_base_sigkill_timeout": "0",
    "PRTE_MCA_ras": "^slurm,gridengine,pbs,lsf,flux",
    "PRTE_MCA_plm": "ssh",
}


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ((4, 1, 4), {**OPENMPI_4, "OMPI_MCA_plm": "isolated", "OMPI_MCA_btl": "self,vader"}),
        ((5, 0, 2), {**OPENMPI_5, "OMPI_MCA_btl": "self,sm"}),
    ],
)
def test_open_mpi_on_this_host_uses_shared_memory(version: tuple[int, ...], expected: dict[str, str]) -> None:
    command = openmpi.command(Found("/a/mpiexec", version), [RanksOfHost(HERE, 3)], extra=["--mca", "pml", "ucx"])
    assert shlex.join(command.words) == "/a/mpiexec --host localhost:3 --bind-to none --mca pml ucx"
    assert command.environment == expected


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        (
            (4, 1, 4),
            {
                **OPENMPI_4,
                "OMPI_MCA_plm": "rsh",
                "OMPI_MCA_btl": "self,vader,tcp",
                "OMPI_MCA_plm_rsh_args": f"-F '/a b/config' {SSH}",
            },
        ),
        (
            (5, 0, 2),
            {**OPENMPI_5, "OMPI_MCA_btl": "self,sm,tcp", "PRTE_MCA_plm_ssh_args": f"-F '/a b/config' {SSH}"},
        ),
    ],
)
def test_open_mpi_on_several_hosts_starts_by_ssh_and_passes_variables_on(
    version: tuple[int, ...], expected: dict[str, str]
) -> None:
    ranks = [RanksOfHost("10.0.0.1", 2), RanksOfHost("node2", 1)]
    command = openmpi.command(Found("mpiexec", version), ranks, "eth1", "/a b/config", [], ["A", "B", "A"])
    assert shlex.join(command.words) == "mpiexec --host 10.0.0.1:2,node2:1 --bind-to none -x A -x B"
    assert command.environment == expected


def test_mpich_on_this_host_uses_the_loopback_interface() -> None:
    command = mpich.command(Found("/a/mpiexec"), [RanksOfHost(HERE, 3)], extra=["-genv", "A", "1"])
    options = "-iface lo -bind-to none -hosts localhost -genv A 1"
    assert command.words == ("/a/mpiexec", *options.split())
    assert command.environment == {
        "MPIR_CVAR_CH4_NETMOD": "ofi",
        "FI_PROVIDER": "tcp",
        "FI_TCP_IFACE": "lo",
        "UCX_NET_DEVICES": "lo",
        "HYDRA_LAUNCHER": "fork",
    }


def test_mpich_on_several_hosts_starts_by_ssh_in_a_folder_that_all_hosts_have() -> None:
    command = mpich.command(
        Found("mpiexec"), [RanksOfHost("10.0.0.1", 2), RanksOfHost("node2", 1)], "eth1", "/a b/config"
    )
    options = "-iface eth1 -bind-to none -wdir / -hosts 10.0.0.1:2,node2:1"
    assert command.words == ("mpiexec", *options.split())
    assert command.environment == {
        "MPIR_CVAR_CH4_NETMOD": "ofi",
        "FI_PROVIDER": "tcp",
        "HYDRA_LAUNCHER": "ssh",
        "HYDRA_LAUNCHER_EXTRA_ARGS": f"-F '/a b/config' {SSH}",
    }


@pytest.mark.parametrize(
    ("name", "said", "version"),
    [
        ("openmpi", "mpiexec.openmpi (OpenRTE) 4.1.4\n\nReport bugs to ...", (4, 1, 4)),
        ("openmpi", "mpiexec (Open MPI) 5.0.11\n", (5, 0, 11)),
        ("openmpi", "mpirun (Open MPI) 4.1.5rc2\n", (4, 1, 5)),
        ("mpich", "HYDRA build details:\n    Version:                                 4.0.2\n", (4, 0, 2)),
        ("mpich", "HYDRA build details:\n    Version:           5.0\n", (5, 0, 0)),
        ("intel", "Intel(R) MPI Library for Linux* OS, Version 2021.17 Build 20251215 (id: 2ac2f63)", (2021, 17)),
    ],
)
def test_an_mpiexec_is_known_by_what_it_says(name: str, said: str, version: tuple[int, ...]) -> None:
    for each in ("intel", "openmpi", "mpich"):
        assert choice.module(each).version(said) == (version if each == name else None)


DASHES = "-" * 74

#: What mpiexec has said: rank 1 of 2 was killed by signal 9, and rank 1 of 2 ended with status 3.
KILLED = {
    "intel": (
        "\n====\n=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES\n=   RANK 1 PID 44 RUNNING AT vm\n"
        "=   KILLED BY SIGNAL: 9 (Killed)\n====\n[mpiexec@vm] Exit codes: [vm] 9,9\n"
    ),
    "openmpi": (
        f"{DASHES}\nPrimary job  terminated normally, but 1 process returned\na non-zero exit code. Per "
        f"user-direction, the job has been aborted.\n{DASHES}\n{DASHES}\n"
        f"mpiexec.openmpi noticed that process rank 1 with PID 0 on node vm exited on signal 9 (Killed).\n{DASHES}\n"
    ),
    "openmpi 5": (
        f"{DASHES}\nprterun noticed that process rank 1 with PID 44 on node vm exited on\nsignal 9 (Killed).\n"
        f"{DASHES}\n"
    ),
    "mpich": (
        "\n====\n=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES\n=   PID 44 RUNNING AT localhost\n"
        "=   EXIT CODE: 9\n=   CLEANING UP REMAINING PROCESSES\n====\n[mpiexec@vm] Exit codes: [localhost] 0,9\n"
        "YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Killed (signal 9)\nThis typically refers to a problem with "
        "your application.\nPlease see the FAQ page for debugging suggestions\n"
    ),
}
EXITED = {
    "intel": "[mpiexec@vm] Exit codes: [vm] 0,768\n",
    "openmpi": (
        f"{DASHES}\nmpiexec.openmpi detected that one or more processes exited with non-zero status, thus causing\n"
        f"the job to be terminated. The first process to do so was:\n\n  Process name: [[981,1],1]\n  Exit code:    3\n"
        f"{DASHES}\n"
    ),
    "openmpi 5": (
        f"{DASHES}\nprterun detected that one or more processes exited with non-zero status,\nthus causing the job to "
        f"be terminated. The first process to do so was:\n\n   Process name: [prterun-vm-28470@1,1]\n"
        f"   Exit code:    3\n{DASHES}\n"
    ),
    "mpich": "[mpiexec@vm] Exit codes: [node1] 0 [node2] 768\n",
}


@pytest.mark.parametrize("kind", KILLED)
def test_the_cause_and_the_statuses_are_read_from_what_mpiexec_says(kind: str) -> None:
    module = choice.module(kind.split()[0])
    assert module.cause(f"before\n{KILLED[kind]}after", 1, 44) == "killed by signal: 9 (killed)"
    assert module.cause(KILLED[kind], 0, 43) == ""
    assert module.cause("", 1, 44) == ""
    assert module.cause(EXITED[kind], 1, 44) == "exited with status 3"
    for text, status in ((KILLED[kind], 9), (EXITED[kind], 3 << 8)):
        statuses, rest = module.statuses(f"mine\n{text}also mine\n")
        assert statuses.get(1) == status
        assert statuses.get(0, 0) in (0, signal.SIGKILL)
        assert rest.split("\n") == ["mine", "also mine"]


def test_a_rank_that_mpiexec_killed_after_another_one_has_no_cause() -> None:
    log = KILLED["intel"].replace("[vm] 9,9", "[vm:0] 0,9 [node1:1] 768")
    assert intel.cause(log, 1, 44) == ""
    assert intel.cause(log, 2, 45) == "exited with status 3"


def test_a_rank_that_has_ended_with_status_0_is_the_cause_if_mpiexec_killed_all_others() -> None:
    log = KILLED["intel"].replace("[vm] 9,9", "[vm:0] 0,9,9")
    assert intel.cause(log, 0, 43) == "exited with status 0"
    log = KILLED["intel"].replace("[vm] 9,9", "[vm:0] 0,9 [node1:1] 0")  # of which mpiexec does not know how it ended
    assert intel.cause(log, 0, 43) == ""


def test_the_cause_is_read_from_the_banner_if_mpich_fails_to_write_the_statuses() -> None:
    banner, _, _ = KILLED["mpich"].partition("[mpiexec@vm]")
    assert mpich.cause(banner, 1, 44) == "killed by signal: 9 (killed)"
    assert mpich.cause(banner, 0, 43) == ""


def test_variables_of_a_rank_are_options() -> None:
    assert intel.of_ranks({"A": "b c"}) == mpich.of_ranks({"A": "b c"}) == ["-env", "A", "b c"]
    assert openmpi.of_ranks({"A": "b c", "D": ""}) == ["-x", "A=b c", "-x", "D="]


def _program(path: Path, says: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho '{says}'\n")
    path.chmod(0o755)
    return path


def test_the_first_mpiexec_of_this_mpi_counts_and_the_library_beside_it(
    tmp_path: Path, environment: Callable[..., None]
) -> None:
    says = "mpiexec (Open MPI) 4.1.5"
    _program(tmp_path / "other" / "bin" / "mpiexec", "HYDRA build details: Version: 4.0.2")
    first = _program(tmp_path / "first" / "bin" / "mpiexec", says)
    second = _program(tmp_path / "second" / "bin" / "mpiexec.openmpi", says)
    (tmp_path / "first" / "lib64").mkdir()
    (tmp_path / "first" / "lib64" / "libmpi.so.40").touch()
    folders = [str(tmp_path / name / "bin") for name in ("none", "other", "first", "second")]
    environment(PATH=os.pathsep.join(folders), **{LIBMPI: None})
    assert choice.find("openmpi") == Found(str(first), (4, 1, 5), str(tmp_path / "first" / "lib64" / "libmpi.so.40"))
    environment(PATH=os.pathsep.join([folders[0], str(second.parent)]))
    assert choice.find("openmpi") == Found(str(second), (4, 1, 5), "")
    environment(**{LIBMPI: "/own/libmpi.so"})
    command = choice.command("openmpi", [RanksOfHost(HERE, 1)])
    assert command.environment[LIBMPI] == "/own/libmpi.so"
    assert command.expected(1) == {"mpi": "openmpi", "n": 1, "mpiexec": str(second), "own": True}


def test_intel_mpi_is_that_of_this_environment_whatever_path_says(environment: Callable[..., None]) -> None:
    environment(PATH="/usr/bin", **{LIBMPI: None})
    command = choice.command("intel", [RanksOfHost(HERE, 1)])
    assert command.words[0] == str(oneapi.mpiexec())
    assert command.environment[LIBMPI] == str(oneapi.mpiexec().parents[1] / "lib" / "libmpi.so.12")
    assert not command.own_library


def test_an_mpi_that_does_not_exist_is_refused() -> None:
    with pytest.raises(UsageError, match="mpi='mvapich' was given; expected one of intel, openmpi, mpich"):
        xpulab.XPUCluster(1, mpi="mvapich").start()
    with pytest.raises(UsageError, match="mpi="):
        xpulab.XPUCluster(1, mpi=["openmpi"]).plan(show=True)  # type: ignore[arg-type]


def test_a_command_line_is_shown_as_a_shell_takes_it() -> None:
    assert shown(["mpiexec", "-n", "2", "a b"], {"A": "1", "B": "x y"}) == "env A=1 'B=x y' mpiexec -n 2 'a b'"


def test_options_that_a_shell_cannot_read_are_refused() -> None:
    assert split("-genv A 'b c'") == ("-genv", "A", "b c")
    assert split(None) == ()
    with pytest.raises(UsageError, match=r"--mpi-args: received .*expected options as a shell reads them"):
        split("-genv 'A")
    with pytest.raises(UsageError, match="--mpi-args"):
        xpulab.XPUCluster(1, mpi_args="'").start()
    with pytest.raises(UsageError, match="mpi_args=1 was given"):
        xpulab.XPUCluster(1, mpi_args=1).start()  # type: ignore[arg-type]


def test_plan_shows_the_command_line_that_starts_the_engines(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan", "-n", "1", "--show", "--mpi-args", "-genv A 1"]) == 0
    line = capsys.readouterr().out.splitlines()[-1]
    expected = f"-print-all-exitcodes -iface lo -hosts localhost -genv A 1 {shlex.join(program('xpulab.engine'))}"
    assert line.startswith("env I_MPI_PIN=0 ")
    assert f"{oneapi.mpiexec()} -n 1 {expected}" in line
    assert cli.main(["plan", "-n", "1"]) == 0
    assert "mpiexec" not in capsys.readouterr().out


@pytest.mark.cluster
def test_the_users_own_options_reach_mpiexec() -> None:
    with xpulab.XPUCluster(1, mpi_args="-genv XPULAB_OWN_OPTION 'x y'", display="none") as cluster:
        assert cluster.run(lambda task: __import__("os").environ["XPULAB_OWN_OPTION"]) == ["x y"]
        assert "-genv XPULAB_OWN_OPTION 'x y'" in cluster.plan(show=True)._repr_html_().replace("&#x27;", "'")


def test_mpiexec_belongs_to_this_environment_and_starts_without_a_path() -> None:
    command = intel.command([RanksOfHost(HERE, 2)])
    assert Path(command.words[0]).parent == Path(sys.executable).parent
    words = [*command.words, "-n", "2", sys.executable, "-c", "print('started')"]
    environment = {"PATH": "/nowhere", "HOME": os.environ.get("HOME", "/"), **command.environment}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=240)
    assert done.stdout.splitlines() == ["started", "started"], done.stderr


def test_mpi_starts_if_the_environment_asks_for_gpu_offload_without_a_gpu() -> None:
    command = intel.command([RanksOfHost(HERE, 1)])
    words = [*command.words, "-n", "1", sys.executable, "-c", "from mpi4py import MPI; print('initialised')"]
    environment = {**os.environ, "I_MPI_OFFLOAD": "1", **command.environment}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=240)
    assert done.stdout == "initialised\n", done.stderr
