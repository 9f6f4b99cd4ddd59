"""Notebook 7 shows the same views as JupyterLab, with the same server. It has no panel beside the notebook.

All tests use one notebook, in the state that the previous test left.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest
from jupyter_server_process import JupyterServer
from notebook_page import NotebookPage, write_notebook

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.usefixtures("picture")]

START, FITS, EXPLORE, BOARD, STOP = range(5)
CELLS = [
    "%load_ext xpulab\nc = %xpu_cluster start -n 2\nc",
    "import numpy as np, xpulab\nX = np.random.default_rng(0).normal(size=(50_000, 2))\n"
    "fits = [xpulab.cluster.KMeans(k, random_state=0).fit(X) for k in (3, 4)]\nfits[0].report_",
    "xpulab.explore(X, k=3)",
    "%xpu_cluster board",
    "%xpu_cluster stop",
]


@pytest.fixture(scope="module")
def lab(server: JupyterServer, new_page: Callable[[], NotebookPage]) -> Iterator[NotebookPage]:
    path = server.folder / "seven.ipynb"
    write_notebook(path, CELLS)
    notebook = new_page()
    notebook.open(server.url(path, "notebooks"))
    notebook.wait_for_kernel()
    yield notebook
    notebook.page.close()


def test_a_cluster_and_a_fit_are_shown(lab: NotebookPage) -> None:
    output = lab.run(START)
    output.locator(".xpu-live table tbody tr").nth(1).wait_for()
    assert not output.locator(".xpu-standing").first.is_visible()
    assert "KMeans.fit" in lab.run(FITS).inner_text()
    explorer = lab.run(EXPLORE)
    explorer.get_by_role("slider", name="Clusters").wait_for()
    assert explorer.locator(".xpu-stage [data-center]").count() == 3


def test_the_board_is_in_the_page(lab: NotebookPage) -> None:
    board = lab.run(BOARD).locator(".xpu-board")
    board.get_by_role("application", name="Timeline").wait_for()
    assert not board.get_by_text("beside the notebook").first.is_visible()
    assert not lab.output(BOARD).locator(".xpu-standing").first.is_visible()
    status = lab.output(START)
    status.get_by_role("button", name=re.compile(r"^\W*Board$")).click()
    status.locator(".xpu-board").get_by_text("History", exact=True).wait_for()


def test_a_stopped_cluster_can_be_started(lab: NotebookPage) -> None:
    lab.run(STOP)
    lab.output(START).get_by_role("button", name="Start the engines").wait_for()
