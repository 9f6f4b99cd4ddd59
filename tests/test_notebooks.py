"""What a reader of a notebook finds without a kernel. Whether the outputs are right, nbval finds out."""

from __future__ import annotations

import re
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import nbformat
import pytest
from packaging.requirements import Requirement

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))
WIDGET = "application/vnd.jupyter.widget-view+json"


@pytest.fixture(params=NOTEBOOKS, ids=lambda path: path.name)
def cells(request: pytest.FixtureRequest) -> list[Any]:
    """The code cells of a notebook."""
    notebook = nbformat.read(request.param, as_version=4)
    nbformat.validate(notebook)
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def test_there_are_notebooks() -> None:
    assert NOTEBOOKS


def test_cells_were_run_in_order_in_a_fresh_kernel(cells: list[Any]) -> None:
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))


def test_what_cells_import_comes_with_the_notebook_extra(cells: list[Any]) -> None:
    """The environment of binder/ has `xpulab[notebook]` and nothing more."""
    requirements = [Requirement(line) for line in metadata.requires("xpulab") or []]
    there = {
        requirement.name
        for requirement in requirements
        if not (requirement.marker and "extra" in str(requirement.marker))
        or requirement.marker.evaluate({"extra": "notebook"})
    }
    source = "\n".join(cell.source for cell in cells)
    modules = {*re.findall(r"^\s*(?:from|import) (\w+)", source, re.M)} - {*sys.stdlib_module_names, "xpulab"}
    providers = metadata.packages_distributions()
    assert {module: providers.get(module) for module in modules if not there & {*providers.get(module, [])}} == {}


def test_outputs_hold_no_error_and_nothing_on_standard_error(cells: list[Any]) -> None:
    outputs = [output for cell in cells for output in cell.outputs]
    assert outputs
    assert [output for output in outputs if output.output_type == "error" or output.get("name") == "stderr"] == []


def test_every_view_reads_without_a_kernel(cells: list[Any]) -> None:
    bundles = [output.data for cell in cells for output in cell.outputs if "data" in output]
    views = [bundle["text/html"] for bundle in bundles if "text/html" in bundle]
    fits = any("KMeans" in cell.source and ".fit(" in cell.source for cell in cells)
    assert any(("KMeans.fit: finished" if fits else "finished") in view for view in views)
    assert [view for view in views if "<script" in view or "running for" in view] == []
    # The explorer's is the output that follows.
    pairs = zip(bundles, [*bundles[1:], {}], strict=True)
    assert all("text/html" in bundle or "text/html" in after for bundle, after in pairs if WIDGET in bundle)
    assert all(bundle["text/plain"].strip() for bundle in bundles)


def test_no_folder_of_the_machine_that_ran_it_is_shown(cells: list[Any]) -> None:
    text = str([cell.outputs for cell in cells])
    assert str(Path.home()) + "/" not in text
    assert "/tmp/" not in text


def test_the_readme_names_every_notebook_and_shows_pictures_that_there_are() -> None:
    root = NOTEBOOKS[0].parents[1]
    text = (root / "README.md").read_text(encoding="utf-8")
    assert [path.name for path in NOTEBOOKS if f"(notebooks/{path.name})" not in text] == []
    shown = set(re.findall(r"\((notebooks/images/[^)]+)\)", text))
    assert shown == {f"notebooks/images/{path.name}" for path in (root / "notebooks" / "images").iterdir()}
