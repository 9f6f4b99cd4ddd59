"""Fixtures: a Jupyter server and Debian's Chromium, which the files share."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import chromium
import pytest
from jupyter_server_process import ROOT, SCREENSHOTS, VIEWPORT, JupyterServer
from notebook_page import PATIENCE, NotebookPage
from playwright.sync_api import Error

if TYPE_CHECKING:
    from playwright.sync_api import Browser

#: Says to `.ci/run` that Chromium has crashed in a file, whose tests begin with what the tests before them have left.
DIED = ROOT / "build" / "chromium-died"

_running: list[Browser] = []  # one, while tests of this folder follow each other
_next: list[Path] = []  # the folder of the test that follows the latest one


@pytest.fixture(scope="session")
def _browsers() -> Iterator[contextlib.ExitStack]:
    """What ends Chromium, at the latest with the run."""
    with contextlib.ExitStack() as until_other_tests:
        yield until_other_tests


@pytest.fixture(scope="module")
def browser(_browsers: contextlib.ExitStack) -> Iterator[Browser]:
    """Chromium, as in `chromium.running`, for all files of this folder that follow each other."""
    if not _running:
        _running.append(_browsers.enter_context(chromium.running()))
    browser = _running[-1]
    yield browser
    died = not browser.is_connected()
    if died:
        DIED.parent.mkdir(exist_ok=True)
        DIED.touch()
    if died or _next != [Path(__file__).parent]:
        _running.clear()
        with contextlib.suppress(Error) if died else contextlib.nullcontext():
            _browsers.close()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> None:
    """Note which folder's test follows, for the end of the fixtures."""
    _next[:] = [nextitem.path.parent] if nextitem else []


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
    (server.folder / "enough").unlink(missing_ok=True)  # see GENTLY
    yield server
    server.end_kernels()


@pytest.fixture(scope="module")
def new_page(browser: Browser) -> Iterator[type[NotebookPage]]:
    """A function that opens an empty page. All pages are closed at the end of the module."""
    with contextlib.ExitStack() as pages:

        def new() -> NotebookPage:
            context = browser.new_context(viewport=VIEWPORT)
            pages.callback(context.close)
            context.set_default_timeout(PATIENCE)
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
