"""Debian's Chromium driven by Playwright, for the tests that look at what a user sees."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser

__all__ = ["browser", "running"]


@contextlib.contextmanager
def running() -> Iterator[Browser]:
    """Chromium without a window. Playwright's event loop runs in this thread, and must end before tests elsewhere.

    Without Chromium the tests are skipped, or fail if XPULAB_BROWSER is set, as in `.ci/run`.
    """
    executable = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if executable is None:
        absent = "there is no Chromium on PATH"
        if os.environ.get("XPULAB_BROWSER"):
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
def browser() -> Iterator[Browser]:
    """Chromium for a file of tests."""
    with running() as browser:
        yield browser
