"""What a user sees of the explorer in a light and a dark theme: points, slider tracks, and names of features."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from jupyter_server_process import SCREENSHOTS
from PIL import Image

import xpulab.explorer
from xpulab.explorer.counting import LARGEST
from xpulab.explorer.density import DensitySnapshot
from xpulab.explorer.picture import PALETTE, DensityPicture, Picture
from xpulab.explorer.snapshot import Snapshot
from xpulab.report.curves import small_curve
from xpulab.report.rendering import style

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.slow

_DARK = "#111111"
NAME = "petal length of the flower (cm)"


@pytest.fixture(scope="module")
def page(browser: Browser) -> Iterator[Page]:
    page = browser.new_page(viewport={"width": 1100, "height": 900})
    yield page
    page.close()


def luminance(pixels: np.ndarray) -> np.ndarray:
    parts = pixels[..., :3] / 255
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    return np.asarray(linear @ (0.2126, 0.7152, 0.0722))


#: What a front end says of its theme, and the ground of its page. Colab and static pages say nothing that is known.
THEMES = pytest.mark.parametrize(
    ("theme", "ground"),
    [
        ("data-jp-theme-light='false'", _DARK),
        ("data-jp-theme-light='true'", "#ffffff"),
        ("", "#383838"),
        ("", "#ffffff"),
    ],
    ids=["dark", "light", "unknown dark", "unknown light"],
)


@THEMES
@pytest.mark.parametrize("full", [True, False], ids=["a dense picture", "few points"])
def test_points_are_visible_in_each_theme(page: Page, full: bool, theme: str, ground: str) -> None:
    """Each cluster is a stripe of the picture, with one row in each pixel, the faintest that there is, or many."""
    k = len(PALETTE)
    counts = np.zeros((k, 384, 512), np.int32)
    for j in range(k):
        stripe = counts[j, 32 * j : 32 * j + 32]
        stripe[4:28, 20:-20] = 1 if full else 0
        stripe[16, 40::40] = 1000
    trails = np.full((1, k, 2), -9.0)  # centres are out of the way, in a corner
    shown = Snapshot(Picture(counts, ("a", "b"), (0.0, 0.0), (1.0, 1.0)), 99, 99, 2, k, 0, trails, (1.0,), {}, False)
    page.set_content(f"<html><body {theme} style='background:{ground}'>{shown._repr_html_()}</body></html>")
    image = page.locator("svg.xpu-plot image")
    box = image.bounding_box()
    assert box is not None
    taken: Any = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    size = box["height"] / 384
    behind = float(luminance(np.array([int((ground if theme else "#ffffff")[1:3], 16)] * 3, float)))
    inside = np.array(taken.getpixel((int(box["x"] + 5 * size), int(box["y"] + 3 * size))), float)
    assert float(luminance(inside)) == pytest.approx(behind)  # the ground between the points
    for j in range(k):
        # The middle of a stripe, or of a point: pixels at the edge of a shape are mixed with the ground.
        y = box["y"] + box["height"] - (32 * j + 16.5) * size
        x = box["x"] + (81.5 if full else 80.5) * size + (10 * size if full else 0)
        seen = float(luminance(np.array(taken.getpixel((int(x), int(y))), float)))
        assert (max(seen, behind) + 0.05) / (min(seen, behind) + 0.05) >= 3, (j, PALETTE[j])


@THEMES
def test_keys_and_centres_are_visible_in_each_theme(page: Page, theme: str, ground: str) -> None:
    """Where the theme is not known, a ring of a light ground is around a key, as around a centre."""
    k = len(PALETTE)
    trails = np.column_stack([np.linspace(0.1, 0.9, k), np.full(k, 0.5)])[None]
    counts = np.zeros((k, 384, 512), np.int32)
    shown = Snapshot(Picture(counts, ("a", "b"), (0.0, 0.0), (1.0, 1.0)), 99, 99, 2, k, 0, trails, (1.0,), {}, False)
    html = shown._repr_html_().replace("<details>", "<details open>")
    page.set_content(f"<html><body {theme} style='background:{ground};color:#888'>{html}</body></html>")
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    file = SCREENSHOTS / f"explorer-colours-{'known' if theme else 'unknown'}-{ground[1:]}.png"
    taken: Any = Image.open(io.BytesIO(page.screenshot(path=file, full_page=True))).convert("RGB")
    behind = float(luminance(np.array([int((ground if theme else "#ffffff")[1:3], 16)] * 3, float))) + 0.05
    for what in ("i.xpu-hue", ".xpu-center .xpu-hue"):
        found = page.locator(what)
        assert found.count() == k
        for each in found.all():
            box = each.bounding_box()
            assert box is not None
            middle = int(box["y"] + box["height"] / 2)
            pixel = taken.getpixel((int(box["x"] + box["width"] / 4), middle))
            seen = float(luminance(np.array(pixel, float)))
            around = taken.getpixel((int(box["x"] - 1.5), middle))
            beside = float(luminance(np.array(around, float))) + 0.05
            if what == "i.xpu-hue":
                assert beside == pytest.approx(behind, rel=0.05)
            assert max(seen + 0.05, behind) / min(seen + 0.05, behind) >= 3


@THEMES
def test_cores_borders_and_noise_differ_and_are_visible(page: Page, theme: str, ground: str) -> None:
    """Each kind of row is a stripe of the picture; noise is the last one."""
    kinds = 2 * (LARGEST + 1) + 1
    counts = np.zeros((kinds, 384, 512), np.int32)
    for kind in range(kinds):
        counts[kind, 15 * kind : 15 * kind + 15] = 1
    picture = DensityPicture(counts, ("a", "b"), (0.0, 0.0), (1.0, 1.0))
    shown = DensitySnapshot(picture, 99, 99, 2)
    page.set_content(f"<html><body {theme} style='background:{ground}'>{shown._repr_html_()}</body></html>")
    box = page.locator("svg.xpu-plot image").bounding_box()
    assert box is not None
    taken: Any = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    size = box["height"] / 384
    seen = np.array(
        [
            taken.getpixel((int(box["x"] + 100 * size), int(box["y"] + box["height"] - (15 * kind + 7.5) * size)))
            for kind in range(kinds)
        ],
        float,
    )
    light = luminance(seen) + 0.05
    behind = float(luminance(np.array([int((ground if theme else "#ffffff")[1:3], 16)] * 3, float))) + 0.05
    contrast = np.maximum(light, behind) / np.minimum(light, behind)
    assert contrast.min() >= 3
    cores, borders = seen[: LARGEST + 1], seen[LARGEST + 1 : -1]
    assert np.abs(cores - borders).max(axis=1).min() > 25
    assert np.abs(seen[:-1] - seen[-1]).max(axis=1).min() > 10


@pytest.mark.parametrize("step", [0.5, 1e-11])
def test_the_numbers_of_an_axis_are_within_the_chart(page: Page, step: float) -> None:
    chart = small_curve("Lower bound by iteration", [(n, -3.25 + step * n) for n in range(9)])
    page.set_content(
        f"<style>{style('base')}{style('explorer')}</style><div class='xpu' style='width:300px'>{chart}</div>"
    )
    frame, axis = page.locator("svg").bounding_box(), page.locator("svg path").bounding_box()
    assert frame is not None
    assert axis is not None
    for text in page.locator("svg text[text-anchor=end]").all():
        box = text.bounding_box()
        assert box is not None
        assert frame["x"] <= box["x"] <= box["x"] + box["width"] < axis["x"]


@pytest.fixture
def explorer(page: Page) -> Page:
    """A new page with an explorer of two features, the first of which is called `NAME`; `asked` has its requests."""
    page.goto("about:blank")
    script = (
        Path(xpulab.explorer.__file__).with_name("explore.js").read_text().replace("export default", "window.view =")
    )
    page.set_content(
        f"<html><body data-jp-theme-light='false' style='background:{_DARK};color:#eee'><main></main></body></html>"
    )
    page.add_script_tag(content=script)
    trails = np.zeros((1, 2, 2))
    counts = np.ones((2, 384, 512), np.int32)
    shown = Snapshot(Picture(counts, (NAME, "b"), (0.0, 0.0), (1.0, 1.0)), 99, 99, 2, 2, 0, trails, (1.0,), {}, False)
    state: dict[str, Any] = {
        "html": shown.body(image="") + shown.table(),
        "centers": [[0, 0], [0, 0]],
        "line": "",
        "message": "",
    }
    state |= {"k": 2, "points": 99, "x": 0, "y": 1, "pace": 4, "playing": False, "busy": False, "stopped": False}
    choices: dict[str, Any] = {"names": [NAME, "b"], "points": [99], "clusters": [1, 2, 3], "paces": [4]}
    choices |= {"title": "k-means explorer", "elbow": True, "iterates": True}
    values: dict[str, Any] = {
        "name": "x",
        "css": style("base") + style("explorer") + style("controls"),
        "choices": choices,
    }
    page.evaluate(
        """values => {
            const send = ({name, value}) => window.asked.push([name, value]);
            const on = (name, hear) => (window.heard[name] = hear);
            const model = {get: name => values[name], on, off: () => null, send};
            [window.asked, window.heard, window.values] = [[], {}, values];
            values.png = new Uint8Array();
            window.view.render({model, el: document.querySelector("main")});
        }""",
        {**values, "state": state},
    )
    page.locator("svg.xpu-plot").wait_for(state="attached")
    return page


def places(page: Page, *wanted: tuple[float, float]) -> list[tuple[float, float]]:
    """Return where places of the plane, from 0 to 1, are on the page. The picture is 512 x 384 pixels from (60, 10)."""
    return [
        tuple(place)
        for place in page.evaluate(
            """wanted => wanted.map(([x, y]) => {
                const plot = document.querySelector("svg.xpu-plot");
                const place = new DOMPoint(60 + 512 * x, 10 + 384 * (1 - y)).matrixTransform(plot.getScreenCTM());
                return [place.x, place.y];
            })""",
            wanted,
        )
    ]


def asked(page: Page, n: int, rows: bool = False) -> Any:
    """Wait until there are `n` requests for rows, or other requests, and return them."""
    of_kind = f"window.asked.filter(([name]) => (name === 'row') === {str(rows).lower()})"
    page.wait_for_function(f"() => {of_kind}.length >= {n}")
    page.wait_for_timeout(50)  # three more frames, in which another one might come
    found = page.evaluate(f"() => {of_kind}")
    assert len(found) == n
    return found


ROW = {
    "title": "Row 1,234 of cluster 1", "hue": PALETTE[1], "values": [[NAME, "0.25"], ["b", "0.5"]], "more": "",
    "x": 0.25, "y": 0.5,
}  # fmt: skip


def test_one_row_is_asked_for_at_a_time_and_the_last_place_is_not_forgotten(explorer: Page) -> None:
    for share in range(10):
        explorer.mouse.move(*places(explorer, (0.1 + 0.02 * share, 0.5))[0])
    ((_, first),) = asked(explorer, 1, rows=True)
    explorer.evaluate("row => window.heard['msg:custom']({row})", ROW)
    _, (_, last) = asked(explorer, 2, rows=True)
    np.testing.assert_allclose([first[1], *last], [0.5, 0.28, 0.5], atol=0.01)
    explorer.evaluate("row => window.heard['msg:custom']({row})", ROW)
    tip = explorer.locator(".xpu-tip")
    assert tip.inner_text().split("\n") == ["Row 1,234 of cluster 1", NAME, "0.25", "b", "0.5"]
    explorer.evaluate("() => window.heard['msg:custom']({row: null})")  # nothing is near
    assert tip.is_hidden()
    explorer.mouse.down()  # a drag asks for no rows
    explorer.mouse.move(*places(explorer, (0.9, 0.5))[0], steps=5)
    explorer.mouse.up()
    asked(explorer, 2, rows=True)


@pytest.mark.parametrize("width", [1400, 700])
@pytest.mark.parametrize("place", [(0.02, 0.98), (0.98, 0.02)])
def test_the_words_about_a_row_are_readable_and_within_the_view(
    explorer: Page, width: int, place: tuple[float, float]
) -> None:
    explorer.set_viewport_size({"width": width, "height": 900})
    explorer.mouse.move(*places(explorer, place)[0])
    asked(explorer, 1, rows=True)
    explorer.evaluate("row => window.heard['msg:custom']({row})", {**ROW, "x": place[0], "y": place[1]})
    tip, stage = explorer.locator(".xpu-tip").bounding_box(), explorer.locator(".xpu-stage").bounding_box()
    assert tip is not None
    assert stage is not None
    assert tip["x"] >= stage["x"]
    assert tip["x"] + tip["width"] <= stage["x"] + stage["width"]
    assert tip["y"] >= stage["y"]
    assert tip["y"] + tip["height"] <= stage["y"] + stage["height"] + 1
    taken: Any = Image.open(io.BytesIO(explorer.screenshot())).convert("RGB")
    box = (tip["x"] + 3, tip["y"] + 3, tip["x"] + tip["width"] - 3, tip["y"] + tip["height"] - 3)
    seen = luminance(np.asarray(taken.crop(tuple(map(int, box))), float))
    assert (seen.max() + 0.05) / (np.median(seen) + 0.05) > 7  # letters on the ground
    # The ring around the row, on the dark page.
    x, y = places(explorer, place)[0]
    around = luminance(np.asarray(taken.crop((int(x) - 9, int(y) - 9, int(x) + 9, int(y) + 9)), float))
    ground = float(luminance(np.array([0x11] * 3, float)))
    assert (around.max() + 0.05) / (ground + 0.05) >= 3
    explorer.set_viewport_size({"width": 1100, "height": 900})


def test_a_new_picture_keeps_the_cross_its_row_and_the_focus(explorer: Page) -> None:
    plot = explorer.locator("svg.xpu-plot")
    plot.focus()
    for key in ("ArrowRight", "Shift+ArrowUp"):
        explorer.keyboard.press(key)
    asked(explorer, 1, rows=True)
    explorer.evaluate("row => window.heard['msg:custom']({row})", ROW)
    _, (_, place) = asked(explorer, 2, rows=True)
    np.testing.assert_allclose(place, [0.52, 0.505], atol=1e-6)
    explorer.evaluate("row => window.heard['msg:custom']({row})", ROW)
    explorer.evaluate("() => { values.state = {...values.state, k: 3}; return window.heard['change:state'](); }")
    asked(explorer, 3, rows=True)  # the row may have another cluster
    assert explorer.evaluate("() => document.activeElement.matches('svg.xpu-plot')")
    assert explorer.locator(".xpu-tip").is_visible()
    assert plot.locator(".xpu-mark").count() == 2
    assert explorer.locator(".xpu-tip").get_attribute("aria-live") == "polite"
    label = plot.get_attribute("aria-label") or ""
    assert label.endswith("Arrow keys show the row that is nearest to a cross.")
    explorer.keyboard.press("Escape")
    assert explorer.locator(".xpu-tip").is_hidden()
    assert plot.locator(".xpu-mark").count() == 0
    assert asked(explorer, 0) == []  # nothing was selected, and so nothing has to end


def test_a_shape_that_is_drawn_is_asked_for_and_escape_asks_for_none(explorer: Page) -> None:
    explorer.get_by_role("button", name="Lasso").click()
    corners = places(explorer, (0.2, 0.2), (0.8, 0.2), (0.5, 0.8))
    explorer.mouse.move(*corners[0])
    explorer.mouse.down()
    for corner in corners[1:]:
        explorer.mouse.move(*corner, steps=10)
    assert explorer.locator("polyline.xpu-lasso").count() == 1
    explorer.mouse.up()
    ((name, shape),) = asked(explorer, 1)
    assert name == "select"
    assert len(shape) == 21
    np.testing.assert_allclose([shape[0], shape[10], shape[20]], [[0.2, 0.2], [0.8, 0.2], [0.5, 0.8]], atol=0.01)
    assert explorer.locator("polyline.xpu-lasso").count() == 0  # the next picture has it
    explorer.evaluate("() => { values.state = {...values.state, selected: true}; }")
    explorer.keyboard.press("Escape")
    assert asked(explorer, 2)[1] == ["select", None]
    explorer.mouse.click(*corners[0])
    assert asked(explorer, 3)[2] == ["select", None]


def test_sliders_follow_the_theme_and_names_are_shown_in_full(explorer: Page) -> None:
    across = explorer.locator("label", has_text="Across")
    output = across.locator("output")
    assert output.inner_text() == NAME
    assert output.evaluate("each => each.scrollWidth <= each.clientWidth")  # nothing is cut off
    track = across.locator("input").bounding_box()
    assert track is not None
    assert track["width"] >= 60
    taken: Any = Image.open(io.BytesIO(explorer.screenshot())).convert("RGB")
    middle = luminance(
        np.array(taken.getpixel((int(track["x"] + track["width"] * 0.7), int(track["y"] + track["height"] / 2))), float)
    )
    ground = float(luminance(np.array([0x11] * 3, float)))
    assert 3 <= (float(middle) + 0.05) / (ground + 0.05) < 12  # a track, and no white bar


def test_a_rectangle_that_is_drawn_with_the_shift_key_is_asked_for(explorer: Page) -> None:
    (left, low), (right, high) = places(explorer, (0.25, 0.5), (0.75, 0.9))
    explorer.keyboard.down("Shift")
    explorer.mouse.move(left, low)
    explorer.mouse.down()
    explorer.mouse.move(right, high)
    assert explorer.locator("rect.xpu-frame").count() == 1
    explorer.mouse.up()
    explorer.keyboard.up("Shift")
    ((name, part),) = asked(explorer, 1)  # no centre was moved
    assert name == "zoom"
    np.testing.assert_allclose(part, [[0.25, 0.75], [0.5, 0.9]], atol=0.01)
    assert explorer.locator("rect.xpu-frame").count() == 0
