"""The explorer's controls in JupyterLab. All tests use one notebook, in the state that the previous test left."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import pytest
from jupyter_server_process import SCREENSHOTS, JupyterServer
from notebook_page import NotebookPage, write_notebook
from waiting import until

if TYPE_CHECKING:
    from playwright.sync_api import Locator

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

VIEW, SPEED, ROWS, MIXTURE, DENSITY, STOP = range(6)
CELLS = [
    "%load_ext xpulab\nc = %xpu_cluster start -n 2\nimport numpy as np, xpulab\n"
    # Rows without clusters, for which k-means takes long.
    "X = np.random.default_rng(0).random((200_000, 2), np.float32)\nview = xpulab.explore(X, k=12)\nview",
    "print(view.pace)",
    "inside = (abs(X - 0.5) < 0.1).all(axis=1)\nchosen = view.explorer.selected\n"
    "print(len(chosen), inside.sum(), inside[chosen].mean())",
    "G = np.concatenate([np.random.default_rng(0).normal(m, 0.3, (500, 2)) for m in ((0, 0), (3, 0), (0, 3))])\n"
    "xpulab.explore(G, 3, algorithm='mixture')",
    "xpulab.explore(G, algorithm='dbscan', eps=0.2)",
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
def explorer(lab: NotebookPage) -> Iterator[Locator]:
    """The explorer of k-means, which does nothing after the test, also if the test has failed."""
    explorer = lab.output(VIEW).get_by_role("group", name="k-means explorer")
    yield explorer
    if button(explorer, "Stop").is_enabled():
        button(explorer, "Stop").click()
    rests(explorer)


def button(explorer: Locator, name: str) -> Locator:
    return explorer.get_by_role("button", name=name, exact=True)


def said(explorer: Locator) -> Locator:
    """Return the live region, which screen readers announce."""
    return explorer.get_by_role("status")


def iterations(explorer: Locator) -> int:
    found = re.search(r"start 0: (\d+) iteration", said(explorer).inner_text())
    assert found
    return int(found[1])


def one_iteration(explorer: Locator) -> None:
    """Press the button for one iteration, and wait until the live region says its inertia."""
    following = iterations(explorer) + 1
    button(explorer, "One iteration").click()
    said(explorer).get_by_text(re.compile(rf"start 0: {following} iterations?, inertia ")).wait_for()


def play(explorer: Locator, speed: str) -> None:
    explorer.get_by_role("slider", name="Speed").press(speed)
    button(explorer, "Play").click()
    button(explorer, "Pause").wait_for()


def iterations_in(explorer: Locator, seconds: float) -> int:
    before = iterations(explorer)
    explorer.page.wait_for_timeout(1000 * seconds)
    return iterations(explorer) - before


def rests(explorer: Locator) -> None:
    """Wait until the explorer neither plays nor computes the elbow curve."""
    button(explorer, "Play").wait_for()
    explorer.page.wait_for_function("button => button.disabled", arg=button(explorer, "Stop").element_handle())


def stays(explorer: Locator) -> None:
    """Check that the explorer rests, and goes on resting."""
    rests(explorer)
    assert iterations_in(explorer, 0.7) == 0


def test_play_has_a_speed_and_stop_ends_it(lab: NotebookPage, explorer: Locator) -> None:
    begun, first = time.monotonic(), iterations(explorer)
    play(explorer, "Home")
    explorer.get_by_text("0.5 a second").wait_for()
    assert said(explorer).get_attribute("aria-live") == "off"  # each iteration would be read out
    until(lambda: iterations(explorer) >= first + 2)
    assert time.monotonic() - begun > 2  # at least one whole pause
    assert lab.run(SPEED).inner_text().strip() == "0.5"
    explorer.get_by_role("slider", name="Speed").press("End")
    explorer.get_by_text("16 a second").wait_for()
    assert lab.run(SPEED).inner_text().strip() == "16"
    then = iterations(explorer)
    until(lambda: iterations(explorer) >= then + 4)
    button(explorer, "Stop").click()
    stays(explorer)


def test_the_live_region_says_the_inertia(explorer: Locator) -> None:
    assert said(explorer).get_attribute("aria-live") == "polite"
    one_iteration(explorer)


def test_the_stop_button_of_the_notebook_ends_play_while_no_cell_runs(lab: NotebookPage, explorer: Locator) -> None:
    button(explorer, "Reset").click()
    play(explorer, "Home")
    lab.wait_for_kernel()
    lab.interrupt()
    stays(explorer)
    assert "converged" not in said(explorer).inner_text()
    one_iteration(explorer)  # the kernel lives


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


def at(explorer: Locator, x: float, y: float) -> tuple[float, float]:
    """Return where a place, in the units of the features, is on the page."""
    return tuple(
        explorer.locator("svg.xpu-plot").evaluate(
            """(plot, [x, y]) => {
                const [left, top, width, height, lowX, lowY, highX, highY] = plot.dataset.view.split(" ").map(Number);
                const across = left + width * (x - lowX) / (highX - lowX);
                const up = top + height * (1 - (y - lowY) / (highY - lowY));
                const at = new DOMPoint(across, up).matrixTransform(plot.getScreenCTM());
                return [at.x, at.y];
            }""",
            [x, y],
        )
    )


def shown_row(explorer: Locator, x: float, y: float, near: float = 0.02) -> tuple[int, list[float]]:
    """Wait until a row near to a place is shown, and return its number and its values."""
    tip = explorer.locator(".xpu-tip")
    explorer.page.wait_for_function(
        "([tip, x, y, near]) => { const values = [...tip.querySelectorAll('dd')];"
        "const [a, b] = values.map((each) => Number(each.textContent));"
        "return !tip.hidden && Math.hypot(a - x, b - y) < near }",
        arg=[tip.element_handle(), x, y, near],
    )
    found = re.match(r"Row ([\d,]+) of cluster \d+\n", tip.inner_text())
    assert found
    return int(found[1].replace(",", "")), [float(each) for each in tip.locator("dd").all_inner_texts()]


def test_the_row_under_the_pointer_is_shown_and_its_number_is_that_of_the_array(
    lab: NotebookPage, explorer: Locator
) -> None:
    X = np.random.default_rng(0).random((200_000, 2), np.float32)
    explorer.scroll_into_view_if_needed()
    for place in ((0.2, 0.8), (0.9, 0.15)):
        lab.page.mouse.move(*at(explorer, *place))
        number, values = shown_row(explorer, *place)
        np.testing.assert_allclose(values, X[number], rtol=1e-5)
        assert explorer.locator("svg.xpu-plot circle.xpu-mark").count() == 1
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    lab.page.screenshot(path=SCREENSHOTS / "lab-explorer-row.png")
    button(explorer, "One iteration").hover()
    explorer.locator(".xpu-tip").wait_for(state="hidden")
    assert explorer.locator("svg.xpu-plot circle.xpu-mark").count() == 0


def test_the_arrow_keys_show_rows_and_escape_hides_them(lab: NotebookPage, explorer: Locator) -> None:
    explorer.locator("svg.xpu-plot").focus()
    tip = explorer.locator(".xpu-tip")
    for key in ("ArrowRight", "ArrowRight", "ArrowUp"):
        lab.page.keyboard.press(key)
    shown_row(explorer, 0.54, 0.52)  # two steps and one of 2 % of the axes from the middle
    assert tip.get_attribute("aria-live") == "polite"
    lab.page.keyboard.press("Escape")
    tip.wait_for(state="hidden")
    assert explorer.page.evaluate("document.activeElement.matches('svg.xpu-plot')")
    assert lab.cells.count() == len(CELLS)


def test_a_shape_selects_the_rows_inside_and_escape_selects_none(lab: NotebookPage, explorer: Locator) -> None:
    before = explorer.locator('[data-center="3"]').get_attribute("aria-label")
    button(explorer, "Lasso").click()
    corners = [(0.4, 0.4), (0.6, 0.4), (0.6, 0.6), (0.4, 0.6), (0.4, 0.41)]
    lab.page.mouse.move(*at(explorer, *corners[0]))
    lab.page.mouse.down()
    for corner in corners[1:]:
        lab.page.mouse.move(*at(explorer, *corner), steps=8)
    lab.page.mouse.up()
    said(explorer).get_by_text(re.compile(r"[\d,]+ rows selected: [\d,]+ of cluster \d+")).wait_for()
    assert explorer.locator("svg.xpu-plot polyline.xpu-lasso").count() == 1
    assert explorer.locator('[data-center="3"]').get_attribute("aria-label") == before  # no centre was moved
    lab.page.screenshot(path=SCREENSHOTS / "lab-explorer-lasso.png")
    chosen, inside, share = map(float, lab.run(ROWS).inner_text().split()[-3:])
    assert abs(chosen - inside) < 0.03 * inside  # the mouse stops at pixels
    assert share > 0.98
    one_iteration(explorer)  # which keeps the selection
    button(explorer, "Lasso").click()
    lab.page.keyboard.press("Escape")
    explorer.locator("svg.xpu-plot polyline.xpu-lasso").wait_for(state="detached")
    assert "selected" not in said(explorer).inner_text()


def test_a_mixture_plays_until_it_has_converged_and_shows_its_ellipses(lab: NotebookPage) -> None:
    mixture = lab.run(MIXTURE).get_by_role("group", name="Gaussian mixture explorer")
    mixture.locator(".xpu-stage svg.xpu-plot image").wait_for(state="attached")
    assert button(mixture, "Elbow").count() == 0
    mixture.get_by_role("slider", name="Speed").press("End")
    button(mixture, "Play").click()
    said(mixture).get_by_text(re.compile(r"k=3, start 0: \d+ iterations, converged, lower bound -")).wait_for()
    mixture.get_by_role("img", name=re.compile("^Lower bound by iteration: ")).wait_for()
    plot = mixture.locator("svg.xpu-plot")
    assert plot.locator("polyline.xpu-before").count() == 3
    ellipses = [each.bounding_box() for each in plot.locator("polyline.xpu-trail").all()[:3]]
    assert all(box is not None and box["width"] > 40 and box["height"] > 40 for box in ellipses)
    lab.page.screenshot(path=SCREENSHOTS / "lab-explorer-mixture.png")


def test_clusters_of_dbscan_grow_with_the_slider_of_eps(lab: NotebookPage) -> None:
    density = lab.run(DENSITY).get_by_role("group", name="DBSCAN explorer")
    density.locator(".xpu-stage svg.xpu-plot image").wait_for(state="attached")
    assert button(density, "Play").count() == 0
    said(density).get_by_text(re.compile("eps=0.2, min_samples=5: 3 clusters, ")).wait_for()
    before = density.locator("svg.xpu-plot").screenshot()
    slider = density.get_by_role("slider", name="eps")
    slider.press("Home")
    said(density).get_by_text(re.compile("eps=0.0125, min_samples=5: .* 1,\\d{3} rows of noise")).wait_for()
    assert density.locator("svg.xpu-plot").screenshot() != before
    slider.press("End")
    said(density).get_by_text(re.compile("eps=3.2, min_samples=5: 1 cluster, 1,500 cores, 0 border rows")).wait_for()
    density.scroll_into_view_if_needed()
    lab.page.mouse.move(*at(density, 0.0, 0.0))
    shown_row(density, 0.0, 0.0, 0.2)
    lab.page.screenshot(path=SCREENSHOTS / "lab-explorer-dbscan.png")


def test_a_stopped_cluster_is_reported_and_can_be_started(lab: NotebookPage, explorer: Locator) -> None:
    start = button(explorer, "Start")
    assert not start.is_visible()
    lab.run(STOP)
    button(explorer, "One iteration").click()
    said(explorer).get_by_text("the cluster was stopped").wait_for()
    start.click()
    start.wait_for(state="hidden")
    one_iteration(explorer)
    assert explorer.locator("[data-center]").count() == 12
