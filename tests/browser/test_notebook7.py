"""Notebook 7 shows the same views as JupyterLab, with the same server."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from jupyter_server_process import SCREENSHOTS, JupyterServer
from notebook_page import NotebookPage, write_notebook

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.flaky(reruns=1)]


def test_a_cluster_and_a_fit_are_shown(server: JupyterServer, new_page: Callable[[], NotebookPage]) -> None:
    path = server.folder / "seven.ipynb"
    cells = [
        "%load_ext xpulab\nc = %xpu_cluster start -n 2\nc",
        "import numpy as np, xpulab\nX = np.random.default_rng(0).normal(size=(50_000, 2))\n"
        "km = xpulab.cluster.KMeans(3, random_state=0).fit(X)\nkm.report_",
        "xpulab.explore(X, k=3)",
        "%xpu_cluster stop",
    ]
    write_notebook(path, cells)
    notebook = new_page()
    notebook.open(server.url(path, "notebooks"))
    try:
        notebook.wait_for_kernel()
        output = notebook.run(0)
        output.locator(".xpu-live table tbody tr").nth(1).wait_for()
        assert not output.locator(".xpu-standing").first.is_visible()
        assert "KMeans.fit" in notebook.run(1).inner_text()
        explorer = notebook.run(2)
        explorer.get_by_role("slider", name="Clusters").wait_for()
        assert explorer.locator(".xpu-stage [data-center]").count() == 3
        notebook.run(3)
        output.get_by_role("button", name="Start the engines").wait_for(timeout=60_000)
        assert notebook.errors == []
    finally:
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        notebook.page.screenshot(path=SCREENSHOTS / "notebook7.png")
        server.end_kernels()
