"""A Jupyter server, and Debian's Chromium driven by Playwright; all tests of this folder share them.

Where there is no Chromium these tests are skipped, unless XPULAB_REQUIRE_BROWSER is set, as `.ci/run` does.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from jupyter_server_process import VIEWPORT, JupyterServer
from notebook_page import NotebookPage

if TYPE_CHECKING:
    from playwright.sync_api import Browser


#: What ends with the last test of this folder, and not with the run, because of Playwright: see `browser`.
_shared = contextlib.ExitStack()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> Iterator[None]:
    """After the last test of this folder, end what its tests share."""
    yield
    if nextitem is None or Path(__file__).parent not in nextitem.path.parents:
        _shared.close()


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Chromium without a window. Playwright's event loop runs in this thread until Playwright is closed."""
    executable = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if executable is None:
        absent = "there is no Chromium on PATH"
        if os.environ.get("XPULAB_REQUIRE_BROWSER"):
            pytest.fail(absent)
        pytest.skip(absent)
    from playwright.sync_api import sync_playwright

    playwright = _shared.enter_context(sync_playwright())
    # Root, as in a container, has no sandbox.
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    browser = playwright.chromium.launch(executable_path=executable, args=arguments)
    _shared.callback(browser.close)
    yield browser
    _shared.close()  # where the run has no test after those of this folder


@pytest.fixture(scope="session")
def server(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> JupyterServer:
    """A running Jupyter server, for pages of Lab and of Notebook."""
    server = JupyterServer(tmp_path_factory.mktemp("jupyter"))
    _shared.callback(server.stop)
    return server


@pytest.fixture(scope="module")
def new_page(browser: Browser) -> Iterator[type[NotebookPage]]:
    """Opens an empty page; all are closed at the end of the module."""
    with contextlib.ExitStack() as pages:

        def new() -> NotebookPage:
            context = browser.new_context(viewport=VIEWPORT)
            pages.callback(context.close)
            return NotebookPage(context.new_page())

        yield new  # type: ignore[misc]
