"""A snapshot in each of its forms: self-contained HTML, text, and a figure."""

from __future__ import annotations

import base64
import io
import re
from typing import Any

import matplotlib
import numpy as np
import PIL.Image
import pytest
from reports import EVIL, Document

from xpulab.explorer.picture import LIGHT, PALETTE, Picture
from xpulab.explorer.snapshot import Snapshot
from xpulab.report.rendering import escape

matplotlib.use("Agg")


def snapshot(
    k: int = 3, turns: int = 2, elbows: int = 5, names: tuple[str, str] = ("width", "height"), **changes: Any
) -> Snapshot:
    counts = np.zeros((k, 30, 40), np.int32)
    counts[np.arange(k), np.arange(k), np.arange(k)] = np.arange(1, k + 1)
    values: dict[str, Any] = {
        "picture": Picture(counts, names, (0.0, -1.0), (4.0, 2.0)),
        "k": k,
        "points": 1000,
        "n_samples": 1000,
        "n_features": 5,
        "random_state": 7,
        "trails": np.linspace([0.5, -0.5], [2.0, 0.5], (turns + 1) * k).reshape(turns + 1, k, 2),
        "inertias": tuple(100.0 / (turn + 1) for turn in range(turns + 1)),
        "elbows": {n: 50.0 / n for n in range(1, elbows + 1)},
        "converged": False,
    }
    return Snapshot(**{**values, **changes})


def test_the_line_describes_the_snapshot() -> None:
    assert snapshot().line() == "k-means of 1,000 rows x 5, k=3, start 7: 2 iterations, inertia 33.3333"
    assert snapshot(turns=1, n_samples=9000, converged=True).line() == (
        "k-means of 1,000 of 9,000 rows x 5, k=3, start 7: 1 iteration, converged, inertia 50"
    )


def test_the_html_holds_the_image_the_centres_and_the_curves() -> None:
    document = Document(snapshot()._repr_html_())
    (image,) = document.attributes("image")
    assert base64.b64decode(str(image["href"]).removeprefix("data:image/png;base64,")) == snapshot().png
    centers = [each for each in document.attributes("g") if each.get("class") == "xpu-center"]
    assert [each["data-center"] for each in centers] == ["0", "1", "2"]
    # (2, 0.5) is in the middle of the picture.
    assert centers[2]["transform"] == f"translate({60 + 20:.1f},{10 + 15:.1f})"
    assert len([each for each in document.attributes("polyline") if each.get("class") == "xpu-trail"]) == 3
    labels = [each.get("aria-label") for each in document.attributes("svg") if each.get("role") == "img"]
    assert labels == [
        "k-means of 1,000 rows x 5, k=3, start 7: 2 iterations, inertia 33.3333. Across: width, up: height.",
        "Inertia by iteration: 0: 100, 1: 50, 2: 33.3",
        "Inertia by number of clusters: 1: 50, 2: 25, 3: 16.7, 4: 12.5, 5: 10",
    ]
    for text in ("Centres", "rows in view", "width", "height"):
        assert text in document.text


def test_a_number_goes_with_each_colour() -> None:
    html = snapshot(k=14)._repr_html_()
    document = Document(html)
    for j in range(14):
        assert f">{j}</text>" in html
    keys = [each["style"] for each in document.attributes("i")]
    assert keys == [f"--xpu-hue:{colour}" for colour in snapshot(k=14).picture.colours]
    twelve = [each["style"] for each in Document(snapshot(k=12)._repr_html_()).attributes("i")]
    assert twelve == [f"--xpu-hue:{colour}" for colour in PALETTE]


def test_front_ends_without_styles_and_svg_show_a_png() -> None:
    """JupyterLab removes style sheets and SVG from an output that is not trusted, and keeps ``hidden`` and images."""
    shown = snapshot(turns=4)
    document = Document(shown._repr_html_())
    (picture, *_) = [each for each in document.attributes("div") if "xpu-drawn" in str(each.get("class"))]
    assert picture["hidden"] == "hidden"  # without a value, JupyterLab would remove the attribute, too
    (image,) = document.attributes("img")
    png = base64.b64decode(str(image["src"]).removeprefix("data:image/png;base64,"))
    assert png == shown.image()
    assert image["alt"] == f"{shown.line()}. Across: width, up: height."
    pixels = np.asarray(PIL.Image.open(io.BytesIO(png)).convert("RGB")).astype(int)
    assert pixels.shape == (10 + 30 + 40, 60 + 40 + 12, 3)
    # The last centre, (2, 0.5), is in the middle of the picture, in its colour; the rows of the first are lower left.
    colour = LIGHT.shown(np.array([*bytes.fromhex(PALETTE[2][1:]), 255]))[:3].astype(int)
    assert np.abs(pixels[10 + 15 - 7, 60 + 20] - colour).max() < 24
    assert "inertia by number of clusters: 1: 50, 2: 25" in document.text


