"""JupyterLab 4 in a real browser, light and dark: one notebook from the start of a cluster to its reopening.

All tests use one notebook, in the state that the previous test left. One of them chooses the dark theme.
"""

from __future__ import annotations

import contextlib
import re
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import nbformat
import pytest
from jupyter_server_process import GENTLY, ROOT, SCREENSHOTS, JupyterServer
from notebook_page import NotebookPage, colours, write_notebook
from PIL import ImageChops, ImageStat
from playwright.sync_api import Error

if TYPE_CHECKING:
    from playwright.sync_api import Locator

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.usefixtures("picture")]

START, FIT, EXPLORE, ENDLESS, NEXT, FOREST, WRONG, WAITS, ATTRIBUTE, OF_RANKS = range(10)
CELLS = [
    "%load_ext xpulab\nc = %xpu_cluster start -n 2\nc",
    f"{GENTLY}import numpy as np\nimport xpulab.widgets.fit_view as views\nfrom xpulab.cluster import KMeans\n"
    "views.SEEN = 0\n"
    "X = np.random.default_rng(0).normal(size=(30_000, 14)).astype(np.float32)\n"
    "km = KMeans(120, init=X[:120], n_init=1, max_iter=60, tol=0).fit(X)\n_ = c.run(meetings)",
    "import xpulab\nview = xpulab.explore(X[:, :2] + 4 * (X[:, 2:4] > 0), k=4, random_state=0)\nview",
    "c.run(strike, pause=0.15)\n"
    "endless = KMeans(120, init='random', n_init=1000, max_iter=10_000, tol=0, random_state=0)\nendless.fit(X)",
    "c.run(meetings)\nimport sklearn.cluster\nsmall = X[:999].astype(float)\nprint(endless.report_.status)\n"
    "ours, plain = (each(3, random_state=0).fit(small) for each in (KMeans, sklearn.cluster.KMeans))\n"
    "print((ours.labels_ == plain.labels_).all())",
    "from xpulab.ensemble import RandomForestClassifier\n"
    "forest = RandomForestClassifier(30_000, random_state=0).fit(X, X[:, 0] > 0)",
    "bad = X[:40].copy()\nbad[7, 2] = np.nan\nKMeans(2).fit(bad)",
    "import os, subprocess, time\n"
    "call = f'xpulab.XPUCluster.attach({c.known_as!r}).run(lambda task: __import__(\"time\").sleep(4))'\n"
    "named = os.environ | {'JPY_SESSION_NAME': '/home/somebody/prices.ipynb'}\n"
    "other = subprocess.Popen([sys.executable, '-c', f'import xpulab; {call}'], env=named)\n"
    "while c.status().engines[0].state == 'idle': time.sleep(0.05)\n"
    "KMeans(5).fit(X[:999])\nother.wait()",
    "c.s",
    "%%xpu\nra",
]

#: Computes the smallest contrast of an element's text with its background, by the formula of WCAG 2.
CONTRAST = """root => {
  const parse = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b]
    .map((c) => (c /= 255) <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const ground = (element) => {
    for (let each = element; each; each = each.parentElement) {
      const colour = parse(getComputedStyle(each).backgroundColor);
      if (colour.length < 4 || colour[3] > 0.9) return colour;
    }
    return [255, 255, 255];
  };
  const ratio = (element) => {
    const [a, b] = [light(parse(getComputedStyle(element).color)), light(ground(element))];
    return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  };
  return Math.min(...[...root.querySelectorAll("td, th, dt, dd, button, .xpu-title, label")].map(ratio));
}"""


@pytest.fixture(scope="module")
def notebook(server: JupyterServer) -> Path:
    path = server.folder / "lab.ipynb"
    write_notebook(path, CELLS)
    return path


@pytest.fixture(scope="module")
def lab(server: JupyterServer, notebook: Path, new_page: Callable[[], NotebookPage]) -> Iterator[NotebookPage]:
    """The notebook, open in the light theme, with its kernel ready."""
    lab = new_page()
    lab.open(server.url(notebook))
    lab.wait_for_kernel()
    yield lab
    lab.page.close()


def seen(output: Locator, *selectors: str) -> list[str]:
    """Return those of the selectors that match something visible in a cell's output."""
    return [selector for selector in selectors if output.locator(selector).first.is_visible()]


def button(output: Locator, name: str) -> Locator:
    """Find a button by its name, which may follow the character of an icon."""
    return output.get_by_role("button", name=re.compile(rf"^\W*{name}$"))


