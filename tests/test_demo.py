"""The demo: its comparison with scikit-learn, its pictures, and its verdict."""

from __future__ import annotations

import base64
import io
import re
import sys
from types import SimpleNamespace
from typing import Any

import matplotlib.image
import numpy as np
import pytest
from reports import Document, report

import xpulab
from xpulab import demo
from xpulab.demo import Demo, engines_of_demo, photograph, quantise
from xpulab.exceptions import XpulabError


def found(**changes: Any) -> Demo:
    values: dict[str, Any] = {
        "report": report(dtype="float64"),
        "before": np.zeros((2, 3, 3)),
        "after": np.ones((2, 3, 3)),
        "n_clusters": 8,
        "inertia": (1.0, 1.0),
        "seconds": (3.5, 1.5, 2.0),
        "n_iter": (3, 3),
        "same_labels": 1.0,
    }
    return Demo(**{**values, **changes})


@pytest.mark.parametrize(
    ("dtype", "other", "agrees"),
    [("float64", 1 + 1e-6, True), ("float64", 1 + 1e-4, False), ("float32", 1 + 1e-4, True), ("float32", 1.01, False)],
)
def test_the_verdict_depends_on_the_inertia_and_the_dtype(dtype: str, other: float, agrees: bool) -> None:
    one = found(report=report(dtype=dtype), inertia=(1.0, other))
    assert one.agrees is agrees
    assert f"The results {'agree' if agrees else 'DISAGREE'}: " in str(one)
    assert one.verdict in one._repr_html_()


def test_both_fits_are_listed_beside_scikit_learn() -> None:
    seconds = re.findall(r"(?:included|ready|process) +([\d.]+) s ", str(found()))
    assert seconds == ["3.5", "1.5", "2"]


def test_both_pictures_are_in_the_page_itself(tmp_path: Any) -> None:
    found().write(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    images = Document(page).attributes("img")
    assert [image["alt"] for image in images] == ["china.jpg as it is", "the same in 8 colours"]
    for image, value in zip(images, (0, 1), strict=True):
        kind, _, content = str(image["src"]).partition(",")
        assert kind == "data:image/png;base64"
        pixels = matplotlib.image.imread(io.BytesIO(base64.b64decode(content)), format="png")
        assert pixels.shape[:2] == (2, 3)
        assert (pixels[..., :3] == value).all()
    assert not re.search(r"https?:|url\(|@import|<script", page)


def test_without_pillow_the_error_says_what_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(XpulabError, match=r"without Pillow; type: .* -m pip install pillow"):
        photograph()


@pytest.mark.cluster
def test_the_photograph_in_eight_colours(pair: xpulab.XPUCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    pair.activate()
    image = photograph()
    assert image.shape == (427, 640, 3)
    one = quantise(image, 8, rows=5000)
    assert one.agrees
    assert one.report.n_samples == 5000
    assert one.after.shape == image.shape
    assert len(np.unique(one.after.reshape(-1, 3), axis=0)) == 8
    assert np.abs(one.after - image).mean() < 0.1
    again = quantise(image, 8, rows=5000)
    assert again.inertia == one.inertia
    monkeypatch.setattr(demo, "TOLERANCES", {"float64": -1.0})
    assert not one.agrees


@pytest.mark.parametrize(
    ("ranks", "engines"),
    [(["cpu 0-1"], 2), (["cpu 0-15"], 4), (["cpu 3-3"], 1), (["gpu 0-7"], 1), (["gpu 0-3", "gpu 4-7"], 2)],
)
def test_the_demo_has_an_engine_for_each_gpu_or_core(ranks: list[str], engines: int) -> None:
    placed = []
    for kind, cores in map(str.split, ranks):
        first, last = map(int, cores.split("-"))
        placed.append(SimpleNamespace(device=SimpleNamespace(kind=kind), cores=range(first, last + 1)))
    plan: Any = SimpleNamespace(ranks=placed)
    assert engines_of_demo(plan) == engines


def test_the_pictures_come_first_and_the_report_is_folded() -> None:
    page = found()._repr_html_()
    assert (
        page.index("<figure") < page.index("<table") < page.index("To go on") < page.index("<details><summary>The rep")
    )
