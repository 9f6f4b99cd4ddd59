"""A notebook in a browser, with the actions of a user. They are the same in JupyterLab 4 and Notebook 7."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import TYPE_CHECKING

import nbformat
from playwright.sync_api import TimeoutError

if TYPE_CHECKING:
    from PIL.Image import Image
    from playwright.sync_api import Locator, Page

__all__ = ["PATIENCE", "NotebookPage", "colours", "write_notebook"]

#: Milliseconds that a page on a busy machine has for what a test waits for.
PATIENCE = 120_000
#: Milliseconds between two looks of a page at what a test waits for. The default looks at each frame, of which the page
#: then draws sixty a second.
_POLLING = 100
#: Errors that JupyterLab and Notebook log for any notebook.
_NOT_OURS = re.compile(
    r"Failed to load resource.*|"  # a workspace or a setting that was never saved is asked for, and answered with 404
    r".*[Mm]odel not found.*|.*Could not create a model.*|"  # a widget without its kernel
    r"Could not restore the debugger state.*|"  # the kernel has ended before it answered
    r"Modal is already displayed|"  # two of JupyterLab's own dialogs at once
    r"Cannot read properties of undefined \(reading 'schema'\)|"  # Notebook 7 with JupyterLab's settings
    r"Command 'filebrowser:open-path' not registered\.",  # Notebook 7, which has no file browser beside a notebook
    re.DOTALL,
)


def write_notebook(path: Path, cells: list[str], kernel: str = "python3") -> None:
    """Write a notebook with code cells that were never run."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in cells])
    notebook.metadata.kernelspec = {"name": kernel, "display_name": "Python 3", "language": "python"}
    nbformat.write(notebook, path)


def colours(image: bytes) -> Image:
    """Decode a screenshot, to test its pixels."""
    import PIL.Image

    return PIL.Image.open(io.BytesIO(image)).convert("RGB")


class NotebookPage:
    """One open notebook.

    Parameters
    ----------
    page : playwright.sync_api.Page
        A new page, high enough for all cells, because cells that are not visible are not in the document.
    """

    def __init__(self, page: Page) -> None:
        self.page = page
        self.errors: list[str] = []
        page.on("console", lambda message: self._note(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: self._note(str(error)))
        # If the server lists its kernels late, the notebook asks which one it shall use, and covers the page meanwhile.
        self._select = page.locator(".jp-Dialog", has_text="Select Kernel").locator(".jp-mod-accept")
        page.add_locator_handler(self._select, lambda: self._select.click())

    def leave_questions(self) -> None:
        """Leave the question for a kernel to the test."""
        self.page.remove_locator_handler(self._select)

    def _note(self, text: str) -> None:
        if not _NOT_OURS.fullmatch(text):
            self.errors.append(text)

    def open(self, url: str) -> None:
        """Go to a notebook, and wait until its cells are shown."""
        self.page.goto(url)
        self.cells.first.wait_for()

    @property
    def cells(self) -> Locator:
        return self.page.locator(".jp-NotebookPanel:not(.lm-mod-hidden) .jp-Notebook .jp-CodeCell")

    def output(self, cell: int) -> Locator:
        return self.cells.nth(cell).locator(".jp-Cell-outputArea")

    def wait_for_kernel(self) -> None:
        """Wait until the kernel is connected and idle, and the page can show widgets.

        A notebook that had no kernel when it was opened shows none until its page is loaded again (ipywidgets, issue
        3970). So it is where the server lists its kernels late.
        """
        idle = "() => document.querySelector('.jp-Notebook-ExecutionIndicator')?.dataset.status === 'idle'"
        self.page.wait_for_function(idle, polling=_POLLING)
        if any("(reading 'kernel')" in text for text in self.errors):
            self.errors.clear()
            self.page.reload()
            self.cells.first.wait_for()
            self.page.wait_for_function(idle, polling=_POLLING)

    def start(self, cell: int) -> None:
        """Start a cell with the keyboard, without waiting for its end."""
        prompt = self.cells.nth(cell).locator(".jp-InputPrompt").first
        for _ in range(5):
            before = prompt.inner_text()
            prompt.click()
            self.page.keyboard.press("Control+Enter")
            with contextlib.suppress(TimeoutError):
                self.page.wait_for_function(
                    "([prompt, before]) => prompt.innerText !== before",
                    arg=[prompt.element_handle(), before],
                    timeout=10_000,
                    polling=_POLLING,
                )
            if prompt.inner_text() != before and prompt.inner_text().strip() != "[ ]:":
                return  # otherwise a panel that opens has taken the key, or no kernel was there
        raise AssertionError(f"cell {cell} does not run: {prompt.inner_text()}")

    def run(self, cell: int) -> Locator:
        """Run a cell to its end, and return its output."""
        self.start(cell)
        self.wait(cell)
        return self.output(cell)

    def wait(self, cell: int) -> None:
        """Wait until a cell has ended."""
        self.page.wait_for_function(
            "cell => /^\\[\\d+\\]/.test(document.querySelectorAll('.jp-Notebook .jp-CodeCell')[cell]"
            "?.querySelector('.jp-InputPrompt')?.innerText ?? '')",
            arg=cell,
            polling=_POLLING,
        )

    def interrupt(self) -> None:
        """Press the Stop button of the toolbar."""
        self.page.locator("[data-command='notebook:interrupt-kernel']:visible").first.click()

    def save(self) -> None:
        """Save with the keyboard, and wait until it is saved."""
        with self.page.expect_response(
            lambda answer: answer.request.method == "PUT" and "/api/contents/" in answer.url
        ):
            self.page.keyboard.press("Control+s")