def plot(output: Locator, before: bytes = b"") -> bytes:
    """Return the explorer's picture on the screen, after it differs from `before` and does not change any more."""
    last = b""
    for _ in range(500):
        output.page.wait_for_timeout(200)
        with contextlib.suppress(Error):  # the element may be redrawn in this moment
            now = output.locator(".xpu-stage svg.xpu-plot").screenshot()
            if now == last and (not before or differ(before, now)):
                return now
            last = now
    pytest.fail("the picture does not change")


def differ(before: bytes, after: bytes) -> bool:
    """Return whether more than a hundredth of the pixels differ, which is more than the mark of the focus."""
    if colours(before).size != colours(after).size:
        return True
    difference = ImageChops.difference(colours(before), colours(after)).convert("L").histogram()
    return sum(difference[8:]) > sum(difference) / 100


def assert_a_picture_of_points(image: bytes) -> None:
    pixels = colours(image)
    assert len(pixels.getcolors(1 << 24)) > 30
    assert min(ImageStat.Stat(pixels).stddev) > 5


def ground(lab: NotebookPage) -> tuple[int, ...]:
    """Return the colour behind the cells."""
    return colours(lab.page.locator(".jp-Notebook").screenshot()).getpixel((3, 3))


def choose_theme(lab: NotebookPage, theme: str) -> None:
    """Choose a theme in the menu, as a user does."""
    lab.page.locator(".lm-MenuBar-itemLabel", has_text="Settings").click()
    for name in ("Theme", f"JupyterLab {theme}"):
        lab.page.locator(".lm-Menu-itemLabel").get_by_text(name, exact=True).click()
    lab.page.locator(f"body[data-jp-theme-name='JupyterLab {theme}']").wait_for(state="attached")
    lab.page.wait_for_timeout(500)  # JupyterLab loads the colours after it has set the name


def test_binder_opens_on_the_first_notebook(server: JupyterServer) -> None:
    """This is the first page of an image of binder/."""
    with urllib.request.urlopen(f"{server.address}/?token={server.token}") as answer:
        path = urllib.parse.urlsplit(answer.url).path
    assert path.startswith("/lab/tree/")
    assert (ROOT / path.removeprefix("/lab/tree/")) == min((ROOT / "notebooks").glob("*.ipynb"))


def test_the_first_theme_is_light(lab: NotebookPage) -> None:
    assert min(ground(lab)) > 230


def test_a_started_cluster_has_a_row_for_each_engine(lab: NotebookPage) -> None:
    output = lab.run(START)
    table = output.locator(".xpu-live table")
    table.locator("tbody tr").nth(1).wait_for()
    assert table.locator("tbody tr").count() == 2
    assert "running, 2 engines" in output.inner_text()
    assert seen(output, ".xpu-live", ".xpu-standing") == [".xpu-live"]
    for name in ("Stop", "Restart"):
        assert button(output, name).is_visible()
    assert output.evaluate(CONTRAST) > 4.5


def test_a_fit_is_followed_to_its_end(lab: NotebookPage, notebook: Path) -> None:
    enough = notebook.with_name("enough")
    enough.unlink(missing_ok=True)
    lab.start(FIT)
    output = lab.output(FIT)
    # The cluster's view is still updated while the cell runs.
    lab.output(START).locator(".xpu-live td", has_text=re.compile("KMeans.fit|iteration|busy")).first.wait_for()
    progress = output.get_by_role("progressbar", name="iterations done")
    progress.wait_for()
    first = float(progress.get_attribute("aria-valuenow"))
    lab.page.wait_for_function(
        "([bar, first]) => !bar.isConnected || bar.ariaValueNow > first", arg=[progress.element_handle(), first]
    )
    enough.touch()
    lab.wait(FIT)
    output.get_by_text("KMeans.fit").first.wait_for()
    assert "! not converged" in output.inner_text()
    assert progress.count() == 0
    assert output.locator("table tbody tr").count() >= 2
    assert_a_readable_report(output)


def assert_a_readable_report(output: Locator) -> None:
    curves = output.get_by_role("img", name=re.compile("inertia", re.IGNORECASE))
    assert len(colours(curves.first.screenshot()).getcolors(1 << 24)) > 2
    assert output.evaluate(CONTRAST) > 4.5


