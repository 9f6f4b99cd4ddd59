"""The command lines of launchers and of MPI libraries: their text, and that Intel MPI's starts ranks."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import xpulab
from xpulab import cli, oneapi
from xpulab.deploy.launchers.ssh import Ssh
from xpulab.deploy.mpi import intel
from xpulab.deploy.mpi.command import HERE, Ranks, shown, split
from xpulab.exceptions import UsageError

SSH = "-oBatchMode=yes -oConnectTimeout=10 -oServerAliveInterval=5"


@pytest.mark.parametrize(("config", "options"), [(None, SSH), ("my config", f"-F 'my config' {SSH}")])
def test_a_command_by_ssh_reaches_the_host_as_it_is(config: str | None, options: str) -> None:
    words = Ssh("node1", config).command(["python", "-c", "print('a b')"])
    assert shlex.join(words[:-1]) == f"ssh {options} -T -- node1"
    assert shlex.split(words[-1]) == ["cd", "/", "&&", "exec", "python", "-c", "print('a b')"]


def test_a_host_is_never_taken_for_an_option_of_ssh() -> None:
    words = Ssh("-oProxyCommand=touch here").command(["true"])
    assert words.index("--") < words.index("-oProxyCommand=touch here")


def test_intel_mpi_on_this_host_uses_shared_memory_and_the_loopback_interface() -> None:
    command = intel.command([Ranks(HERE, 3)])
    assert command.words == (str(oneapi.mpiexec()), "-iface", "lo", "-hosts", "localhost")
    assert command.environment == {
        "I_MPI_PIN": "0",
        "I_MPI_OFFLOAD": "0",
        "I_MPI_SHM_CMA": "0",
        "I_MPI_FABRICS": "shm",
        "I_MPI_HYDRA_BOOTSTRAP": "fork",
    }


def test_intel_mpi_on_several_hosts_starts_by_ssh_and_connects_by_tcp() -> None:
    command = intel.command([Ranks("10.0.0.1", 2), Ranks("node2", 1)], "eth1", "/a b/config", ["-genv", "A", "1"])
    options = "-iface eth1 -ppn 1 -hosts 10.0.0.1,10.0.0.1,node2 -genv A 1"
    assert command.words == (str(oneapi.mpiexec()), *options.split())
    assert command.environment == {
        "I_MPI_PIN": "0",
        "I_MPI_OFFLOAD": "0",
        "I_MPI_SHM_CMA": "0",
        "I_MPI_FABRICS": "shm:ofi",
        "FI_PROVIDER": "tcp",
        "I_MPI_HYDRA_BOOTSTRAP": "ssh",
        "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS": f"-F '/a b/config' {SSH}",
    }


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
    expected = f"{oneapi.mpiexec()} -n 1 -iface lo -hosts localhost -genv A 1 {sys.executable} -m xpulab.engine"
    assert line.startswith("env I_MPI_PIN=0 ")
    assert expected in line
    assert cli.main(["plan", "-n", "1"]) == 0
    assert "mpiexec" not in capsys.readouterr().out


@pytest.mark.cluster
def test_the_users_own_options_reach_mpiexec() -> None:
    with xpulab.XPUCluster(1, mpi_args="-genv XPULAB_OWN_OPTION 'x y'", display="none") as cluster:
        assert cluster.run(lambda task: __import__("os").environ["XPULAB_OWN_OPTION"]) == ["x y"]
        assert "-genv XPULAB_OWN_OPTION 'x y'" in cluster.plan(show=True)._repr_html_().replace("&#x27;", "'")


def test_mpiexec_belongs_to_this_environment_and_starts_without_a_path() -> None:
    command = intel.command([Ranks(HERE, 2)])
    assert Path(command.words[0]).parent == Path(sys.executable).parent
    words = [*command.words, "-n", "2", sys.executable, "-c", "print('started')"]
    environment = {"PATH": "/nowhere", "HOME": os.environ.get("HOME", "/"), **command.environment}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["started", "started"], done.stderr


def test_mpi_starts_if_the_environment_asks_for_gpu_offload_without_a_gpu() -> None:
    command = intel.command([Ranks(HERE, 1)])
    words = [*command.words, "-n", "1", sys.executable, "-c", "from mpi4py import MPI; print('initialised')"]
    environment = {**os.environ, "I_MPI_OFFLOAD": "1", **command.environment}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "initialised", done.stderr
