"""Live views of reports in a notebook and in a terminal."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from constants import constants_here
from IPython.core.displaypub import CapturingDisplayPublisher
from IPython.core.interactiveshell import InteractiveShell
from reports import Document, report
from waiting import until

from xpulab import widgets
from xpulab.report import progress
from xpulab.report.progress import TaskReport
from xpulab.report.searches import Search
from xpulab.report.terminal import TextView
from xpulab.widgets import NotebookViews, TerminalViews


class ZMQInteractiveShell(InteractiveShell):
    """Replaces a notebook's kernel, and keeps the displayed objects in ``display_pub.outputs``."""


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


@pytest.fixture
def views(shell: Any) -> Iterator[NotebookViews]:
    views = NotebookViews(shell)
    yield views
    views.close()


def called(views: Any, shown: Any) -> Any:
    """Show a call that was too quick for a live view."""
    views(shown).close(shown)
    return shown


def updated(shell: Any, view: Any, shown: Any) -> None:
    """Update a view until its output is drawn once more: after a pause that grows with what the last drawing took."""
    drawn = len(shell.display_pub.outputs)
    until(lambda: len(shell.display_pub.outputs) > drawn, meanwhile=lambda: view.update(shown))


def of_cell(shell: Any) -> str:
    """Return the HTML of the cell's only output after the cell has ended."""
    shell.events.trigger("post_run_cell", None)
    outputs = shell.display_pub.outputs
    assert len({output["transient"]["display_id"] for output in outputs}) == 1
    assert [output["update"] for output in outputs] == [False] + [True] * (len(outputs) - 1)
    return outputs[-1]["data"]["text/html"]


def test_one_output_is_rewritten_and_ends_as_the_standing_report(shell: Any, views: NotebookViews) -> None:
    running = report(status="running", iterations=0)
    view: Any = views(running)
    view.update(running)
    running.iterations = report().iterations
    updated(shell, view, running)
    running.finish()
    view.close(running)
    outputs = shell.display_pub.outputs
    assert [output["update"] for output in outputs] == [False, True, True]
    assert len({output["transient"]["display_id"] for output in outputs}) == 1
    assert running._repr_html_() in outputs[-1]["data"]["text/html"]
    assert outputs[-1]["data"]["text/plain"] == str(running)


def test_a_report_of_a_running_call_has_the_time_of_its_update_and_says_how_to_see_its_end(
    shell: Any, views: NotebookViews
) -> None:
    one, two, start = report(status="running"), report(status="running"), TaskReport("start 2 engines")
    words = f"as of {time.strftime('%Y-%m-%d')} "
    watched: list[Any] = []
    for first, last in ((one, "%xpu_cluster last"), (two, "%xpu_cluster last"), (start, "%xpu_cluster status")):
        watched.append(views(first))
        updated(shell, watched[-1], first)
        for text in map(str, (running := shell.display_pub.outputs[-1]["data"]).values()):
            assert words in text
            assert last in text
        assert running["text/html"].count("as of ") == running["text/plain"].count("as of ") == 1
    for each, view in zip((one, two), watched, strict=False):
        each.finish()
        view.close(each)
    assert "as of" not in of_cell_text(shell) + shell.display_pub.outputs[-1]["data"]["text/html"]


def test_the_notebook_view_is_no_widget(shell: Any, views: NotebookViews) -> None:
    # a widget's picture would be lost when the notebook is opened again without its kernel
    called(views, report())
    assert set(shell.display_pub.outputs[0]["data"]) == {"text/html", "text/plain"}


def test_a_large_report_is_redrawn_less_often_and_its_end_is_shown(shell: Any, views: NotebookViews) -> None:
    large = report(engines=400, status="running")
    view: Any = views(large)
    for _ in range(20):
        view.update(large)
    assert len(shell.display_pub.outputs) == 1
    view.close(large)
    assert len(shell.display_pub.outputs) == 2


@pytest.mark.parametrize(("shown", "outputs"), [(report(), 1), (report(method="predict"), 0), (TaskReport("stop"), 0)])
def test_only_a_fit_leaves_a_report_when_it_was_too_quick_to_watch(
    shell: Any, views: NotebookViews, shown: Any, outputs: int
) -> None:
    called(views, shown)
    assert len(shell.display_pub.outputs) == outputs
    terminal = Terminal()
    TextView(shown, terminal).close(shown)
    assert len(terminal.getvalue().splitlines()) == outputs * len(str(shown).splitlines())


def fits(n: int) -> list[Any]:
    """Return the reports of a loop over the number of clusters."""
    parameters = [{"n_clusters": 2 + i, "max_iter": 300, "init": "random"} for i in range(n)]
    return [report(parameters=each, iterations=3 + i % 100) for i, each in enumerate(parameters)]