def test_the_slider_of_the_explorer_changes_its_picture(lab: NotebookPage) -> None:
    output = lab.run(EXPLORE)
    output.locator(".xpu-stage svg.xpu-plot image").wait_for(state="attached")
    before = plot(output)
    assert_a_picture_of_points(before)
    assert output.locator(".xpu-stage [data-center]").count() == 4
    slider = output.get_by_role("slider", name="Clusters")
    slider.focus()
    lab.page.keyboard.press("ArrowRight")
    stage = output.locator(".xpu-stage + .xpu-said")
    stage.get_by_text("k=5, start 0: 0 iterations").wait_for()
    five = plot(output, before)
    assert_a_picture_of_points(five)
    assert output.locator(".xpu-stage [data-center]").count() == 5
    output.get_by_role("button", name="One iteration").click()
    stage.get_by_text("k=5, start 0: 1 iteration,").wait_for()
    plot(output, five)
    assert seen(output, ".xpu-stage", "[data-xpu-standing]") == [".xpu-stage"]


def test_a_report_that_the_next_cell_has_folded_unfolds_and_all_views_follow_the_theme(lab: NotebookPage) -> None:
    """The theme of all later tests is dark."""
    output = lab.output(FIT)
    line = output.locator(".xpu-fold > summary")
    assert " ".join(line.inner_text().split()).startswith("KMeans.fit ! not converged 30,000 × 14 float32 on 2 eng")
    assert not output.locator("table").first.is_visible()
    assert output.bounding_box()["height"] < 60
    lab.page.screenshot(path=SCREENSHOTS / "lab-folded.png")
    line.click()
    assert_a_readable_report(output)
    choose_theme(lab, "Dark")
    assert max(ground(lab)) < 60
    assert lab.output(START).evaluate(CONTRAST) > 4.5
    assert_a_readable_report(lab.output(FIT))
    assert_a_picture_of_points(plot(lab.output(EXPLORE)))


def test_the_stop_button_interrupts_a_fit(lab: NotebookPage, notebook: Path) -> None:
    lab.start(ENDLESS)
    output = lab.output(ENDLESS)
    output.get_by_role("progressbar", name="iterations done").wait_for()
    lab.save()
    (saved,) = nbformat.read(notebook, as_version=4).cells[ENDLESS].outputs
    assert re.search(r"as of \d{4}-\d\d-\d\d \d\d:.* %xpu_cluster last", saved.data["text/html"])
    lab.interrupt()
    lab.wait(ENDLESS)
    assert "as of" not in output.inner_text()
    assert "KeyboardInterrupt: KMeans.fit was interrupted" in output.inner_text()
    assert "■ interrupted" in output.inner_text()
    assert re.findall(r"^(interrupted|True|False)$", lab.run(NEXT).inner_text(), re.MULTILINE) == [
        "interrupted",
        "True",
    ]


