"""Names complete: what Tab offers in a real kernel of Jupyter for each object that a user holds."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from kernels import Kernel
from waiting import until

import xpulab

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def started() -> Iterator[tuple[Kernel, list[str]]]:
    """A kernel with a cluster of 2 engines, and one object of each kind; and what it said before, without a cluster."""
    with Kernel() as kernel:
        kernel.run("import xpulab")
        before = [kernel.run(cell) for cell in ("%autoxpu on", "1", "plan = %xpu_cluster plan -n 1\nplan")]
        said = kernel.run(
            "import numpy as np, xpulab\n"
            "from xpulab import XPUCluster\n"
            "from xpulab.cluster import KMeans\n"
            "c = xpulab.XPUCluster(2, strict=False, display='none', name='lab').start()\n"
            "X = np.random.RandomState(0).normal(size=(100, 2))\n"
            "rows = c.scatter(X)\n"
            "new, km = KMeans(3), KMeans(3, random_state=0).fit(rows)\n"
            "report, status, plan, explorer = km.report_, c.status(), c.plan(), xpulab.explore(rows)\n"
            "print('ready')"
        )
        assert said.endswith("ready\n"), said
        yield kernel, before
        kernel.run("c.stop()")


@pytest.fixture(scope="module")
def kernel(started: tuple[Kernel, list[str]]) -> Kernel:
    return started[0]


#: What a user types before Tab -> some names that Tab then offers, and some that it does not.
OFFERED = {
    "c.": (
        "activate devices display facts handles last last_report load_npy logs options plan pull push release restart "
        "run scatter size start status stop stop_call warnings"
    ),
    "rows.": "counts dtype gather name nbytes ndim shape",
    "new.": "fit fit_predict get_params n_clusters predict score set_params to_sklearn transform",
    "km.": "cluster_centers_ fit inertia_ labels_ n_iter_ predict report_ resume to_sklearn",
    "report.": "engines plot seconds status to_dict",
    "km.report_.": "plot to_dict",
    "status.": "engines n state",
    "plan.": "ranks warnings",
    "explorer.": "close explorer snapshot wait widget",
    "explorer.explorer.": "centers elbow k move_center reset restart step",
    "xpulab.": "ShardedArray XPUCluster accel cluster current_cluster explore interrupted linear_model spmd torch",
    "xpulab.cluster.": "BisectingKMeans DBSCAN HDBSCAN KMeans MiniBatchKMeans",
    "xpulab.linear_model.": "LinearRegression LogisticRegression Ridge",
    "xpulab.exceptions.": "ClusterError UsageError XpulabError",
    "xpulab.XPUCluster.": "attach devices pull push scatter start stop",
    "XPUCluster.": "attach devices pull push scatter start stop",
}
HIDDEN = {
    "c.": "call engines entries known_as life made_handle outgoing planning receive rows tasks variables",
    "xpulab.XPUCluster.": "call engines entries known_as life made_handle receive release_with tasks variables",
    "XPUCluster.": "call engines entries known_as life made_handle receive release_with tasks variables",
    "km.": "sklearn_class",
    "report.": "display finish lasting span step",
    "xpulab.exceptions.": "annotations Any contextlib error_fields",
    "rows.": "about cast check_weights discard is_on require_finite source stays",
}


@pytest.mark.parametrize("typed", OFFERED)
def test_the_names_of_each_object_complete(kernel: Kernel, typed: str) -> None:
    found = kernel.completions(typed)
    assert set(OFFERED[typed].split()) - set(found) == set()
    assert set(HIDDEN.get(typed, "").split()) & set(found) == set()
    assert not [name for name in found if name.startswith("_")]


def test_each_package_offers_its_public_names_and_no_others(kernel: Kernel) -> None:
    for package in set(dir(xpulab)) - set(xpulab.__all__) | {"cluster"}:
        kernel.run(f"import xpulab.{package}")
        names = getattr(importlib.import_module(f"xpulab.{package}"), "__all__", [])
        if package == "torch":
            names = [*xpulab.torch._IN_NOTEBOOK, *xpulab.torch._ON_RANKS]
        assert set(kernel.completions(f"xpulab.{package}.")) == set(names), package
    assert "xpulab.spmd.cluster" in kernel.completions("from xpulab.spmd.clu")
    packages = {path.name for path in Path(xpulab.__path__[0]).iterdir() if path.is_dir()} | {"exceptions"}
    for typed in ("from xpulab.", "import xpulab."):  # jedi and IPython would offer all modules
        assert set(kernel.completions(typed)) == {f"xpulab.{name}" for name in packages & set(dir(xpulab))}


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("c.sctter(X)", "AttributeError: 'XPUCluster' object has no attribute 'sctter'; did you mean scatter?"),
        ("c.planing", "AttributeError: 'XPUCluster' object has no attribute 'planing'; did you mean plan?"),
        (
            "c.load_parquet('a')",
            "AttributeError: 'XPUCluster' object has no attribute 'load_parquet'; did you mean xpulab.scan?",
        ),
        ("c.load_npz('a')", "no attribute 'load_npz'; did you mean load_npy?"),
        ("km.fitt(X)", "AttributeError: 'KMeans' object has no attribute 'fitt'; did you mean fit?"),
        ("km.cluster_centres_", "no attribute 'cluster_centres_'; did you mean cluster_centers_?"),
        ("new.cluster_centers_", "AttributeError: 'KMeans' object has no attribute 'cluster_centers_'\n"),
        (
            "km.set_params(n_cluster=3)",
            "for estimator KMeans(n_clusters=3, random_state=0); did you mean n_clusters? Valid parameters are: [",
        ),
        ("KMeans(n_cluster=3)", "an unexpected keyword argument 'n_cluster'; did you mean n_clusters?"),
        ("xpulab.XPUCluster(enginse=2)", "an unexpected keyword argument 'enginse'; did you mean n?"),
        ("xpulab.XPUCluster(queue='long')", "an unexpected keyword argument 'queue'; did you mean partition?"),
        ("xpulab.clutser", "AttributeError: xpulab has no clutser; did you mean: import xpulab.cluster"),
        ("from xpulab.cluster import Kmeans", "did you mean: from xpulab.cluster import KMeans"),
    ],
)
def test_a_wrong_name_is_answered_with_the_right_one(kernel: Kernel, typed: str, said: str) -> None:
    assert said in re.sub("\x1b.*?m", "", kernel.run(typed))


def test_a_script_shows_one_suggestion() -> None:
    """Python shows its own suggestion after the message: of an attribute since 3.10, of a keyword since 3.13."""
    script = """import sys, xpulab; from xpulab import cluster
