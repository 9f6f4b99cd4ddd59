"""Reports as they change, in a notebook and in a terminal."""

from __future__ import annotations

import io
import time
from collections.abc import Iterator
from typing import Any

import pytest
from IPython.core.displaypub import CapturingDisplayPublisher
from IPython.core.interactiveshell import InteractiveShell
from reports import report

from xpulab import widgets
from xpulab.report import progress
from xpulab.report.progress import TaskReport
from xpulab.widgets import NotebookView, NotebookViews, TextView


class ZMQInteractiveShell(InteractiveShell):
    """Stands for a notebook's kernel: what it displays is kept in ``display_pub.outputs``."""


@pytest.fixture
def shell() -> Iterator[Any]:
    from traitlets.config import Config

    InteractiveShell.clear_instance()
    shell = ZMQInteractiveShell.instance(config=Config(HistoryManager={"enabled": False}))
    shell.display_pub = CapturingDisplayPublisher()
    yield shell
    widgets.uninstall()
    ZMQInteractiveShell.clear_instance()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_one_output_is_rewritten_and_ends_as_the_standing_report(shell: Any) -> None:
    running = report(status="running", iterations=0)
    view = NotebookView()
    view.update(running)
    running.iterations = report().iterations
    time.sleep(0.1)  # a redraw of this size is due well before
    view.update(running)
    running.finish()
    view.close(running)
    outputs = shell.display_pub.outputs
    assert [output["update"] for output in outputs] == [False, True, True]
    assert len({output["transient"]["display_id"] for output in outputs}) == 1
    assert outputs[-1]["data"] == {"text/html": running._repr_html_(), "text/plain": str(running)}


def test_the_notebook_view_is_no_widget(shell: Any) -> None:
    # a widget's picture would be lost when the notebook is opened again without its kernel
    NotebookView().close(report())
    assert set(shell.display_pub.outputs[0]["data"]) == {"text/html", "text/plain"}


def test_a_large_report_is_redrawn_less_often_and_its_end_is_shown(shell: Any) -> None:
    large = report(engines=400, status="running")
    view = NotebookView()
    for _ in range(20):
        view.update(large)
    assert len(shell.display_pub.outputs) == 1
    view.close(large)
    assert len(shell.display_pub.outputs) == 2


@pytest.mark.parametrize(("shown", "outputs"), [(report(), 1), (report(method="predict"), 0), (TaskReport("stop"), 0)])
def test_only_a_fit_leaves_a_report_when_it_was_too_quick_to_watch(shell: Any, shown: Any, outputs: int) -> None:
    NotebookView().close(shown)
    assert len(shell.display_pub.outputs) == outputs
    terminal = Terminal()
    TextView(shown, terminal).close(shown)
    assert len(terminal.getvalue().splitlines()) == outputs * len(str(shown).splitlines())


def test_a_loop_of_fits_does_not_fill_the_notebook(shell: Any) -> None:
    views = NotebookViews(shell)
    for _ in range(20):
        views(report()).close(report())
    first_cell = {output["transient"]["display_id"] for output in shell.display_pub.outputs}
    assert len(first_cell) == NotebookViews.OUTPUTS_PER_CELL
    shell.execution_count += 1
    views(report()).close(report())
    assert shell.display_pub.outputs[-1]["transient"]["display_id"] not in first_cell


def test_a_terminal_line_is_rewritten_in_place_within_its_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    running, terminal = report(status="running", message="sending 10 rows"), Terminal()
    running._clock = None  # stands still
    view = TextView(running, terminal)
    view.update(running)
    assert terminal.getvalue() == "\r\x1b[KKMeans.fit  4 s  se"
    running.finish()
    view.close(running)
    assert terminal.getvalue().endswith(f"\r\x1b[K{running}\n")


def test_a_log_file_gets_only_the_end() -> None:
    running, log = report(status="running"), io.StringIO()
    view = TextView(running, log)
    view.update(running)
    running.finish()
    view.close(running)
    assert log.getvalue() == f"{running}\n"


def test_a_notebook_gets_html_outputs(shell: Any) -> None:
    widgets.install(shell)
    outputs = shell.display_pub.outputs
    with progress.open(report(status="running")):
        deadline = time.monotonic() + 10
        while not outputs and time.monotonic() < deadline:
            time.sleep(0.01)
    assert [output["update"] for output in outputs] == [False, *[True] * (len(outputs) - 1)]
    assert "▶" in outputs[0]["data"]["text/html"]
    assert "✓" in outputs[-1]["data"]["text/html"]


def test_any_other_shell_and_none_at_all_get_text(capsys: pytest.CaptureFixture[str]) -> None:
    for other in (None, object()):
        widgets.install(other)  # type: ignore[arg-type]
        with progress.open(report(status="running")) as handle:
            pass
        assert capsys.readouterr().err == f"{handle.report}\n"
    widgets.uninstall()


def test_install_twice_shows_once_and_uninstall_leaves_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    widgets.install()
    widgets.install()
    with progress.open(report(status="running")) as handle:
        pass
    assert capsys.readouterr().err == f"{handle.report}\n"
    widgets.uninstall()
    widgets.uninstall()
    progress.open(report()).close()
    assert capsys.readouterr().err == ""


def test_a_saved_notebook_holds_the_final_report(tmp_path: Any) -> None:
    """In a real kernel: drawing happens in a thread, and the output must belong to the cell."""
    import nbformat
    from nbclient import NotebookClient

    source = (
        "import time\nfrom xpulab import widgets\nfrom xpulab.report import progress\n"
        "from xpulab.report.fit import FitReport, Iteration\n"
        "widgets.install(get_ipython())\n"
        "with progress.open(FitReport('KMeans', 'fit', {'max_iter': 300}, 10, 2, 'float32')) as handle:\n"
        "    for number in range(1, 9):\n"
        "        handle.report.iterations.append(Iteration(number, {'inertia': 1 / number}, seconds=0.1))\n"
        "        handle.update()\n"
        "        time.sleep(0.1)"
    )
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source)])
    NotebookClient(notebook, timeout=60, kernel_name="python3", resources={"metadata": {"path": tmp_path}}).execute()
    (output,) = notebook.cells[0].outputs
    assert output.output_type == "display_data"
    assert "✓" in output.data["text/html"]
    assert "8 of at most 300" in output.data["text/html"]
    assert output.data["text/plain"].startswith("KMeans.fit: finished in ")
