"""A report in JupyterLab whose page does not get its updates: loaded again, a second tab, without its kernel.

All tests use one notebook, in the state that the previous test left.
"""

from __future__ import annotations

import functools
import json
import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from jupyter_server_process import GENTLY, JupyterServer
from notebook_page import NotebookPage, write_notebook
from waiting import until

if TYPE_CHECKING:
    from playwright.sync_api import Locator

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.usefixtures("picture")]

GONE = re.compile(r"The kernel of this report is gone; the report is that of \d\d:\d\d:\d\d\.")
START, FIT, LAST, SEARCH = range(4)
CELLS = [
    f"%load_ext xpulab\nc = %xpu_cluster start -n 1\n{GENTLY}import os, numpy as np\n"
    "from xpulab.cluster import KMeans\n"
    "X = np.random.default_rng(0).normal(size=(20_000, 14)).astype(np.float32)\nos.getpid()",
    "KMeans(120, init='random', n_init=1000, max_iter=10_000, tol=0, random_state=0).fit(X)",
    "%load_ext xpulab\n%xpu_cluster last",
    "from sklearn.model_selection import GridSearchCV\n"
    "few = KMeans(n_init=1, max_iter=5, tol=0, random_state=0)\n"
    "search = GridSearchCV(few, {'n_clusters': [2, 3, 4]}, cv=2).fit(X)",
]


@pytest.fixture(scope="module")
def notebook(server: JupyterServer) -> Path:
    path = server.folder / "reload.ipynb"
    write_notebook(path, CELLS)
    return path


@pytest.fixture(scope="module")
def lab(server: JupyterServer, notebook: Path, new_page: Callable[[], NotebookPage]) -> Iterator[NotebookPage]:
    lab = new_page()
    lab.open(server.url(notebook))
    lab.wait_for_kernel()
    yield lab
    lab.page.close()


def kernel(server: JupyterServer) -> str:
    (kernel,) = json.loads(server.ask("api/kernels"))
    return kernel["id"]


def iteration(output: Locator) -> int:
    found = re.search(r"(\d+) of at most", output.inner_text())
    return int(found[1]) if found else 0


def follows(output: Locator) -> None:
    """Check that a report goes on: its iterations, and without the words for a saved copy."""
    pause = functools.partial(output.page.wait_for_timeout, 200)
    output.get_by_role("progressbar", name="iterations done").wait_for()
    for _ in range(2):
        seen = iteration(output)
        until(lambda seen=seen: iteration(output) not in (0, seen), meanwhile=pause)  # each run begins with 1
    until(lambda: "as of" not in output.inner_text(), meanwhile=pause)
    assert "Nothing was heard" not in output.inner_text()


def test_a_page_that_is_loaded_again_follows_the_fit(
    lab: NotebookPage, notebook: Path, server: JupyterServer, new_page: Callable[[], NotebookPage]
) -> None:
    lab.run(START)
    lab.start(FIT)
    try:
        follows(lab.output(FIT))
        lab.save()
        lab.page.reload()
        lab.cells.first.wait_for()
        follows(lab.output(FIT))
        second = new_page()
        second.open(server.url(notebook))
        follows(second.output(FIT))
    finally:  # if this test has failed, the others need the kernel, too
        server.ask(f"api/kernels/{kernel(server)}/interrupt", "POST", {})
    for page in (lab, second):
        page.output(FIT).get_by_text("■ interrupted").wait_for()
        assert page.output(FIT).get_by_role("progressbar").count() == 0
    second.page.close()


def require_one_entry_for_a_search(output: Locator) -> None:
    output.get_by_text("✓ finished").first.wait_for()
    shown = output.inner_text()
    assert shown.count("GridSearchCV") == 1
    assert re.search(r"best score\s+-[\d.e+]+ with n_clusters=4", shown), shown
    assert re.search(r"KMeans\.fit\s+7\s", shown), shown


def test_a_page_that_is_opened_after_the_end_shows_it(lab: NotebookPage, notebook: Path) -> None:
    """The file of the notebook has the report of the running fit: nobody has saved it since."""
    assert "for its end, type: %xpu_cluster last" in notebook.read_text()
    lab.page.reload()
    lab.cells.first.wait_for()
    lab.output(FIT).get_by_text("■ interrupted").wait_for()
    require_one_entry_for_a_search(lab.run(SEARCH))


def test_a_kernel_that_does_not_answer_is_said(lab: NotebookPage) -> None:
    lab.start(FIT)
    output = lab.output(FIT)
    follows(output)
    process = int(re.findall(r"\d+", lab.output(START).inner_text())[-1])
    os.kill(process, signal.SIGSTOP)
    try:
        output.get_by_text(re.compile(r"Nothing was heard of the kernel for \d\d s\.")).wait_for()
        assert "as of" in output.inner_text()
    finally:
        os.kill(process, signal.SIGCONT)
    follows(output)


def test_without_its_kernel_a_report_says_of_when_it_is(lab: NotebookPage) -> None:
    lab.save()
    os.kill(int(re.findall(r"\d+", lab.output(START).inner_text())[-1]), signal.SIGKILL)
    lab.page.get_by_role("dialog").get_by_role("button", name="Ok").click()
    output = lab.output(FIT)
    output.get_by_text(GONE).wait_for()
    lab.page.reload()
    lab.cells.first.wait_for()
    output.get_by_text("▶ running").wait_for()
    assert "as of" in output.inner_text()
    last = lab.run(LAST)
    assert "KMeans.fit" in last.inner_text()
    assert re.search(r"its process has ended; this is the report of \d\d:\d\d:\d\d", last.inner_text())
    lab.run(START)
    output.get_by_text(GONE).wait_for()
    lab.start(FIT)
    follows(output)
    lab.page.locator(".lm-MenuBar-itemLabel").get_by_text("Kernel", exact=True).click()
    lab.page.locator(".lm-Menu-itemLabel").get_by_text("Restart Kernel…", exact=True).click()
    lab.page.get_by_role("dialog").get_by_role("button", name="Confirm Kernel Restart").click()
    output.get_by_text(GONE).wait_for()
    assert re.search(r"KMeans\.fit\s+■ interrupted", lab.run(LAST).inner_text())
