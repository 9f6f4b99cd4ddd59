"""The board of a cluster in JupyterLab: a panel beside the notebook, with what the reports have, light and dark."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import nbformat
import pytest
from jupyter_server_process import GENTLY, SCREENSHOTS, JupyterServer
from notebook_page import NotebookPage, write_notebook
from waiting import until

if TYPE_CHECKING:
    from playwright.sync_api import Locator

pytest.importorskip("sidecar", reason='the panel needs sidecar: pip install "xpulab[notebook]"')
pytestmark = [pytest.mark.cluster, pytest.mark.slow]

START, FITS, BOARD, ENDLESS, AFTER, CELL, MEASURED = range(7)
CELLS = [
    "%load_ext xpulab\nc = %xpu_cluster start -n 2\nc",
    "import numpy as np\nfrom xpulab.cluster import KMeans\n"
    "X = np.random.default_rng(0).normal(size=(20_000, 14)).astype(np.float32)\n"
    "fits = [KMeans(k, init=X[:k], n_init=1, max_iter=40, tol=0).fit(X) for k in (20, 30)]",
    "%xpu_cluster board",
    f"{GENTLY}endless = KMeans(60, init='random', n_init=1000, max_iter=10_000, tol=0, random_state=0)\nendless.fit(X)",
    "c.run(meetings)\nprint('status', endless.report_.status)\nprint(*(fit.report_.objective[1] for fit in fits))",
    "%%xpu\nimport time\nwhile True:\n    time.sleep(0.05)",
    "%%xpu\ncomm.Barrier()\ntotal = comm.allreduce(rank)",
]


@pytest.fixture(scope="module")
def lab(server: JupyterServer, new_page: Callable[[], NotebookPage]) -> Iterator[NotebookPage]:
    """A notebook with a board in the panel, after two fits, in the light theme and a window of 1400 pixels."""
    path = server.folder / "board.ipynb"
    write_notebook(path, CELLS)
    lab = new_page()
    lab.page.set_viewport_size({"width": 1400, "height": 1500})
    lab.open(server.url(path))
    lab.wait_for_kernel()
    for cell in (START, FITS, BOARD):
        lab.run(cell)
    yield lab
    lab.page.close()


@pytest.fixture
def panel(lab: NotebookPage) -> Iterator[Locator]:
    """The board in the panel."""
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    yield lab.page.locator(".jupyterlab-sidecar .xpu-board")
    picture(lab, "end")
    assert lab.errors == []


def picture(lab: NotebookPage, name: str) -> None:
    lab.page.screenshot(path=SCREENSHOTS / f"board-{name}.png")


def saved(lab: NotebookPage, panel: Locator, button: str) -> bytes:
    """Press a button that exports, and return the file."""
    with lab.page.expect_download() as download:
        panel.get_by_role("button", name=button).click()
    return Path(download.value.path()).read_bytes()


def close(lab: NotebookPage, panel: Locator, tab: str) -> None:
    """Close a tab, with which the panel goes."""
    lab.page.locator(".lm-TabBar-tab", has_text=tab).locator(".lm-TabBar-tabCloseIcon").click()
    panel.wait_for(state="detached")


def test_the_panel_stands_beside_the_notebook(lab: NotebookPage, panel: Locator) -> None:
    lab.output(BOARD).get_by_text("The board stands beside the notebook.").wait_for()
    notebook, board = (lab.page.locator(each).first.bounding_box() for each in (".jp-Notebook", ".jupyterlab-sidecar"))
    assert notebook
    assert board
    assert board["x"] >= notebook["x"] + notebook["width"] - 1
    assert not any(each.is_visible() for each in lab.output(BOARD).get_by_text("Timeline").all())
    rows = panel.locator("details", has_text="Engines").first.locator("tbody tr")
    assert rows.count() == 2
    panel.locator(".xpu-small polyline").first.wait_for(state="attached")  # a curve has two points after two seconds
    picture(lab, "light")


def test_the_history_has_what_the_reports_have(lab: NotebookPage, panel: Locator) -> None:
    lines = list(csv.DictReader(io.StringIO(saved(lab, panel, "History as CSV").decode())))
    assert [line["name"] for line in lines[:2]] == ["KMeans.fit"] * 2
    assert [json.loads(line["parameters"])["n_clusters"] for line in lines[:2]] == [20, 30]
    assert [line["iterations"] for line in lines[:2]] == ["40", "40"]
    shown = panel.locator("table", has_text="parameters that differ").inner_text()
    assert all(f"{float(line['value']):.6g}" in shown for line in lines[:2])


def test_two_calls_are_laid_over_each_other(lab: NotebookPage, panel: Locator) -> None:
    for number in (1, 2):
        panel.get_by_role("checkbox", name=f"compare call {number}, KMeans.fit").check()
    curve = panel.get_by_role("img", name="Inertia by iteration")
    curve.wait_for()
    assert curve.locator("polyline").count() == 2
    assert panel.get_by_text("Mean of the engines by phase").is_visible()
    picture(lab, "overlay")


def test_the_timeline_is_exported_and_tells_numbers_to_the_keyboard(lab: NotebookPage, panel: Locator) -> None:
    panel.get_by_role("combobox", name="Call of the timeline").select_option("2")
    lanes = panel.get_by_role("application", name="Timeline")
    lanes.focus()
    for key in ("ArrowRight", "ArrowRight", "ArrowDown", "+"):
        lab.page.keyboard.press(key)
    said = panel.locator("output.xpu-numbers")
    said.get_by_text(re.compile(r"^engine 1, iteration \d+: .*kernel .*the most work: engine [01]$")).wait_for()
    box = lanes.bounding_box()
    assert box
    lab.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 10)
    said.get_by_text(re.compile("^engine 0, iteration")).wait_for()
    picture(lab, "timeline")
    lines = list(csv.DictReader(io.StringIO(saved(lab, panel, "Timeline as CSV").decode())))
    assert [(line["engine"], line["iteration"]) for line in lines] == [
        (str(rank), str(iteration)) for rank in (0, 1) for iteration in range(1, 41)
    ]
    events = json.loads(saved(lab, panel, "Trace for Perfetto"))["traceEvents"]
    assert {event["tid"] for event in events if event["ph"] == "X"} == {0, 1}
    assert {"kernel", "wait"} <= {event["name"] for event in events}
    assert saved(lab, panel, "Timeline as PNG").startswith(b"\x89PNG")


def test_the_panel_comes_back_where_it_was_open(lab: NotebookPage, panel: Locator) -> None:
    def loaded_again(panels: int) -> None:
        lab.cells.nth(START).locator(".jp-InputPrompt").first.click()
        lab.save()
        lab.page.reload()
        lab.cells.first.wait_for()
        lab.output(BOARD).locator(".xpu-live .xpu-board").wait_for()
        until(lambda: panel.count() == panels, meanwhile=lambda: lab.page.wait_for_timeout(200))
        lab.page.wait_for_timeout(2000)  # a panel that was closed would come within a second
        assert panel.count() == panels

    loaded_again(1)
    assert "2 calls of this notebook" in panel.inner_text()
    close(lab, panel, "board.ipynb")  # a panel without its notebook would hear nothing more
    lab.page.locator(".jp-DirListing-item", has_text="board.ipynb").dblclick()
    lab.cells.first.wait_for()
    lab.wait_for_kernel()
    panel.get_by_text("2 calls of this notebook").wait_for()
    assert panel.count() == 1
    close(lab, panel, "xpulab board")
    loaded_again(0)
    lab.output(BOARD).get_by_role("button", name="Open beside the notebook").click()
    panel.wait_for()
    lab.run(BOARD)  # a page that was loaded again does not get the updates of an output from before
    lab.page.wait_for_timeout(1500)
    assert panel.count() == 1


def test_the_button_of_the_status_opens_the_panel(lab: NotebookPage, panel: Locator) -> None:
    close(lab, panel, "xpulab board")
    lab.run(START).get_by_role("button", name=re.compile(r"^\W*Board$")).click()
    panel.get_by_text("2 calls of this notebook").wait_for()
    lab.output(START).get_by_text("The board stands beside the notebook.").wait_for()
    assert not lab.output(START).locator(".xpu-whole-board").first.is_visible()
    picture(lab, "by-button")
    lab.page.wait_for_timeout(1500)
    assert panel.count() == 1


def test_stop_ends_a_running_fit(lab: NotebookPage, panel: Locator) -> None:
    lab.start(ENDLESS)
    panel.get_by_role("progressbar", name="iterations done").wait_for()
    panel.get_by_text(re.compile(r"KMeans\.fit .*iteration \d\d")).first.wait_for()  # the curve has some points
    picture(lab, "running")
    panel.get_by_role("button", name="Stop").click()
    lab.wait(ENDLESS)
    assert "KMeans.fit was interrupted" in lab.output(ENDLESS).inner_text()
    panel.get_by_text("no call runs").wait_for()
    panel.get_by_text("interrupted").first.wait_for()
    assert "status interrupted" in lab.run(AFTER).inner_text()


def test_stop_ends_a_cell_on_the_engines(lab: NotebookPage, panel: Locator) -> None:
    lab.start(CELL)
    panel.get_by_text(re.compile("%%xpu of this notebook")).wait_for()
    curve = panel.locator(".xpu-small polyline").first  # of the use of engine 0, which goes on meanwhile
    before = curve.get_attribute("points")
    until(lambda: curve.get_attribute("points") != before, meanwhile=lambda: lab.page.wait_for_timeout(200))
    panel.get_by_role("button", name="Stop").click()
    lab.wait(CELL)
    assert "was interrupted" in lab.output(CELL).inner_text()


def test_the_names_of_the_ranks_are_shown(lab: NotebookPage, panel: Locator) -> None:
    panel.get_by_role("button", name="Refresh names").click()
    panel.get_by_text(re.compile("names? on 2 ranks")).wait_for()


def test_the_board_follows_the_theme_and_fits_a_narrow_panel(lab: NotebookPage, panel: Locator) -> None:
    lab.page.locator(".lm-MenuBar-itemLabel", has_text="Settings").click()
    for name in ("Theme", "JupyterLab Dark"):
        lab.page.locator(".lm-Menu-itemLabel").get_by_text(name, exact=True).click()
    lab.page.locator("body[data-jp-theme-name='JupyterLab Dark']").wait_for(state="attached")
    lab.page.wait_for_timeout(500)  # JupyterLab loads the colours after it has set the name
    picture(lab, "dark")
    panel.evaluate("board => { board.style.width = '400px'; }")
    lab.page.wait_for_timeout(500)
    picture(lab, "narrow")
    wide = """board => [...board.querySelectorAll("*")].filter((each) => each instanceof HTMLElement &&
        each.clientWidth && each.scrollWidth > Math.max(400, each.clientWidth) + 1).map((each) => each.className)"""
    assert panel.evaluate(wide) == []


def test_opened_again_without_a_kernel_it_shows_the_last_state(
    lab: NotebookPage, server: JupyterServer, new_page: Callable[[], NotebookPage]
) -> None:
    standing = lab.output(BOARD).locator(".xpu-standing", has_text="interrupted")
    standing.first.wait_for(state="attached")  # the standing form follows the live one
    lab.cells.nth(START).locator(".jp-InputPrompt").first.click()  # the keyboard is the notebook's again
    lab.save()
    saved = server.folder / "board-saved.ipynb"
    reopened = nbformat.read(server.folder / "board.ipynb", as_version=4)
    reopened.metadata = {"kernelspec": {"name": "none", "display_name": "A kernel that is not here"}}
    nbformat.write(reopened, saved)
    server.trust(saved)
    again = new_page()
    again.leave_questions()
    again.open(server.url(saved))
    again.page.get_by_role("dialog").get_by_role("button", name="No Kernel").click()
    output = again.output(BOARD)
    output.locator(".xpu-standing table", has_text="parameters that differ").wait_for()
    picture(again, "without-kernel")
    text = output.inner_text()
    assert "Timeline of KMeans.fit" in text
    assert "interrupted" in text
    assert "as of" in text
    assert "not found" not in text.lower()
    again.page.close()


def test_a_cell_on_the_engines_has_a_timeline_if_it_is_measured(lab: NotebookPage, panel: Locator) -> None:
    panel.get_by_role("combobox", name="Call of the timeline").select_option("0")
    panel.get_by_role("checkbox", name="measure %%xpu cells").check()
    lab.run(MEASURED)
    panel.get_by_text("MPI allreduce").wait_for()
    lanes = panel.get_by_role("application", name="Timeline")
    lanes.focus()
    for name in ("Barrier", "allreduce"):  # each at its moment
        lab.page.keyboard.press("ArrowRight")
        said = re.compile(rf"^engine 0, [\d.]+ m?s after the beginning: .*MPI {name}")
        panel.locator("output.xpu-numbers").get_by_text(said).wait_for()
    picture(lab, "cell")
    panel.get_by_role("checkbox", name="measure %%xpu cells").uncheck()


def test_the_panel_says_that_the_kernel_is_gone(lab: NotebookPage, panel: Locator, server: JupyterServer) -> None:
    gone = panel.get_by_text(re.compile(r"The kernel of this board is gone; the board is that of \d\d:\d\d:\d\d\."))
    assert not gone.is_visible()
    lab.cells.nth(START).locator(".jp-InputPrompt").first.click()
    lab.page.locator("[data-command='notebook:restart-kernel']:visible").first.click()
    lab.page.locator(".jp-Dialog button.jp-mod-warn").click()
    gone.wait_for()
    assert panel.get_by_role("button", name="Stop").is_disabled()
    assert panel.get_by_text("calls of this notebook").is_visible()  # what was seen stays
    lab.wait_for_kernel()
