"""The notebooks as a reader without a kernel sees them. nbval checks the outputs."""

from __future__ import annotations

import importlib.util
import re
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
import pytest
from exercises import solutions_of
from headings import digest, headings_of
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from packaging.requirements import Requirement
from sklearn.cluster import KMeans

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))
WIDGET = "application/vnd.jupyter.widget-view+json"


@pytest.fixture(params=NOTEBOOKS, ids=lambda path: path.name)
def cells(request: pytest.FixtureRequest) -> list[Any]:
    """The code cells of a notebook."""
    notebook = nbformat.read(request.param, as_version=4)
    nbformat.validate(notebook)
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


@pytest.fixture(params=NOTEBOOKS, ids=lambda path: path.name)
def path(request: pytest.FixtureRequest) -> Path:
    return request.param


@pytest.fixture
def notebook(path: Path) -> Any:
    return nbformat.read(path, as_version=4)


def test_a_notebook_has_exercises_before_its_engines_stop(notebook: Any) -> None:
    """Each exercise asks for a prediction, and has a folded solution in Python."""
    (place,) = (i for i, cell in enumerate(notebook.cells) if cell.source.startswith("## Exercises"))
    after = [cell.source for cell in notebook.cells[place:] if cell.cell_type == "code"]
    assert after[-1] in ("%xpu_cluster stop", "%xpu_cluster status")  # solutions need the cluster before it stops
    text = notebook.cells[place].source
    exercises = re.split(r"\n\*\*\d\.\*\* ", text)[1:]
    assert len(exercises) >= 2
    for exercise in exercises:
        assert "redict" in exercise.partition("<details>")[0]
        assert exercise.count("<details><summary>Solution</summary>\n\n") == exercise.count("</details>") == 1
    assert solutions_of(notebook)


def test_every_pattern_of_communication_has_a_diagram() -> None:
    (path,) = (path for path in NOTEBOOKS if path.name.startswith("04"))
    sources = [cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "markdown"]
    patterns = ("Point to point", "Broadcast", "Scatter", "Gather", "Reduce", "Allreduce")
    for pattern in patterns:
        (source,) = (each for each in sources if each.startswith(f"## {pattern}"))
        assert "►" in source
    assert any("allgather  " in source and "alltoall" in source and "►" in source for source in sources)


def test_the_number_of_islands_without_a_centre_is_that_of_the_text() -> None:
    """By scikit-learn's k-means three islands lack a centre: one has two, and one is between two further islands."""
    (path,) = (path for path in NOTEBOOKS if path.name.startswith("02"))
    cells = nbformat.read(path, as_version=4).cells
    code = next(cell.source for cell in cells if cell.source.startswith("import numpy as np"))
    space: dict[str, Any] = {}
    exec(code.replace("%config", "#"), space)
    start = np.array([(-9 + 0.5 * j, -7) for j in range(6)], np.float32)
    centers = KMeans(6, init=start, n_init=1).fit(space["X"]).cluster_centers_
    away = np.linalg.norm(space["islands"][:, np.newaxis] - centers, axis=2)
    assert (away.min(axis=1) > 0.2).sum() == 3
    assert sorted((away < 1).sum(axis=1)) == [0, 0, 1, 1, 1, 2]
    said = "".join(str(cell.get("outputs", "")) for cell in cells)
    assert "islands without a centre in their middle: 3" in said
    assert any("Three islands have no centre" in cell.source for cell in cells)


def test_there_are_notebooks() -> None:
    assert NOTEBOOKS


def test_outputs_are_of_a_build_whose_views_had_these_headings(notebook: Any) -> None:
    assert notebook.metadata.get("xpulab", {}).get("headings") == digest(), (
        "views have other headings than the outputs of this notebook: run it again (see CONTRIBUTING.md), and type: "
        ".venv/bin/python tests/support/headings.py notebooks/*.ipynb"
    )


def test_a_new_heading_asks_for_a_new_run_and_a_new_number_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    from xpulab.report import html

    before = digest()
    assert digest() == before
    assert headings_of('<th scope="col" class="xpu-r">time <i></i>(ms)</th><td>12 ms</td>') == ["time (ms)"]
    monkeypatch.setattr(html, "_folded", lambda title, content: f"<details><summary>{title}!</summary></details>")
    assert digest() != before


