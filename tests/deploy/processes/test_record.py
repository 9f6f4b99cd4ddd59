"""How other processes of a user find a cluster: its folders, its names, and the remains of killed clusters."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from descriptions import described
from reports import Document

import xpulab
from xpulab.deploy.devices import Devices
from xpulab.deploy.plan.plan import Plan, plan
from xpulab.deploy.plan.probe import Probe, core_ranges
from xpulab.deploy.processes import record
from xpulab.deploy.processes.others import in_use
from xpulab.deploy.processes.record import Record, choose, find, identity, new_folder
from xpulab.deploy.status import ClusterStatus
from xpulab.exceptions import ClusterError, ClusterStartError, NoClusterError
from xpulab.sharing.board import Board


@pytest.fixture(autouse=True)
def place(environment: Callable[..., None], tmp_path: Path) -> Path:
    """The folder for the clusters of these tests, and of no others."""
    environment(XPULAB_RUNTIME_DIR=str(tmp_path))
    return tmp_path


def test_a_variable_names_the_only_folder_and_clusters_elsewhere_are_not_seen(
    environment: Callable[..., None], tmp_path: Path
) -> None:
    mine, others = tmp_path / "mine", tmp_path / "others"
    mine.mkdir()
    others.mkdir()
    (tmp_path / "link").symlink_to(mine)
    environment(XPULAB_RUNTIME_DIR=str(tmp_path / "link"), XDG_RUNTIME_DIR=str(tmp_path))
    assert Path(started("one").folder).parent == mine
    environment(XPULAB_RUNTIME_DIR=str(others))
    with pytest.raises(NoClusterError):
        choose("one")
    assert Path(started("two").folder).parent == others
    environment(XPULAB_RUNTIME_DIR=str(mine))
    assert choose(None).name == "one"
    for without in ("", None):
        environment(XPULAB_RUNTIME_DIR=without)
        assert Path(started().folder).parent == tmp_path
        everywhere = Record.create("here-too", os.getpid(), "1.0", hosts=True)
        everywhere.write(processes={"controller": identity(os.getpid())})
        try:
            assert Path(everywhere.folder).parent == Path("/tmp").resolve()
            assert choose("here-too").folder == everywhere.folder
        finally:
            shutil.rmtree(everywhere.folder)


def started(name: str | None = None, pid: int | None = None) -> Record:
    me = identity(os.getpid())
    controller = me if pid is None else (pid, me[1])
    return Record.create(name, os.getpid(), "1.0").write(
        processes={"controller": controller, "mpiexec": controller}, size=2
    )


def ended() -> int:
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def test_the_only_cluster_needs_no_name() -> None:
    one = started()
    assert choose(None) == one == choose(one.name)
    assert Path(one.folder).name == f"xpulab-{one.name}"
    assert Path(one.folder).stat().st_mode & 0o777 == 0o700
    assert (Path(one.folder) / "cluster.json").stat().st_mode & 0o777 == 0o600


def test_a_folder_without_room_is_passed_over_and_several_are_named(
    place: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(record, "_folders", lambda: ["/proc", str(tmp_path / "none"), str(place)])
    assert Path(new_folder()).parent == place
    monkeypatch.setattr(record, "_folders", lambda: ["/proc", str(tmp_path / "none")])
    with pytest.raises(ClusterStartError) as caught:
        started()
    first, second = str(caught.value).splitlines()
    assert first.startswith("no folder has room for the connection files and logs of a cluster (/proc: ")
    assert f"; {tmp_path / 'none'}: No such file or directory)" in first
    assert second == "free some space, or set the variable TMPDIR to a folder with space in which you may write"


def test_a_folder_that_is_full_is_left_as_it_was(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(ClusterStartError, match=r"\(.*: No space left on device\)"):
        new_folder()
    assert list(place.iterdir()) == []


def test_without_a_cluster_the_error_says_how_to_start_one() -> None:
    with pytest.raises(NoClusterError, match="type: %xpu_cluster start"):
        choose(None)


@pytest.mark.parametrize(
    ("settings", "command"),
    [
        ({}, "%xpu_cluster start"),
        ({"n": 4, "mpi": "intel"}, "%xpu_cluster start"),
        (
            {"n": 4, "hosts": ["a", "b:2"], "ssh_config": "/my config", "mpi": "mpich", "ports": "50000-50100"},
            "%xpu_cluster start -n 4 --hosts a,b:2 --ssh-config '/my config' --mpi mpich --ports 50000-50100",
        ),
        (
            {"launcher": "slurm", "nodes": 2, "time": 30, "job_args": "--gres=gpu:2 -A a", "mpi": "intel"},
            "%xpu_cluster start --launcher slurm --nodes 2 --time 30 --job-args '--gres=gpu:2 -A a' --mpi intel",
        ),
    ],
)
def test_a_cluster_of_hosts_or_of_a_job_that_is_gone_is_started_there_again(
    settings: dict[str, Any], command: str
) -> None:
    started("gone").write(processes={"controller": (ended(), 0.0)}, detached=True, settings=settings)
    with pytest.raises(NoClusterError) as error:
        choose("gone")
    assert str(error.value).endswith(f"type: {command}")


def test_several_are_listed_with_what_to_type() -> None:
    started("train")
    started("test")
    with pytest.raises(ClusterError, match=rf"test \(2 engines, ends with process {os.getpid()}\); .*attach train"):
        choose(None)
    assert choose("train").name == "train"
    with pytest.raises(
        NoClusterError, match=r"no running cluster has the name 'tset'; running clusters: test .*; train .*attach train"
    ):
        choose("tset")


def test_a_name_cannot_be_used_twice() -> None:
    started("train")
    with pytest.raises(
        ClusterError,
        match=r"a cluster named 'train' is already running; type: %xpu_cluster attach train, or choose another name",
    ):
        started("train")


def test_a_cluster_that_still_starts_is_not_found_and_not_removed(place: Path) -> None:
    Record.create(None, os.getpid(), "1.0")
    assert find() == []
    assert len(list(place.iterdir())) == 1


@pytest.mark.parametrize("began", [False, True])
def test_the_folder_of_a_dead_cluster_is_removed(place: Path, began: bool) -> None:
    gone = started()
    dead = (ended(), 0.0)
    gone.write(owner=dead, processes={"controller": dead, "mpiexec": dead} if began else {})
    assert find() == []
    assert list(place.iterdir()) == []


def test_a_dead_cluster_is_reported_as_gone_once() -> None:
    started("train").write(processes={"controller": (ended(), 0.0)}, detached=True)
    started("other")
    with pytest.raises(
        NoClusterError, match=r"^no running cluster has the name 'best'; running clusters: other .*attach other$"
    ):
        choose("best")
    started("train").write(processes={"controller": (ended(), 0.0)}, detached=True)
    with pytest.raises(
        NoClusterError, match=r"^the cluster train is gone: its processes were killed, or .*; no running cluster"
    ):
        choose("train")
    with pytest.raises(
        NoClusterError, match=r"^no running cluster has the name 'train'; running clusters: other .*xpulab stop other$"
    ):
        choose("train", "xpulab stop")


def test_a_process_with_a_reused_pid_is_another_process(place: Path) -> None:
    gone = started()
    gone.write(processes={"controller": (os.getpid(), gone.owner[1] - 60)}, detached=True)
    assert find() == []
    assert list(place.iterdir()) == []


def test_the_folder_of_a_lost_cluster_stays_for_its_notebook(place: Path) -> None:
    lost = started().write(processes={"controller": (ended(), 0.0)})
    assert find() == []
    assert not lost.stopped
    lost.write(owner=(ended(), 0.0))
    assert find() == []
    assert list(place.iterdir()) == []


def test_a_controller_that_outlives_the_owner_counts(place: Path) -> None:
    one = started().write(owner=(ended(), 0.0), detached=True)
    assert find() == [one]
    assert str(one).endswith("(2 engines, detached)")


def test_processes_of_another_container_are_neither_reached_nor_removed(place: Path) -> None:
    started().write(namespace="pid:[1]", processes={"controller": (ended(), 0.0)})
    assert find() == []
    assert len(list(place.iterdir())) == 1


def test_a_folder_that_other_users_may_write_is_not_trusted(place: Path) -> None:
    Path(started().folder).chmod(0o777)
    assert find() == []
    target = Path(started().folder)
    target.rename(place / "elsewhere")
    target.symlink_to(place / "elsewhere")
    assert find() == []


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_another_user_is_not_trusted() -> None:
    os.chown(started().folder, 65534, 65534)
    assert find() == []


@pytest.mark.parametrize("content", ["", "[]", '{"folder": "x"}', "{", "\xff"])
def test_a_file_that_makes_no_sense_is_passed_over(content: str) -> None:
    one, other = started(), started()
    Path(one.folder, "cluster.json").write_text(content, encoding="latin-1")
    assert find() == [other]


def planned(machine: str, n: int | None = None, devices: str | None = None) -> Plan:
    return plan(found_on(machine), n, devices)


def found_on(machine: str) -> Probe:
    return Probe.from_dict(json.loads((Path(__file__).parents[1] / "plan" / "probes" / f"{machine}.json").read_text()))


def test_every_view_shows_the_devices_that_another_notebook_uses() -> None:
    chosen = planned("cpu_only", 2)
    lab = started("lab").write(plan=chosen, owner=(1, 0.0))
    one = planned("cpu_only", 4).ranks[0]
    (said,) = in_use(chosen)
    cores = core_ranges(core for rank in chosen.ranks for core in rank.cores)
    assert said == (
        f"1 other cluster uses the cores {cores}: the cluster lab (2 engines, process 1); calls take longer while it "
        "computes"
    )
    assert f"the cores {core_ranges(one.cores)}: the" in in_use(dataclasses.replace(chosen, ranks=(one,)))[0]
    shown = dataclasses.replace(chosen, others=in_use(chosen))
    for view in (shown, Devices(found_on("cpu_only"), shown, False), ClusterStatus("running", 2, others=(said,))):
        assert said in str(view)
        assert said in Document(view._repr_html_()).text
        assert "⚠" not in view._repr_html_()
    assert Plan.from_dict(shown.to_dict()) == shown
    # A cluster is not shown as a user of its own devices, and a cluster without a known plan is not shown at all.
    assert in_use(chosen, own=lab.folder) == ()
    started("starting")
    assert len(in_use(chosen)) == 1


def test_a_plan_of_another_version_does_not_stand_in_the_way_of_calls() -> None:
    chosen = planned("cpu_only", 1)
    file = Path(started("newer").write(plan=chosen).folder, "cluster.json")
    content = json.loads(file.read_text())
    content["plan"]["ranks"][0]["colour"] = "blue"
    file.write_text(json.dumps(content | {"climate": "mild"}))
    assert in_use(chosen) == ("the cluster newer, of another version of xpulab, runs too, and may use the same cores",)


def test_the_owner_of_another_cluster_is_described() -> None:
    chosen = planned("cpu_only", 1)
    started("mine").write(plan=chosen)
    assert ": the cluster mine of this process (2 engines);" in in_use(chosen)[0]
    started("kept").write(plan=chosen, detached=True, owner=(1, 0.0))
    (said,) = in_use(chosen)
    assert ": the cluster kept (2 engines, detached) and the cluster mine of this process (2 engines); calls" in said
    for number in range(20):
        started(f"pupil {number}").write(plan=chosen, owner=(1, 0.0), notebook="exercise.ipynb")
    (said,) = in_use(chosen)
    assert said.count("the notebook exercise.ipynb (2 engines)") == 1
    assert said.startswith("22 other clusters use the core")
    assert said.endswith("(2 engines) and 19 others; calls take longer while they compute")


def test_the_sentence_about_other_clusters_says_which_are_idle_or_busy_since_when() -> None:
    chosen, boards, now = planned("cpu_only", 1), [], int(time.time())
    for number, (notebook, age) in enumerate((("a.ipynb", 0), ("b.ipynb", 1), ("c.ipynb", 10**6))):
        boards.append(Board.create(2))
        boards[-1].ranks["since"] = now - age
        facts = [described(rank, board=boards[-1].path) for rank in (0, 1)]
        one = Record.create(f"{number}", os.getpid(), xpulab.__version__)
        me = identity(os.getpid())
        one.write(plan=chosen, facts=facts, notebook=notebook, owner=(1, 0.0), processes={"controller": me}, size=2)
    short, long = "%H:%M", "%Y-%m-%d %H:%M"
    a, b, c = (time.strftime(form, time.localtime(now - age)) for form, age in ((short, 0), (short, 1), (long, 10**6)))
    (said,) = in_use(chosen)
    what, _, whose = said.partition(", idle: ")
    assert what == f"3 other clusters use the cores {core_ranges(chosen.ranks[0].cores)}"
    assert whose == (
        f"the notebook a.ipynb (2 engines, since {a}), the notebook b.ipynb (2 engines, since {b}) and the notebook "
        f"c.ipynb (2 engines, since {c})"
    )
    boards[1].ranks["task"][1] = 7
    (said,) = in_use(chosen)
    assert said == (
        f"{what}: the notebook b.ipynb (2 engines, busy since {b}), the notebook a.ipynb (2 engines, idle since {a}) "
        f"and the notebook c.ipynb (2 engines, idle since {c}); calls take longer while they compute"
    )
    for board in boards:
        board.close()


def test_a_gpu_in_use_is_named_and_the_cores_of_engines_on_gpus_are_free() -> None:
    every = planned("four_equal_gpus")
    first, second = (dataclasses.replace(every, ranks=every.ranks[i : i + 1]) for i in (0, 1))
    same_cores = dataclasses.replace(second.ranks[0], cores=first.ranks[0].cores)
    started("gpu").write(plan=first)
    assert in_use(dataclasses.replace(second, ranks=(same_cores,))) == ()
    (said,) = in_use(every)
    assert f"uses {first.ranks[0].selector} ({first.ranks[0].device.name}): the cluster gpu" in said
