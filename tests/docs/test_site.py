"""The site of the documentation: its build without a warning, its reference, and its pages in a browser."""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import chromium
import llms
import parsers
import promises
import public_names
import pytest
from sphinx.util.inventory import InventoryFile

from xpulab import magics

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]  # a busy machine builds the site for minutes

ROOT = Path(__file__).parents[2]
SCREENSHOTS = ROOT / "build" / "screenshots"
PAGES = [
    "index.html",
    "guide/estimators.html",
    "reference/generated/xpulab.cluster.KMeans.html",
    "reference/magics.html",
    "how_it_works.html",
    "notebooks/01_quickstart.html",
    "benchmarks/README.html",
]
#: The contrast of text that WCAG 2 asks for at level AA.
CONTRAST = 4.5


browser = chromium.browser  # a fixture


def words(page: str) -> str:
    """Return the text of a page in one line, without its tags."""
    return " ".join(html.unescape(re.sub(r"<[^>]+>", "", page)).split())


def test_every_public_name_has_a_page(site: Path) -> None:
    inventory: Any = InventoryFile.loads((site / "objects.inv").read_bytes(), uri="").data
    kinds = ("py:class", "py:function", "py:exception", "py:method", "py:attribute", "py:data")
    there = {name: item.uri for kind in kinds for name, item in inventory.get(kind, {}).items()}
    expected = [f"{package}.{name}" for package, names in public_names.packages().items() for name in names]
    expected += [f"{module}.{name}" for module, names in public_names.RETURNED.items() for name in names]
    assert len(expected) > 100
    assert [name for name in expected if name not in there] == []
    assert [uri for uri in there.values() if not (site / uri.partition("#")[0]).is_file()] == []
    assert "xpulab.cluster.KMeans.fit" in there
    assert "xpulab.XPUCluster.release_with" not in there  # for xpulab itself


@pytest.mark.parametrize("typed", parsers.PARSERS)
def test_the_page_of_a_command_says_what_its_help_says(site: Path, typed: str) -> None:
    page = words((site / "reference" / ("command.html" if typed == "xpulab" else "magics.html")).read_text())
    parser = parsers.PARSERS[typed]()
    for each in [parser, *parsers.subcommands(parser).values()]:
        help_text = " ".join(each.format_help().split())
        assert " ".join(str(each.description).split()) in page
        assert " ".join(parsers.usage(each).split()) in page
        for option, explained in parsers.options(each):
            if "-h" not in option:
                assert " ".join(explained.split()) in page
                assert option[-1] in page
            # argparse breaks lines at hyphens, too
            assert re.sub(r"[\s-]", "", explained) in re.sub(r"[\s-]", "", help_text)


def test_a_question_mark_after_a_magic_shows_its_help() -> None:
    for typed in ("%xpu_cluster", "%%xpu", "%%xpu_profile"):
        shown = getattr(magics.XPUMagics, typed.strip("%")).__doc__
        assert " ".join(shown.split()) == " ".join(parsers.PARSERS[typed]().format_help().split())


def test_every_test_that_a_promise_names_exists() -> None:
    text = (ROOT / "docs" / "promises.md").read_text()
    named = promises.named(text)
    assert len(named) >= 40
    for test in named:
        assert "def test_" in promises.source(test)
    with pytest.raises(LookupError, match="no test"):
        promises.source("tests/docs/test_site.py::test_that_does_not_exist")
    bullets = re.findall(r"^- (.*?)(?=^-|^$|^#)", text, re.MULTILINE | re.DOTALL)
    without = [bullet for bullet in bullets if "{test}" not in bullet]
    assert len(without) <= 2  # what rounding may change is no promise


def test_llms_txt_has_a_title_a_summary_and_a_link_to_every_page(site: Path) -> None:
    text = (site / "llms.txt").read_text()
    lines = text.splitlines()
    assert lines[0] == "# xpulab"
    assert lines[2].startswith("> xpulab has estimators with scikit-learn")
    linked = re.findall(r"^- \[.+\]\((\S+)\): .+$", text, re.MULTILINE)
    listed = [line for line in lines if line.startswith("-")]
    assert len(linked) == len(listed)
    assert [link for link in linked if not (site / link).is_file()] == []
    pages = {str(path.relative_to(site)) for path in site.rglob("*.html") if "_static" not in path.parts}
    assert pages - set(linked) == {"index.html", "genindex.html", "search.html"}
    assert all(f"## {part}" in text for part in llms.PARTS)


def test_the_site_needs_no_network(site: Path) -> None:
    loaded = re.compile(r"""<(?:script|img|iframe)[^>]+src=["']https?:|<link[^>]+rel=["']stylesheet["'][^>]+https?:""")
    assert [str(path) for path in site.rglob("*.html") if loaded.search(path.read_text())] == []


#: Of all texts on the page, those with too little contrast to what is behind them.
PALE = """(least) => {
  const numbers = colour => (colour.match(/[\\d.]+/g) || []).map(Number);
  const light = ([r, g, b]) => [r, g, b].map(v => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = element => {
    for (let e = element; e; e = e.parentElement) {
      const [r, g, b, a = 1] = numbers(getComputedStyle(e).backgroundColor);
      if (a > 0.95) return [r, g, b];
    }
    return [255, 255, 255];
  };
  const found = [];
  for (const e of document.querySelectorAll('article p, article li, article td, article dt, article h1, article h2')) {
    if (!e.innerText || !e.innerText.trim() || !e.offsetParent || e.closest('.output, .highlight')) continue;
    const [a, b] = [light(numbers(getComputedStyle(e).color)), light(behind(e))].sort((x, y) => y - x);
    if ((a + 0.05) / (b + 0.05) < least) found.push(e.innerText.slice(0, 60));
  }
  return found;
}"""


@pytest.mark.parametrize("width", [1400, 400])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_can_be_read(browser: Browser, site: Path, scheme: Any, width: int) -> None:
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page = context.new_page()
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: said.append(request.url) if request.url.startswith("http") else None)
    page.route("http*://**", lambda route: route.abort())
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    try:
        for name in PAGES:
            page.goto((site / name).as_uri())
            page.wait_for_load_state()
            short = name.removesuffix(".html").replace("/", "-")
            page.screenshot(path=SCREENSHOTS / f"docs-{short}-{scheme}-{width}.png")
            assert page.locator("h1").first.is_visible(), name
            assert page.evaluate("document.documentElement.dataset.theme") == scheme, name
            wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
            assert wide <= 0, name
            page.mouse.move(width / 2, 450)
            page.mouse.wheel(200, 0)
            assert page.evaluate("window.scrollX") == 0, name
            sizes = page.evaluate("[...document.querySelectorAll('article p')].map(e => getComputedStyle(e).fontSize)")
            assert min(float(size.removesuffix("px")) for size in sizes) >= 12, name
            assert page.evaluate(PALE, CONTRAST) == [], name
            assert said == [], name
    finally:
        context.close()
