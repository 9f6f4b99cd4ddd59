"""A notebook without kernel and front end, as nbconvert shows it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from jupyter_server_process import SCREENSHOTS, VIEWPORT
from notebook_page import colours, write_notebook

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

CELLS = [
    "%load_ext xpulab\nc = %xpu_cluster start -n 1\nc",
    "import numpy as np, xpulab\nX = np.random.default_rng(0).normal(size=(50_000, 2))\n"
    "km = xpulab.cluster.KMeans(3, random_state=0).fit(X)\nkm.report_",
    "xpulab.explore(X, k=3)",
    "%%xpu\nprint('from', rank)",
    "%xpu_cluster stop",
]


@pytest.mark.parametrize("widgets", [True, False], ids=["with ipywidgets", "without ipywidgets"])
def test_nbconvert_executes_a_notebook_and_makes_a_page_of_it(browser: Browser, tmp_path: Path, widgets: bool) -> None:
    path = tmp_path / "page.ipynb"
    write_notebook(path, CELLS)
    environment = dict(os.environ)
    if not widgets:
        # The kernel's Python does not find the widget packages, as if they were not installed.
        for name in ("ipywidgets", "anywidget"):
            (tmp_path / f"{name}.py").write_text("raise ModuleNotFoundError(f'No module named {__name__!r}')")
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(tmp_path), environment.get("PYTHONPATH")]))
    command = [sys.executable, "-m", "nbconvert", "--execute", "--to", "html", path.name]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr

    page = browser.new_page(viewport=VIEWPORT)
    # There is no network, so the page shows only content of the file.
    page.route("http*://**", lambda route: route.abort())
    page.goto(path.with_suffix(".html").as_uri())
    try:
        outputs = page.locator(".jp-CodeCell")
        cluster, fit, explorer, cell, _ = (outputs.nth(index) for index in range(len(CELLS)))
        assert cluster.locator(".xpu-standing table tbody tr").count() == 1
        assert cluster.locator(".xpu-standing").first.is_visible()
        assert "KMeans.fit" in fit.inner_text()
        assert "finished" in fit.inner_text()
        plot = explorer.locator("[data-xpu-standing] svg.xpu-plot")
        assert plot.is_visible()
        assert len(colours(plot.screenshot()).getcolors(1 << 24)) > 30
        assert "from 0" in cell.inner_text()
        text = page.locator("body").inner_text()
        assert "Error" not in text
        assert "Traceback" not in text
    finally:
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=SCREENSHOTS / f"nbconvert-{'with' if widgets else 'without'}-widgets.png")
        page.close()