def test_the_fits_of_a_cell_are_one_table_with_the_parameters_that_differ(shell: Any, views: NotebookViews) -> None:
    for fit in fits(9):
        called(views, fit)
    document = Document(of_cell(shell))
    rows = [attributes for attributes in document.attributes("th") if attributes.get("scope") == "row"]
    assert len(rows) == 9 + 2 * 9  # and two engines in each report below
    assert "9 calls of estimators, 36 s; 1,000 × 14 float32 on 2 engines" in document.text
    for k in range(2, 11):
        assert f"n_clusters={k}" in document.text
    assert "init=random" not in document.text.partition("report of 1")[0]  # the same for all
    assert len([a for a in document.attributes("details") if not a]) == 9 + 2 * 9  # each with its two lists
    text = shell.display_pub.outputs[-1]["data"]["text/plain"].splitlines()
    assert text[0] == "9 calls of estimators, 36 s; 1,000 × 14 float32 on 2 engines"
    assert text[1].split() == [
        "call",
        "parameters",
        "that",
        "differ",
        "iterations",
        "inertia",
        "time",
        "longest",
        "status",
    ]
    assert [line.split()[2:5] for line in text[2:]] == [[f"n_clusters={2 + i}", str(3 + i), f"{1000 / (3 + i) - 1:.6g}"]
                                                        for i in range(9)]  # fmt: skip


def test_whole_reports_stand_below_the_table_only_when_it_is_not_redrawn(shell: Any, views: NotebookViews) -> None:
    one, two = fits(2)
    called(views, one)
    two.status = "running"
    view: Any = views(two)
    updated(shell, view, two)
    running = shell.display_pub.outputs[-1]["data"]["text/html"]
    assert "n_clusters=3" in running
    assert "<details" not in running
    two.finish()
    view.close(two)
    assert "running" not in shell.display_pub.outputs[-1]["data"]["text/html"]  # at once, not with the cell's end
    assert "report of 2" in of_cell(shell)


def test_the_next_cell_has_an_output_of_its_own(shell: Any, views: NotebookViews) -> None:
    called(views, report())
    first = shell.display_pub.outputs[-1]["transient"]["display_id"]
    shell.events.trigger("post_run_cell", None)
    assert len(shell.display_pub.outputs) == 1  # it stands already
    shell.events.trigger("pre_run_cell", None)
    called(views, report())
    assert shell.display_pub.outputs[-1]["transient"]["display_id"] != first
    assert "calls of estimators" not in of_cell_text(shell)


@pytest.mark.parametrize("status", ["finished", "not converged", "interrupted", "failed"])
def test_a_report_that_has_finished_folds_when_the_next_cell_begins(
    shell: Any, views: NotebookViews, status: Any
) -> None:
    shown = called(views, report(status=status))
    shell.events.trigger("post_run_cell", None)
    (drawn,) = shell.display_pub.outputs
    assert '<details class="xpu-fold"' not in drawn["data"]["text/html"]
    for seen in (False, True):  # an extension runs cells that nobody sees
        assert shell.display_pub.outputs == [drawn]
        with constants_here("xpulab.widgets.fit_view", SEEN=0.0):
            shell.events.trigger("pre_run_cell", SimpleNamespace(store_history=seen))
        shell.events.trigger("post_run_cell", None)
    after = shell.display_pub.outputs[1:]
    if status in ("interrupted", "failed"):  # what to type next stays in sight
        assert after == []
        return
    assert [(each["update"], each["data"]["text/plain"]) for each in after] == [(True, str(shown))]
    html = Document(after[0]["data"]["text/html"])
    assert [each for each in html.attributes("details") if each] == [{"class": "xpu-fold"}]  # and not open
    assert html.text.index("KMeans.fit") < html.text.index(status) < html.text.index("engine")


@pytest.mark.parametrize(("calls", "seen"), [(1, 3600.0), (2, 0.0)])
def test_a_table_of_calls_and_a_report_of_which_the_next_cell_comes_at_once_do_not_fold(
    shell: Any, views: NotebookViews, calls: int, seen: float
) -> None:
    for fit in fits(calls):
        called(views, fit)
    html = of_cell(shell)
    with constants_here("xpulab.widgets.fit_view", SEEN=seen):
        shell.events.trigger("pre_run_cell", None)
    assert shell.display_pub.outputs[-1]["data"]["text/html"] == html


def of_cell_text(shell: Any) -> str:
    return shell.display_pub.outputs[-1]["data"]["text/plain"]


def test_a_call_of_a_thread_that_outlives_its_cell_is_shown_at_once(shell: Any, views: NotebookViews) -> None:
    shell.events.trigger("post_run_cell", None)
    for fit in fits(3):
        called(views, fit)
    assert "n_clusters=4" in of_cell_text(shell)


