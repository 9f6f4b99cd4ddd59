"""What comes out of a printer: pages of A4, in which tables stay tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from jupyter_server_process import SCREENSHOTS
from reports import report

from xpulab.report.calls import Calls

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.slow

_WIDTH = 718  # pixels of A4 between margins of 1 cm


def test_the_comparison_of_twelve_calls_is_a_table_on_a4(browser: Browser) -> None:
    calls = Calls()
    for k in range(12):
        parameters = {"n_clusters": 2 + k, "max_iter": 300, "init": "k-means++", "algorithm": "lloyd", "tol": 10.0**-k}
        calls.add(report(parameters=parameters, seconds=1234.5 + k, n_samples=1000 * 10**k))
    html = f"<body style='margin:0'><main>{calls._repr_html_()}</main></body>"
    page = browser.new_page(viewport={"width": _WIDTH, "height": 1000})
    try:
        page.set_content(html)
        assert page.pdf(format="A4", margin={"top": "1cm", "right": "1cm", "bottom": "1cm", "left": "1cm"}).startswith(
            b"%PDF"
        )
        page.emulate_media(media="print")
        table = page.locator("table").first
        assert table.evaluate("each => getComputedStyle(each).display") == "table"
        assert table.evaluate("each => each.scrollWidth <= each.closest('.xpu').clientWidth")
        boxes = """each => [...each.querySelectorAll("th, td")].map((cell) => {
            const { x, width } = cell.getBoundingClientRect();
            return { x, width, cut: cell.scrollWidth > cell.clientWidth };
        })"""
        heads = table.locator("thead").evaluate(boxes)
        rows = [row.evaluate(boxes) for row in table.locator("tbody tr").all()]
        assert len(rows) == 12
        for row in rows:
            for head, cell in zip(heads, row, strict=True):
                assert (cell["x"], cell["width"]) == (head["x"], head["width"])  # below its heading
                assert cell["x"] + cell["width"] <= _WIDTH
                assert not cell["cut"]
        assert page.locator("thead th").first.is_visible()
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=SCREENSHOTS / "paper.png")
    finally:
        page.close()