for wrong in (
    lambda: xpulab.XPUCluster(2).sctter, lambda: cluster.KMeans(n_cluster=3), lambda: cluster.KMeans().fitt
):
    try:
        wrong()
    except Exception:
        sys.excepthook(*sys.exc_info())  # as at the end of a script
        print("the end", file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    *errors, rest = done.stderr.split("the end\n")
    assert (len(errors), rest) == (3, "")
    for error in errors:
        assert error.lower().count("did you mean") == 1
        assert error.rstrip().endswith("?")


class TestCells:
    """Names in ``%%xpu`` cells are those of the ranks."""

    @pytest.fixture(autouse=True)
    def cell(self, kernel: Kernel) -> None:
        self.kernel = kernel
        kernel.run("only_here = 1")
        said = kernel.run("%%xpu\nimport numpy as np\nfrom math import tau as circle\nmine = np.ones(3) * rank")
        assert said == "", said

    def completed(self, cell: str, *names: str) -> dict[str, str]:
        """Return what completes a cell, with these names. A late answer of the ranks is there at the next Tab."""
        found: dict[str, str] = {}
        until(lambda: found.update(self.kernel.completions(cell)) or set(names) <= set(found))
        return found

    def require_explained(self, cell: str, words: str) -> None:
        """Wait until Shift-Tab shows these words, as `completed`."""
        until(lambda: words in self.kernel.explained(cell))

    def test_variables_and_what_every_cell_has(self) -> None:
        names = self.completed("%%xpu\nprint(", "mine")
        assert {"mine", "np", "circle", "comm", "rank", "size", "queue", "device", "print"} <= set(names)
        assert not {"only_here", "km", "c"} & set(names)
        assert (names["np"], names["mine"]) == ("module", "instance")
        assert set(self.completed("%%xpu --ranks 0\nmi", "mine")) == {"mine", "min"}

    def test_attributes_and_modules(self) -> None:
        assert set(self.completed("%%xpu\ny = np.lins", "linspace")) == {"linspace"}
        assert set(self.completed("%%xpu_profile\n%%xpu\ny = np.linalg.sol", "solve")) == {"solve"}
        self.completed("%%xpu\ncomm.", "allreduce", "Allreduce", "bcast")
        self.completed("%%xpu\nif rank:\n    mine.", "reshape", "sum")
        self.completed("%%xpu\nqueue.", "sycl_device")

    def test_names_that_only_the_cell_itself_has(self) -> None:
        found = self.kernel.completions("%%xpu\nimport json\nweights = {}\njson.du")
        assert set(found) == {"dump", "dumps"}
        assert set(self.kernel.completions("%%xpu\nweights = {}\nwei")) == {"weights"}
        assert "linalg" in self.kernel.completions("%%xpu\nfrom numpy import lina")

    def test_an_object_is_asked_for_no_value(self) -> None:
        self.kernel.run("%%xpu\nclass A:\n    @property\n    def boom(self):\n        print('boom')\na = A()")
        assert self.completed("%%xpu\na.b", "boom") == {"boom": "property"}
        assert "boom" not in self.kernel.run("%xpu_cluster last --output")

    def test_shift_tab_explains_them(self) -> None:
        self.require_explained("%%xpu\nnp.linalg.solve", "Solve a linear matrix equation")
        self.require_explained("%%xpu\nqueue", "SyclQueue")
        self.require_explained("%%xpu --ranks 1\nmine", "ndarray")
        assert self.kernel.explained("%%xpu\nonly_here") == ""
        assert "int" in self.kernel.explained("only_here")
        assert "start the engines" in self.kernel.explained("%xpu_cluster start")

    def test_a_running_task_is_not_waited_for(self, tmp_path: Path) -> None:
        self.completed("%%xpu\nnp.", "linspace")
        self.completed("%%xpu\nmi", "mine")
        self.kernel.run(f"""
import threading, time
from pathlib import Path

def busy(task, folder):
    (folder / f"begun {{task.rank}}").touch()
    while not (folder / "enough").exists():
        time.sleep(0.02)

t = threading.Thread(target=c.run, args=(busy, Path({str(tmp_path)!r})))
t.start()""")
        until(lambda: len([*tmp_path.iterdir()]) == 2)
        try:
            assert "linspace" in self.kernel.completions("%%xpu\nnp.")
            assert "solve" not in self.kernel.completions("%%xpu\nnp.random.")
            assert "mine" in self.kernel.completions("%%xpu\nmi")
            assert self.kernel.run("print(t.is_alive())") == "True\n"
        finally:
            (tmp_path / "enough").touch()
        self.kernel.run("t.join()")
        self.completed("%%xpu\nnp.random.", "rand")


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("%%xpu --ra", {"--ranks": "option"}),
        ("%%xpu --in X --sc", {"--scatter": "option"}),
        ("%%xpu --in onl", {"only_here": "value"}),
        ("%%xpu_profile --o", {"--out": "option"}),
        (
            "%xpu_cluster display ",
            {"full": "value", "compact": "value", "none": "value", "-h": "option", "--help": "option"},
        ),
        ("%xpu_cluster start --display=", {"full": "value", "compact": "value", "none": "value"}),
        ("%xpu_cluster start --launcher s", {"ssh": "value", "slurm": "value"}),
        ("%xpu_cluster start --mpi ", {"intel": "value", "openmpi": "value", "mpich": "value"}),
        ("%xpu_cluster accel o", {"on": "value", "off": "value"}),
        ("%xpu_cluster sto", {"stop": "command"}),
    ],
)
def test_words_of_the_magics_complete_with_their_kinds(kernel: Kernel, typed: str, words: dict[str, str]) -> None:
    kernel.run("only_here = 1")
    assert kernel.completions(typed) == words


