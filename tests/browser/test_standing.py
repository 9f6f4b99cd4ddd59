"""Which of an explorer's two outputs is seen, by the rules of its style, in a browser."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

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
    """Names of what is visible, of the outputs of some notebooks that are open at the same time."""
    areas = "".join(f"<main>{''.join(o.format(i) for o in outputs)}</main>" for i, outputs in enumerate(notebooks))
    # As explore.js does while a widget lives anywhere in the page.
    living = "xpu-live-x" if "xpu-live-x" in areas else ""
    page.set_content(f"<html class='{living}'><style>{_rules('x', had_widget)}</style>{areas}</html>")
    return {each.get_attribute("id") or "" for each in page.locator("[id]").all() if each.is_visible()}


def test_the_widget_hides_the_standing_picture(page: Page) -> None:
    assert seen(page, True, (OTHER, WIDGET, STANDING, OTHER)) == {"other0", "widget0"}


def test_without_a_kernel_the_picture_stands_and_the_error_of_the_widget_is_hidden(page: Page) -> None:
    assert seen(page, True, (OTHER, ERROR, STANDING)) == {"other0", "standing0"}


def test_a_front_end_without_widgets_shows_what_is_there(page: Page) -> None:
    assert seen(page, False, (OTHER, STANDING)) == {"other0", "standing0"}


def test_a_copy_in_another_tab_stands_where_the_first_one_lives(page: Page) -> None:
    assert seen(page, True, (WIDGET, STANDING), (ERROR, STANDING)) == {"widget0", "standing1"}


def test_a_front_end_with_other_outputs_than_jupyters_shows_one_of_them(page: Page) -> None:
    theirs = [output.replace("jp-OutputArea-child", "output") for output in (WIDGET, STANDING)]
    assert seen(page, True, tuple(theirs)) == {"widget0"}
    assert seen(page, True, (theirs[1],)) == {"standing0"}
