"""The picture in the guide is the figure of notebook 11."""

from __future__ import annotations

import base64
from pathlib import Path

import nbformat

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"


def test_the_picture_is_that_of_the_notebook() -> None:
    cells = nbformat.read(NOTEBOOKS / "11_a_colleagues_notebook.ipynb", as_version=4).cells
    outputs = [output.get("data", {}) for cell in cells for output in cell.get("outputs", [])]
    (figure,) = (data["image/png"] for data in outputs if "image/png" in data)
    assert (NOTEBOOKS / "images" / "accel.png").read_bytes() == base64.b64decode(figure)
    analyses = [cell.source for cell in cells if cell.source.startswith("begun = time.perf_counter()")]
    assert len(analyses) == 2
    assert analyses[0] == analyses[1]
    assert "xpulab" not in analyses[0]
