"""The rules of a view's style sheet in a browser: which of its outputs is visible, and whether it fits its place."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import pytest
from reports import report

from xpulab.deploy.status import ClusterStatus, EngineStatus
from xpulab.explorer.picture import Picture
from xpulab.explorer.snapshot import Snapshot
from xpulab.explorer.view import _rules

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

OUTPUT = '<div class="jp-OutputArea-child">{}</div>'
WIDGET = OUTPUT.format('<div class="xpu-live-x" id="widget{0}">alive</div>')
ERROR = OUTPUT.format('<div id="error{0}">the widget was not found</div>')
STANDING = OUTPUT.format('<div data-xpu-standing="x" id="standing{0}">picture</div>')
OTHER = OUTPUT.format('<div id="other{0}">another output</div>')


@pytest.fixture(scope="module")
def page(browser: Browser) -> Iterator[Page]:
    page = browser.new_page()
    yield page
    page.close()


def seen(page: Page, had_widget: bool, *notebooks: tuple[str, ...]) -> set[str]:
    """Return the names of the visible outputs of some notebooks that are open at the same time."""
    areas = "".join(f"<main>{''.join(o.format(i) for o in outputs)}</main>" for i, outputs in enumerate(notebooks))
    # explore.js adds this while the page has a working widget.
    living = "xpu-live-x" if "xpu-live-x" in areas else ""
    page.set_content(f"<html class='{living}'><style>{_rules('x', had_widget)}</style>{areas}</html>")
    return {each.get_attribute("id") or "" for each in page.locator("[id]").all() if each.is_visible()}


def test_the_widget_hides_the_standing_picture(page: Page) -> None:
    assert seen(page, True, (OTHER, WIDGET, STANDING, OTHER)) == {"other0", "widget0"}


def test_without_a_kernel_the_picture_is_visible_and_the_error_of_the_widget_is_hidden(page: Page) -> None:
    assert seen(page, True, (OTHER, ERROR, STANDING)) == {"other0", "standing0"}


def test_a_front_end_without_widgets_shows_the_standing_picture(page: Page) -> None:
    assert seen(page, False, (OTHER, STANDING)) == {"other0", "standing0"}


def test_a_copy_in_another_tab_shows_the_picture_while_the_first_one_shows_the_widget(page: Page) -> None:
    assert seen(page, True, (WIDGET, STANDING), (ERROR, STANDING)) == {"widget0", "standing1"}


def test_a_front_end_with_other_outputs_than_jupyters_shows_one_of_them(page: Page) -> None:
    theirs = [output.replace("jp-OutputArea-child", "output") for output in (WIDGET, STANDING)]
    assert seen(page, True, tuple(theirs)) == {"widget0"}
    assert seen(page, True, (theirs[1],)) == {"standing0"}


NAME = "Intel(R) Data Center GPU Max 1550"


def views() -> str:
    """Return the HTML of a status, a report and an explorer, each of them wide."""
    engines = [
        EngineStatus(
            rank, "node01.example.org", 12345, NAME, f"level_zero:{rank}.1", (0, 1), "KMeans.fit", 0.5, 2**28, 2**30,
            2**36, "4x4x16, span 4096 (default), measured for 1 range", 2**34, 2**35, 2, 17, {"inertia": 1234.5},
        )
        for rank in range(3)
    ]  # fmt: skip
    fit = report(engines=3, iterations=8)
    snapshot = Snapshot(
        Picture(np.ones((3, 384, 512), np.int32), ("a", "b"), (0.0, 0.0), (1.0, 1.0)), 9, 9, 2, 3, 0,
        np.full((2, 3, 2), 0.5), (9.0, 8.0), dict.fromkeys(range(1, 13), 1.0), False,
    )  # fmt: skip
    status = ClusterStatus("running", 3, 2.0, tuple(engines))
    return status._repr_html_() + fit._repr_html_() + snapshot._repr_html_()


#: Elements whose content is wider than they are.
TOO_WIDE = """() => [...document.querySelectorAll("main *")]
    .filter((each) => each instanceof HTMLElement && each.clientWidth && each.scrollWidth > each.clientWidth + 1)
    .map((each) => `${each.className}: ${each.scrollWidth} > ${each.clientWidth}`)"""


@pytest.mark.parametrize("width", [280, 460, 568, 720, 1100])
def test_no_view_scrolls_sideways(page: Page, width: int) -> None:
    """The widths are those of a cell at 200 %, in a window of 1000 pixels, on A4 (720), and in a large window."""
    page.set_content(f"<main style='width:{width}px'>{views()}</main>")
    assert page.evaluate(TOO_WIDE) == []
    folded = "el => getComputedStyle(el).display === 'flex'"
    rows = page.locator("tbody tr")
    assert [row.evaluate(folded) for row in rows.all()[:6]] == [width < 1000] * 3 + [width < 740] * 3
    first = page.locator("tbody tr").first
    assert all(text in first.inner_text() for text in (NAME, "12345", "level_zero:0.1", "inertia 1234.5"))
    name = first.locator("td").nth(2).evaluate("el => getComputedStyle(el, '::before').content")
    assert ("--devices" in name) == (width < 1000)


def test_without_styles_and_svg_pictures_and_words_are_visible(page: Page) -> None:
    """JupyterLab's sanitizer removes style sheets and SVG from outputs that are not trusted."""
    page.set_content(views())
    page.evaluate("document.querySelectorAll('style').forEach((each) => each.remove())")
    page.evaluate("document.querySelectorAll('svg').forEach((each) => each.replaceWith(each.textContent))")
    assert page.locator("img").is_visible()
    text = page.locator("body").inner_text()
    assert "Inertia by iteration: from 999 to 124 in 8 iterations" in text
    assert "inertia by number of clusters: 1: 1, 2: 1" in text
    assert "00.20.4" not in text  # the numbers of an axis would be left of a removed SVG
    assert "999\n" not in text