def test_a_forest_says_its_tree_beside_a_bar_that_is_filled_as_far(lab: NotebookPage) -> None:
    lab.start(FOREST)
    output = lab.output(FOREST)
    output.get_by_text(re.compile(r"tree [\d,]+ of 30,000")).first.wait_for()
    bar = output.get_by_role("progressbar", name="steps done")
    said = of = 0.0
    while said <= 0.02 or of == 0:  # the view draws the bar anew with each step; what it has removed has no width
        lab.page.wait_for_timeout(100)
        said, filled, of, x, y = bar.evaluate(
            "bar => { const [part, whole] = [bar.firstChild, bar].map((each) => each.getBoundingClientRect());"
            "return [+bar.ariaValueNow, part.width, whole.width, whole.x, whole.y + whole.height / 2]; }"
        )
    assert filled / of == pytest.approx(said, abs=0.01)
    pixels = colours(lab.page.screenshot(clip={"x": x, "y": y - 2, "width": of, "height": 4}))
    green, rest = (pixels.getpixel((x, pixels.height // 2)) for x in (4, pixels.width - 4))
    assert green[1] > green[0] + 50
    assert max(rest) - min(rest) < 20  # grey
    used = re.compile(r"^[1-9][\d.,]* (KiB|MiB|GiB) used")  # by the rows of the call, before this of its copy there
    lab.output(START).locator(".xpu-live td", has_text=used).first.wait_for()
    lab.interrupt()
    lab.wait(FOREST)
    assert "RandomForestClassifier.fit was interrupted" in output.inner_text()


def test_an_error_of_everyday_shows_its_place_and_folds_the_rest(lab: NotebookPage) -> None:
    output = lab.run(WRONG)
    output.get_by_text("row 7, column 2").first.wait_for()
    lines = output.locator(".jp-RenderedText[data-mime-type*='error'], .jp-RenderedText[data-mime-type*='stderr']")
    assert len(lines.last.inner_text().strip().splitlines()) <= 5
    whole = output.locator("details", has_text="The whole error").locator("pre")
    assert not whole.is_visible()
    output.get_by_text("The whole error").click()
    whole.wait_for()
    assert "Traceback" in whole.inner_text()


def test_a_fit_names_the_notebook_that_it_waits_for(lab: NotebookPage) -> None:
    lab.start(WAITS)
    lab.output(WAITS).get_by_text("waiting for run of prices.ipynb").first.wait_for()
    lab.wait(WAITS)
    assert "waiting for run of" not in lab.output(WAITS).inner_text()


@pytest.mark.parametrize(("cell", "name"), [(ATTRIBUTE, "scatter"), (OF_RANKS, "rank")])
def test_names_complete_and_are_explained(lab: NotebookPage, cell: int, name: str) -> None:
    lab.cells.nth(cell).locator(".cm-content").click()
    for key in ("Control+End", "Tab"):
        lab.page.keyboard.press(key)
    lab.page.locator(".jp-Completer").get_by_text(name, exact=True).first.click()
    lab.page.keyboard.press("Shift+Tab")
    tooltip = lab.page.locator(".jp-Tooltip")
    tooltip.wait_for()
    assert re.search("rows" if name == "scatter" else r"rank|int", tooltip.inner_text())
    lab.page.keyboard.press("Escape")


def test_the_button_that_stops_the_cluster_asks_first(lab: NotebookPage) -> None:
    output = lab.output(START)
    button(output, "Stop").click()
    output.get_by_text("Stop 2 engines? Rows and variables there are lost.").wait_for()
    button(output, "No").click()
    button(output, "Stop").wait_for()
    assert "running, 2 engines" in output.inner_text()
    button(output, "Stop").click()
    button(output, "Yes").click()
    button(output, "Start the engines").wait_for()
    output.locator(".xpu-live").get_by_text("stopped, 2 engines").wait_for()


def test_after_a_reload_the_views_still_work(lab: NotebookPage) -> None:
    standing = lab.output(START).locator(".xpu-standing", has_text="stopped, 2 engines")
    standing.first.wait_for(state="attached")  # the standing form follows the live one
    lab.save()
    lab.page.reload()
    lab.cells.first.wait_for()
    lab.wait_for_kernel()
    lab.output(FIT).get_by_text("not converged").first.wait_for()
    output = lab.output(START)
    button(output, "Start the engines").click()
    button(output, "Stop").wait_for()
    output.locator(".xpu-live").get_by_text("running, 2 engines").wait_for()
    assert seen(output, ".xpu-live", ".xpu-standing") == [".xpu-live"]
    assert_a_picture_of_points(plot(lab.output(EXPLORE)))


def test_opened_again_without_a_kernel_it_shows_the_last_state(
    lab: NotebookPage, notebook: Path, server: JupyterServer, new_page: Callable[[], NotebookPage]
) -> None:
    saved = notebook.with_name("saved.ipynb")
    reopened = nbformat.read(notebook, as_version=4)
    reopened.metadata = {"kernelspec": {"name": "none", "display_name": "A kernel that is not here"}}
    nbformat.write(reopened, saved)
    server.trust(saved)  # the same notebook with another name of its kernel
    again = new_page()
    again.leave_questions()
    again.open(server.url(saved))
    again.page.get_by_role("dialog").get_by_role("button", name="No Kernel").click()
    try:
        cluster, fit, explorer = (again.output(cell) for cell in (START, FIT, EXPLORE))
        cluster.locator(".xpu-standing table").wait_for()
        explorer.locator("[data-xpu-standing] svg.xpu-plot").wait_for()
        assert seen(cluster, ".xpu-live", ".xpu-standing") == [".xpu-standing"]
        assert cluster.locator(".xpu-standing table tbody tr").count() == 2
        assert "stopped" in cluster.inner_text()
        assert "not converged" in fit.inner_text()
        fit.locator(".xpu-fold > summary").click()
        for theme in ("Dark", "Light"):
            if theme == "Light":
                choose_theme(again, theme)
            assert (max(ground(again)) < 60) if theme == "Dark" else (min(ground(again)) > 230)
            assert cluster.evaluate(CONTRAST) > 4.5
            assert_a_readable_report(fit)
            assert_a_picture_of_points(explorer.locator("[data-xpu-standing] svg.xpu-plot").screenshot())
            again.page.screenshot(path=SCREENSHOTS / f"lab-{theme}-without-kernel.png")
        text = again.page.locator(".jp-Notebook").inner_text().lower()
        assert "not found" not in text
        assert "error displaying" not in text
        assert again.errors == []
    finally:
        again.page.screenshot(path=SCREENSHOTS / "lab-without-kernel.png")
        again.page.close()  # otherwise the other page would also open its tab when it is loaded