def test_names_of_clusters_complete(kernel: Kernel) -> None:
    """Others that run on the host complete, too."""
    assert kernel.completions("%xpu_cluster attach l")["lab"] == "value"
    assert all(name.startswith("l") for name in kernel.completions("%xpu_cluster attach l"))


def test_every_cell_runs_on_the_ranks_until_this_is_turned_off(kernel: Kernel) -> None:
    kernel.run("here = 'notebook'")
    assert kernel.run("%autoxpu") == "off\n"
    assert set(kernel.completions("%autoxpu o")) == {"on", "off"}
    try:
        said = kernel.run("%autoxpu on")
        assert said == "every cell now runs on 2 engines; to run cells in the notebook, type: %autoxpu off\n"
        assert kernel.run("only_there = rank\nprint('it is', rank)") == "[0] it is 0\n[1] it is 1\n"
        assert kernel.run("only_there + 1") == "[0] 1\n[1] 2\n"
        assert "NameError: name 'here' is not defined" in kernel.run("here")
        assert kernel.run("!echo $size") == "[0-1] 2\n"
        assert kernel.run("%%xpu --ranks 1\nrank") == "[1] 1\n"
        assert kernel.run("%%capture text\nonly_there") == ""
        assert "2 engines" in kernel.run("%xpu_cluster status")
        assert kernel.run("%autoxpu") == "on; to turn it off, type: %autoxpu off\n"
        assert kernel.run("") == ""
        until(lambda: "only_there" in kernel.completions("x = only_t"))
        until(lambda: "int" in kernel.explained("only_there"))
        # What the front end sends by itself, such as the list of variables, is about the notebook.
        assert kernel.run("print(here)", store_history=False) == "notebook\n"
        kernel.run("noted = here", silent=True)
        assert "NameError: name 'here' is not defined" in kernel.run("here")
    finally:
        assert kernel.run("%autoxpu off") == ""
    assert kernel.run("(here, noted)") == "('notebook', 'notebook')\n"


def test_the_magics_are_there_after_the_import_and_load_ext_changes_nothing() -> None:
    with Kernel() as kernel:
        assert kernel.run("import sys, xpulab\n'xpulab.magics' in sys.modules") == "False\n"
        assert "%xpu_cluster" in kernel.completions("%xpu_c")
        assert set(kernel.completions("%xpu_cluster st")) == {"start", "status", "stop"}
        assert "stopped" in kernel.run("%xpu_cluster status")
        assert kernel.run("'sklearn' in sys.modules") == "False\n"  # takes longer to import than all the rest
        assert "already loaded" in kernel.run("%load_ext xpulab")
        assert "NoClusterError" in kernel.run("%%xpu\n1")
        assert set(kernel.completions("%xpu_cluster st")) == {"start", "status", "stop"}
        assert kernel.run("%unload_ext xpulab") == ""
        assert kernel.completions("%xpu_cluster st") != {"start", "status", "stop"}


def test_any_magic_may_be_the_first(started: tuple[Kernel, list[str]]) -> None:
    refused, value, plan = started[1]
    assert "NoClusterError" in refused
    assert value == "1\n"
    assert "1 engine" in plan
