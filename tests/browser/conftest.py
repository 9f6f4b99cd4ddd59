"""Fixtures: a Jupyter server, which the files share, and for the tests of a file Debian's Chromium."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import chromium
import pytest
from jupyter_server_process import SCREENSHOTS, VIEWPORT, JupyterServer
from notebook_page import NotebookPage

if TYPE_CHECKING:
    from playwright.sync_api import Browser

browser = chromium.browser  # a fixture


@pytest.fixture(scope="session")
def _servers() -> Iterator[list[JupyterServer]]:
    """The servers of this process: one, and further ones if it ends before its time."""
    servers: list[JupyterServer] = []
    yield servers
    for server in servers:
        server.stop()


@pytest.fixture(scope="module")
def server(
    browser: Browser, _servers: list[JupyterServer], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[JupyterServer]:
    """A running Jupyter server for JupyterLab and Notebook, with the light theme. It has no kernels of other files."""
    if not _servers or not _servers[-1].running:
        _servers.append(JupyterServer(tmp_path_factory.mktemp("jupyter")))
    server = _servers[-1]
    server.set_theme("light")
    yield server
    server.end_kernels()


@pytest.fixture(scope="module")
def new_page(browser: Browser) -> Iterator[type[NotebookPage]]:
    """A function that opens an empty page. All pages are closed at the end of the module."""
    with contextlib.ExitStack() as pages:

        def new() -> NotebookPage:
            context = browser.new_context(viewport=VIEWPORT)
            pages.callback(context.close)
            return NotebookPage(context.new_page())

        yield new  # type: ignore[misc]


@pytest.fixture
def picture(lab: NotebookPage, request: pytest.FixtureRequest) -> Iterator[None]:
    """Take a screenshot of `lab`, a module's notebook, at the end of each test; the browser's console has no error."""
    yield
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    module = request.module.__name__.rpartition("test_")[2]
    lab.page.screenshot(path=SCREENSHOTS / f"{module}-{request.node.originalname}.png")
    assert lab.errors == []