@pytest.mark.slow
def test_without_pytorch_the_notebook_about_it_ends_in_its_first_cell_and_says_what_to_install() -> None:
    if all(importlib.util.find_spec(name) for name in ("torch", "skorch")):
        pytest.skip("PyTorch and skorch are installed")
    notebook = nbformat.read(next(path for path in NOTEBOOKS if path.name.startswith("10")), as_version=4)
    with pytest.raises(CellExecutionError):
        NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    (error,) = [output for output in outputs if output.output_type == "error"]
    said = "\n".join(error.traceback).split("\n")
    assert len(said) <= 5
    assert said[0] == "line 1: from xpulab.torch import NeuralNetClassifier"
    assert 'pip install "xpulab[torch]"' in said[1]


@pytest.mark.parametrize("word", ["work-item", "selector", "tile"])
def test_a_word_of_the_field_is_explained_where_a_reader_first_meets_it(notebook: Any, word: str) -> None:
    """In the sentence of its first use in a notebook that is read alone; the explanation says what it is."""
    told = {"work-item": r"\*work-item\*", "selector": "(?i)name|driver|host", "tile": "(?i)half|halves"}[word]
    texts = [cell.source for cell in notebook.cells if cell.cell_type == "markdown"]
    first = next((text for text in texts if re.search(rf"\b{word}s?\b", text, re.IGNORECASE)), None)
    if first is not None:
        at = re.search(rf"\b{word}s?\b", first, re.IGNORECASE)
        assert at is not None
        assert re.search(told, first[max(0, at.start() - 120) : at.end() + 120])


def test_no_state_of_widgets_is_kept(notebook: Any) -> None:
    """With this state, a reader without a kernel would see useless controls instead of the picture."""
    assert "widgets" not in notebook.metadata


def test_cells_were_run_in_order_in_a_fresh_kernel(cells: list[Any]) -> None:
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))


@pytest.mark.slow
def test_what_cells_import_comes_with_the_notebook_extra(cells: list[Any]) -> None:
    """The environment of binder/ has `xpulab[notebook]`. A notebook about PyTorch says what it needs besides."""
    requirements = [Requirement(line) for line in metadata.requires("xpulab") or []]
    there = {
        requirement.name
        for requirement in requirements
        if not (requirement.marker and "extra" in str(requirement.marker))
        or requirement.marker.evaluate({"extra": "notebook"})
    }
    source = "\n".join(cell.source for cell in cells)
    # The script in notebook 08 names sklearnex, which is replaced before it runs; scikit-learn brings joblib and SciPy.
    ours = {"xpulab", "sklearnex", "joblib", "scipy"}
    if "xpulab.torch" in source:
        ours |= {"torch", "skorch"}
    modules = {*re.findall(r"^\s*(?:from|import) (\w+)", source, re.M)} - {*sys.stdlib_module_names, *ours}
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
    assert any("finished" in view and (not fits or "KMeans.fit" in view) for view in views)
    assert [view for view in views if "<script" in view or "running for" in view] == []
    # The standing picture of the explorer is the next output.
    pairs = zip(bundles, [*bundles[1:], {}], strict=True)
    assert all("text/html" in bundle or "text/html" in after for bundle, after in pairs if WIDGET in bundle)
    assert all(bundle["text/plain"].strip() for bundle in bundles)


def test_no_output_shows_a_folder_of_the_machine_that_ran_the_notebook(cells: list[Any]) -> None:
    text = str([cell.outputs for cell in cells])
    assert str(Path.home()) + "/" not in text
    assert "/tmp/" not in text


def test_the_documents_name_every_notebook_and_show_existing_pictures() -> None:
    root = NOTEBOOKS[0].parents[1]
    tour = (root / "docs" / "guide" / "notebooks.md").read_text(encoding="utf-8")
    assert [path.name for path in NOTEBOOKS if f"(../../notebooks/{path.name})" not in tour] == []
    pages = [root / "README.md", *(root / "docs" / "start").glob("*.md"), *(root / "docs" / "guide").glob("*.md")]
    text = "".join(path.read_text(encoding="utf-8") for path in pages)
    shown = set(re.findall(r"\((?:\.\./)*(notebooks/images/[^)]+)\)", text))
    assert shown == {f"notebooks/images/{path.name}" for path in (root / "notebooks" / "images").iterdir()}
