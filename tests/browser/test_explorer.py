"""The explorer's controls in JupyterLab. All tests use one notebook, in the state that the previous test left."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest
from jupyter_server_process import SCREENSHOTS, JupyterServer
from notebook_page import NotebookPage, write_notebook
from waiting import until

if TYPE_CHECKING:
    from playwright.sync_api import Locator

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

VIEW, STOP = range(2)
CELLS = [
    "%load_ext xpulab\nc = %xpu_cluster start -n 2\nimport numpy as np, xpulab\n"
    # Rows without clusters, for which k-means takes long.
    "view = xpulab.explore(np.random.default_rng(0).random((200_000, 2), np.float32), k=12)\nview",
    "%xpu_cluster stop",
]


@pytest.fixture(scope="module")
def lab(server: JupyterServer, new_page: Callable[[], NotebookPage]) -> Iterator[NotebookPage]:
    path = server.folder / "explorer.ipynb"
    write_notebook(path, CELLS)
    lab = new_page()
    lab.open(server.url(path))
    lab.wait_for_kernel()
    lab.run(VIEW).locator(".xpu-stage svg.xpu-plot image").wait_for(state="attached")
    yield lab
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    lab.page.screenshot(path=SCREENSHOTS / "lab-explorer.png")
    lab.page.close()
    server.end_kernels()
    assert lab.errors == []


@pytest.fixture
def explorer(lab: NotebookPage) -> Locator:
    return lab.output(VIEW).get_by_role("group", name="k-means explorer")


def button(explorer: Locator, name: str) -> Locator:
    return explorer.get_by_role("button", name=name, exact=True)


def said(explorer: Locator) -> Locator:
    """Return the live region, which screen readers announce."""
    return explorer.get_by_role("status")


def iterations(explorer: Locator) -> int:
    found = re.search(r"start 0: (\d+) iteration", said(explorer).inner_text())
    assert found
    return int(found[1])


def play(explorer: Locator, speed: str) -> None:
    explorer.get_by_role("slider", name="Speed").press(speed)
    button(explorer, "Play").click()
    button(explorer, "Pause").wait_for()


def seconds_of(explorer: Locator, further: int) -> float:
    """Return how long so many further iterations take, from one that has just been shown."""
    first = iterations(explorer)
    until(lambda: iterations(explorer) > first)
    begun, first = time.monotonic(), iterations(explorer)
    until(lambda: iterations(explorer) >= first + further)
    return time.monotonic() - begun


def iterations_in(explorer: Locator, seconds: float) -> int:
    before = iterations(explorer)
    explorer.page.wait_for_timeout(1000 * seconds)
    return iterations(explorer) - before


def stays(explorer: Locator) -> None:
    """Check that the explorer neither plays nor computes the elbow curve."""
    button(explorer, "Play").wait_for()
    explorer.page.wait_for_function("button => button.disabled", arg=button(explorer, "Stop").element_handle())
    assert iterations_in(explorer, 0.7) == 0


def test_play_has_a_speed_and_stop_ends_it(explorer: Locator) -> None:
    play(explorer, "Home")
    explorer.get_by_text("0.5 a second").wait_for()
    assert said(explorer).get_attribute("aria-live") == "off"  # each iteration would be read out
    slow = seconds_of(explorer, 1)
    assert slow > 1  # 2 s, of which the picture of the iteration before may take some
    explorer.get_by_role("slider", name="Speed").press("End")
    explorer.get_by_text("16 a second").wait_for()
    seconds_of(explorer, 1)  # the pause that has begun before may end first
    assert seconds_of(explorer, 4) / 4 < slow / 2
    button(explorer, "Stop").click()
    stays(explorer)


def test_the_live_region_says_the_inertia(explorer: Locator) -> None:
    assert said(explorer).get_attribute("aria-live") == "polite"
    before = iterations(explorer)
    button(explorer, "One iteration").click()
    said(explorer).get_by_text(f"start 0: {before + 1} iterations, inertia ").wait_for()


def test_the_stop_button_of_the_notebook_ends_play_while_no_cell_runs(lab: NotebookPage, explorer: Locator) -> None:
    button(explorer, "Reset").click()
    play(explorer, "Home")
    lab.wait_for_kernel()
    lab.interrupt()
    stays(explorer)
    assert "converged" not in said(explorer).inner_text()
    button(explorer, "One iteration").click()  # the kernel lives


def test_stop_ends_the_elbow_whose_axis_has_numbers(explorer: Locator) -> None:
    chart = explorer.get_by_role("img", name=re.compile("^Inertia by number of clusters: "))
    button(explorer, "Elbow").click()
    chart.wait_for()
    button(explorer, "Stop").click()
    stays(explorer)
    found = chart.locator("circle.xpu-dot").count()
    assert 2 <= found < 12
    explorer.page.wait_for_timeout(700)
    assert chart.locator("circle.xpu-dot").count() == found
    texts = [float(text) for text in chart.locator("text").all_text_contents()[:-1]]
    assert texts[0] > texts[1] > 0  # of the inertia, from the top down
    assert texts[2:] == list(range(1, found + 1))


def test_keys_on_a_centre_move_it_and_do_not_reach_the_notebook(lab: NotebookPage, explorer: Locator) -> None:
    centre = explorer.locator('[data-center="3"]')
    centre.focus()
    before = centre.get_attribute("aria-label") or ""
    for key in ("d", "d", "x", "a", "Enter", "ArrowRight"):
        lab.page.keyboard.press(key)
    explorer.page.wait_for_function(
        "([centre, before]) => document.querySelector('[data-center=\"3\"]').ariaLabel !== before",
        arg=[None, before],
    )
    assert lab.cells.count() == len(CELLS)
    assert explorer.page.evaluate("document.activeElement.dataset.center") == "3"  # it has kept the focus
    place = [float(each) for each in re.findall(r"[\d.]+(?=[,;])", before)]
    moved = [float(each) for each in re.findall(r"[\d.]+(?=[,;])", centre.get_attribute("aria-label") or "")]
    assert moved[0] > place[0]
    assert moved[1] == place[1]


def test_a_stopped_cluster_is_reported_and_can_be_started(lab: NotebookPage, explorer: Locator) -> None:
    start = button(explorer, "Start")
    assert not start.is_visible()
    lab.run(STOP)
    button(explorer, "One iteration").click()
    said(explorer).get_by_text("the cluster was stopped").wait_for()
    start.click()
    start.wait_for(state="hidden", timeout=60_000)
    began = time.monotonic()
    before = iterations(explorer)
    button(explorer, "One iteration").click()
    said(explorer).get_by_text(f"start 0: {before + 1} iteration").wait_for()
    assert time.monotonic() - began < 30
    assert explorer.locator("[data-center]").count() == 12
