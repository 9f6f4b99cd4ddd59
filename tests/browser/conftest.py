"""Fixtures: a Jupyter server, and Debian's Chromium driven by Playwright. The tests of a file share them.

Without Chromium these tests are skipped, unless XPULAB_REQUIRE_BROWSER is set, as in `.ci/run`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from jupyter_server_process import VIEWPORT, JupyterServer
from notebook_page import NotebookPage

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium without a window. Playwright's event loop runs in this thread, and must end before tests elsewhere."""
    executable = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if executable is None:
        absent = "there is no Chromium on PATH"
        if os.environ.get("XPULAB_REQUIRE_BROWSER"):
            pytest.fail(absent)
        pytest.skip(absent)
    from playwright.sync_api import sync_playwright

    # Chromium has no sandbox for root, who runs the tests in a container.
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=arguments)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def server(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JupyterServer]:
    """A running Jupyter server for JupyterLab and Notebook."""
    server = JupyterServer(tmp_path_factory.mktemp("jupyter"))
    yield server
    server.stop()


@pytest.fixture(scope="module")
def new_page(browser: Browser) -> Iterator[type[NotebookPage]]:
    """A function that opens an empty page. All pages are closed at the end of the module."""
    with contextlib.ExitStack() as pages:

        def new() -> NotebookPage:
            context = browser.new_context(viewport=VIEWPORT)
            pages.callback(context.close)
            return NotebookPage(context.new_page())

        yield new  # type: ignore[misc]