def test_the_axis_of_the_elbow_has_numbers() -> None:
    assert all(f'text-anchor="middle">{k}</text>' in snapshot(elbows=12)._repr_html_() for k in range(1, 13))
    many = snapshot(turns=40, elbows=0)._repr_html_()
    assert [each for each in range(41) if f'y="146" text-anchor="middle">{each}</text>' in many] == list(
        range(0, 41, 4)
    )


@pytest.mark.parametrize("turns", [4, 40])
def test_the_ends_of_the_axis_of_a_quantity_that_barely_changes_differ(turns: int) -> None:
    bounds = tuple(-3.25 + 1e-11 * turn for turn in range(turns + 1))
    html = snapshot(turns=turns, inertias=bounds, elbows=0, method="Gaussian mixture", measure="lower bound").html()
    high, low = re.findall(r'text-anchor="end">([^<]*)</text>', html)[-2:]
    assert (low, high) == ("-3.25", f"{-3.25 + 1e-11 * turns:.12g}".rstrip("0"))
    (label,) = [each for each in Document(html).attributes("svg") if "by iteration" in str(each.get("aria-label"))]
    assert high in str(label["aria-label"])
    same = snapshot(turns=2, inertias=(5.0, 5.0, 5.0), elbows=0).html()
    assert re.findall(r'y="\d+" text-anchor="end">([^<]*)</text>', same)[-1:] == ["5"]
    assert same.count('text-anchor="end">5</text>') == 1


def test_before_the_first_iteration_there_are_no_trails_and_no_curve() -> None:
    document = Document(snapshot(turns=0, elbows=1)._repr_html_())
    assert not [each for each in document.attributes("polyline") if each.get("class") == "xpu-trail"]
    assert len([each for each in document.attributes("svg") if each.get("role") == "img"]) == 1


def test_a_centre_outside_of_the_picture_is_drawn_at_its_edge() -> None:
    html = snapshot(k=1, turns=0, trails=np.array([[[99.0, -99.0]]]))._repr_html_()
    assert f'transform="translate({60 + 40:.1f},{10 + 30:.1f})"' in html


def test_names_from_data_are_escaped() -> None:
    shown = snapshot(names=(EVIL, "y"))
    html = shown._repr_html_()
    assert "<script" not in html
    assert escape("<script>alert('x')</script>") in html
    assert "\x1b" not in html + str(shown)
    Document(html)


def test_the_text_has_the_same_numbers() -> None:
    lines = str(snapshot()).splitlines()
    assert lines[0] == snapshot().line()
    assert lines[1].split() == ["cluster", "width", "height", "rows", "in", "view"]
    assert lines[4].split() == ["2", "2", "0.5", "3"]
    assert lines[-1] == "  inertia by number of clusters: 1: 50, 2: 25, 3: 16.67, 4: 12.5, 5: 10"
    assert len(str(snapshot(elbows=0)).splitlines()) == len(lines) - 1


def test_a_front_end_gets_html_and_text() -> None:
    assert set(snapshot()._repr_mimebundle_()) == {"text/html", "text/plain"}


@pytest.mark.parametrize("turns", [0, 4])
def test_the_figure_shows_rows_centres_and_curves(turns: int) -> None:
    figure = snapshot(turns=turns).plot()
    rows, inertia, elbow = figure.axes
    assert [text.get_text() for text in rows.texts] == ["0", "1", "2"]
    assert rows.get_xlim() == (0, 4)
    assert rows.get_ylim() == (-1, 2)
    seen = np.asarray(rows.images[0].get_array())
    light = np.where(seen <= 0.04045, seen / 12.92, ((seen + 0.055) / 1.055) ** 2.4) @ (0.2126, 0.7152, 0.0722)
    assert np.isclose(light, 1).any()  # the ground
    assert (1.05 / (light[~np.isclose(light, 1)] + 0.05)).min() >= 3
    np.testing.assert_array_equal(inertia.lines[0].get_ydata(), snapshot(turns=turns).inertias)
    np.testing.assert_array_equal(elbow.lines[0].get_xdata(), range(1, 6))
    again = snapshot().plot(figure.axes)
    assert again is figure
    matplotlib.pyplot.close(figure)
