"""A Jupyter server, and Debian's Chromium driven by Playwright; the tests of a file share them.

Where there is no Chromium these tests are skipped, unless XPULAB_REQUIRE_BROWSER is set, as `.ci/run` does.
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
    """Chromium without a window. Playwright's event loop runs in this thread, and no test elsewhere may meet it."""
    executable = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if executable is None:
        absent = "there is no Chromium on PATH"
        if os.environ.get("XPULAB_REQUIRE_BROWSER"):
            pytest.fail(absent)
        pytest.skip(absent)
    from playwright.sync_api import sync_playwright

    # Root, as in a container, has no sandbox.
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=arguments)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def server(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JupyterServer]:
    """A running Jupyter server, for pages of Lab and of Notebook."""
    server = JupyterServer(tmp_path_factory.mktemp("jupyter"))
    yield server
    server.stop()


@pytest.fixture(scope="module")
def new_page(browser: Browser) -> Iterator[type[NotebookPage]]:
    """Opens an empty page; all are closed at the end of the module."""
    with contextlib.ExitStack() as pages:

        def new() -> NotebookPage:
            context = browser.new_context(viewport=VIEWPORT)
            pages.callback(context.close)
            return NotebookPage(context.new_page())

        yield new  # type: ignore[misc]