def test_a_loop_of_thousands_does_not_fill_the_notebook(shell: Any, views: NotebookViews) -> None:
    started = time.monotonic()
    for fit in fits(2000):
        called(views, fit)
    # what is drawn in the thread that fits takes little of its time
    assert len(shell.display_pub.outputs) <= 2 + 20 * (time.monotonic() - started)
    html = of_cell(shell)
    assert "2000 calls of estimators, 2 h 13 min; the last 100 of them" in html
    assert html.count("report of ") == 20
    assert len(html) < 300_000


def test_a_table_says_what_it_does_not_show_and_how_to_see_it(shell: Any, views: NotebookViews) -> None:
    for fit in fits(25):
        called(views, fit)
    for _ in range(3):
        called(views, report(method="predict"))
    html = of_cell(shell)
    words = "Not shown: 3 calls of less than 0.2 s, and the reports of the first 5 calls; to see them, begin the cell"
    assert words in Document(html).text
    assert f"{words} with %%xpu_profile" in of_cell_text(shell)
    shell.events.trigger("pre_run_cell", None)
    for fit in fits(20):
        called(views, fit)
    shell.events.trigger("post_run_cell", None)
    assert "Not shown" not in of_cell_text(shell)


def test_compact_is_a_table_also_for_one_call_and_none_is_nothing(shell: Any, views: NotebookViews) -> None:
    quiet, alone = report(), report()
    quiet.display, alone.display = "none", "compact"
    assert views(quiet) is None
    called(views, alone)
    html = of_cell(shell)
    assert "1 call of estimators" in html
    assert html.count("report of ") == 1
    task = TaskReport("start")
    task.display = "none"
    assert views(task) is None


def test_a_terminal_gets_one_report_a_cell_and_a_line_for_each_further_call(
    shell: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    views = TerminalViews(shell)
    first, second, third = report(), report(seconds=5.0), report()
    called(views, first)
    called(views, second)
    shell.events.trigger("pre_run_cell", None)
    third.display = "compact"
    called(views, third)
    line = "KMeans.fit: finished in {} s, 1,000 × 14 float32 on 2 engines, 3 iterations, inertia 332.333\n"
    assert capsys.readouterr().err == f"{first}\n{line.format(5)}{line.format(4)}"
    views.close()


def test_the_calls_of_a_search_are_one_entry_in_a_notebook_and_one_text_in_a_terminal(
    shell: Any, views: NotebookViews, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal = TerminalViews(shell)
    for made in (views, terminal):
        search = Search("GridSearchCV.fit")
        for number in range(40):
            search.reach(number, 40, number, 1, {"k": number}, number / 40)
            call = report(method="fit" if number % 2 else "score", seconds=0.25)
            call.search = search
            called(made, call)
    assert capsys.readouterr().err == ""
    html = of_cell(shell)
    assert "GridSearchCV.fit" in Document(html).text
    said = capsys.readouterr().err
    assert said.startswith("GridSearchCV.fit: finished in ")
    assert len(said.splitlines()) == 4  # the two kinds of calls below their header
    terminal.close()


def test_a_search_whose_last_call_was_followed_to_its_end_is_finished_too(shell: Any, views: NotebookViews) -> None:
    call, search = report(status="running", seconds=5.0), Search("GridSearchCV.fit")
    call.search = search
    view: Any = views(call)
    view.update(call)
    call.finish()
    view.close(call)  # which draws at once
    assert "✓ finished" in Document(of_cell(shell)).text
    assert search.status == "finished"


def test_a_terminal_line_is_rewritten_in_place_within_its_width(environment: Callable[..., None]) -> None:
    environment(COLUMNS="20")
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
        until(lambda: outputs)
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


@pytest.mark.slow
def test_a_saved_notebook_holds_the_final_report(tmp_path: Any) -> None:
    """In a real kernel, a thread draws, and the output must belong to the cell."""
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
    loop = (
        "for k in (2, 3, 4):\n"
        "    with progress.open(FitReport('KMeans', 'fit', {'n_clusters': k}, 10, 2, 'float32')):\n"
        "        pass"
    )
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(each) for each in (source, loop)])
    NotebookClient(notebook, timeout=60, kernel_name="python3", resources={"metadata": {"path": tmp_path}}).execute()
    (output,) = notebook.cells[0].outputs
    assert output.output_type == "display_data"
    assert "✓" in output.data["text/html"]
    assert "8 of at most 300" in output.data["text/html"]
    assert output.data["text/plain"].startswith("KMeans.fit: finished in ")
    (table,) = notebook.cells[1].outputs
    assert table.data["text/plain"].startswith("3 calls of estimators")
    assert "report of 3" in table.data["text/html"]
