"""Progress reaches the views: at limited rate, with the end always shown, and without effect on the work."""

from __future__ import annotations

import contextlib
import contextvars
import io
import itertools
import logging
import threading
import time
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from reports import report
from waiting import until

from xpulab.exceptions import XpulabWarning
from xpulab.report import progress
from xpulab.report.progress import TaskReport


class Recorder:
    """A view that records its updates, their times and their threads."""

    def __init__(self, shown: Any = None) -> None:
        self.opened_with = shown
        self.updates: list[tuple[float, Any]] = []
        self.closed: list[tuple[str, Any]] = []
        self.threads: set[int] = set()

    def update(self, shown: Any) -> None:
        self.updates.append((time.monotonic(), getattr(shown, "done", None)))
        self.threads.add(threading.get_ident())

    def close(self, shown: Any) -> None:
        self.closed.append((shown.status, shown))


@pytest.fixture
def view() -> Iterator[Recorder]:
    recorder = Recorder()
    unsubscribe = progress.subscribe(lambda shown: recorder)
    yield recorder
    unsubscribe()


@contextlib.contextmanager
def subscribed(factory: progress.Factory) -> Iterator[None]:
    unsubscribe = progress.subscribe(factory)
    yield
    unsubscribe()


def standard_error(*, terminal: bool) -> contextlib.redirect_stderr[io.StringIO]:
    """Return a context with another standard error: that of a script, in which nothing subscribes to reports."""
    stream = io.StringIO()
    stream.isatty = lambda: terminal  # type: ignore[method-assign]
    return contextlib.redirect_stderr(stream)


def test_a_script_shows_a_line_on_a_terminal_and_leaves_it_if_it_could_be_read() -> None:
    with standard_error(terminal=True) as stream:
        with progress.open(report(status="running")):
            pass
        assert stream.getvalue() == ""  # a loop of quick calls leaves nothing
        watched = report(status="running")
        with progress.open(watched):
            until(lambda: "iteration 3/300" in stream.getvalue())
        assert stream.getvalue().endswith(f"\r\x1b[K{watched.summary}\n")
        task = TaskReport("start 2 engines", total=2)
        with progress.open(task):
            until(lambda: "0/2" in stream.getvalue())
        assert stream.getvalue().endswith(f"\r\x1b[K{task}\n")
        quiet = report(status="running")
        quiet.display = "none"
        before = stream.getvalue()
        with progress.open(quiet):
            time.sleep(2 * progress.FIRST)
        assert stream.getvalue() == before


def test_a_script_without_a_terminal_logs_one_line_a_call(caplog: pytest.LogCaptureFixture) -> None:
    with standard_error(terminal=False) as stream:
        with progress.open(report(status="running")):
            assert not [thread for thread in threading.enumerate() if thread.name == "xpulab-progress"]
        assert caplog.records == []
        with caplog.at_level(logging.INFO, logger="xpulab"):
            shown = report(status="running")
            with progress.open(shown):
                pass
            with pytest.raises(ValueError, match="bad"), progress.open(report(status="running")):
                raise ValueError("bad")
        assert [(record.name, record.levelname) for record in caplog.records] == [("xpulab", "INFO")] * 2
        assert caplog.messages[0] == shown.summary
        assert ", 3 iterations, inertia 332.333" in caplog.messages[0]
        assert "KMeans.fit: failed after" in caplog.messages[1]
        assert stream.getvalue() == ""


def test_without_views_no_thread_is_started() -> None:
    before = threading.active_count()
    with progress.open(TaskReport("alone")) as handle:
        handle.update()
        assert threading.active_count() == before


def test_a_quick_call_shows_only_its_end(view: Recorder) -> None:
    with progress.open(TaskReport("quick")) as handle:
        handle.update()
    assert view.updates == []
    assert [status for status, _ in view.closed] == ["finished"]


def test_updates_come_at_most_ten_times_a_second_and_the_last_one_always_does(view: Recorder) -> None:
    with progress.open(TaskReport("busy", total=10**9)) as handle:
        end = time.monotonic() + 120
        while len(view.updates) < 6:
            assert time.monotonic() < end
            handle.report.done += 1
            handle.update()
        last = handle.report.done
        until(lambda: view.updates[-1][1] == last)
    times = [moment for moment, _ in view.updates]
    assert min(later - earlier for earlier, later in itertools.pairwise(times)) >= progress.INTERVAL


def test_an_unchanged_report_is_drawn_now_and_then_only_so_that_its_clock_goes_on(
    view: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "TICK", 0.2)
    with progress.open(TaskReport("idle")):
        until(lambda: len(view.updates) >= 3)
    assert all(b - a >= 0.2 for (a, _), (b, _) in itertools.pairwise(view.updates))


def test_another_report_can_take_the_place_of_the_first(view: Recorder) -> None:
    first, second = report(status="running"), report(status="running")
    handle = progress.open(first)
    handle.update(second)
    second.finish()
    handle.close(second)
    assert view.closed == [("finished", second)]


def test_closing_twice_shows_the_end_once(view: Recorder) -> None:
    handle = progress.open(TaskReport("once"))
    handle.close()
    handle.close()
    assert len(view.closed) == 1


def test_drawing_leaves_the_callers_thread_alone_and_knows_its_context() -> None:
    cell: contextvars.ContextVar[str] = contextvars.ContextVar("cell")
    seen = []

    class View(Recorder):
        def update(self, shown: Any) -> None:
            super().update(shown)
            seen.append(cell.get())

    cell.set("cell 7")
    view = View()
    with subscribed(lambda shown: view), progress.open(TaskReport("slow")):
        until(lambda: bool(seen))
    assert set(seen) == {"cell 7"}
    assert threading.get_ident() not in view.threads
    assert not [thread for thread in threading.enumerate() if thread.name == "xpulab-progress"]


def test_unsubscribed_views_get_no_updates() -> None:
    view = Recorder()
    unsubscribe = progress.subscribe(lambda shown: view)
    unsubscribe()
    unsubscribe()
    progress.open(TaskReport("later")).close()
    assert view.closed == []


@pytest.mark.parametrize("broken", ["open", "update", "close"])
def test_a_view_that_raises_is_dropped_and_the_others_go_on(broken: str, view: Recorder) -> None:
    class Broken(Recorder):
        calls = 0

        def update(self, shown: Any) -> None:
            if broken == "update":
                type(self).calls += 1
                raise RuntimeError("no paint")

        def close(self, shown: Any) -> None:
            if broken == "close":
                raise RuntimeError("no paint")

    def factory(shown: Any) -> Broken:
        if broken == "open":
            raise RuntimeError("no paint")
        return Broken()

    def work() -> None:
        with progress.open(TaskReport("robust")) as handle:
            until(lambda: len(view.updates) >= 2, meanwhile=handle.update)

    match = "a view was removed, because it raised RuntimeError: no paint"
    with subscribed(factory), pytest.warns(XpulabWarning, match=match):
        work()
    assert Broken.calls == (broken == "update")
    assert view.updates
    assert [status for status, _ in view.closed] == ["finished"]


def test_a_broken_view_does_not_end_a_call_whose_warnings_are_errors(caplog: pytest.LogCaptureFixture) -> None:
    def factory(shown: Any) -> None:
        raise RuntimeError("no paint")

    with subscribed(factory), warnings.catch_warnings():
        warnings.simplefilter("error")
        with progress.open(TaskReport("robust")) as handle:
            pass
    assert handle.report.status == "finished"
    assert "a view was removed, because it raised RuntimeError: no paint" in caplog.text


def test_an_error_without_a_text_passes_as_it_is() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    shown = report(status="running")
    with pytest.raises(Mute), progress.open(shown):
        raise Mute
    assert (shown.status, shown.message) == ("failed", "Mute")


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (KeyboardInterrupt(), "interrupted", ""),
        (ValueError("bad rows"), "failed", "ValueError: bad rows"),
        (ValueError("bad rows\n  of many words"), "failed", "ValueError: bad rows"),  # the error itself shows them
    ],
)
def test_an_exception_marks_the_report_and_passes(
    view: Recorder, error: BaseException, status: str, message: str
) -> None:
    shown = report(status="running")
    with pytest.raises(type(error)), progress.open(shown):
        raise error
    assert (shown.status, shown.message) == (status, message)
    assert view.closed == [(status, shown)]


def test_a_status_that_was_set_is_kept(view: Recorder) -> None:
    shown = report(status="running")
    with progress.open(shown):
        shown.finish("interrupted", "after iteration 3")
    assert (shown.status, shown.message) == ("interrupted", "after iteration 3")


def test_handles_in_several_threads_do_not_mix() -> None:
    views: list[Recorder] = []

    def factory(shown: Any) -> Recorder:
        views.append(Recorder(shown))
        return views[-1]

    def work(number: int) -> None:
        with progress.open(TaskReport(str(number), total=10)) as handle:
            for _ in range(10):
                handle.report.done += 1
                handle.update()
                time.sleep(0.03)

    with subscribed(factory):
        threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(view.opened_with.title for view in views) == list("012345")
    assert all(view.closed == [("finished", view.opened_with)] for view in views)


def test_a_task_says_where_it_stands_and_how_it_ended() -> None:
    task = TaskReport("start 4 engines", total=4, done=1, message="waiting for engine 2 of 4")
    assert str(task).startswith("start 4 engines  1/4  waiting for engine 2 of 4  ")
    assert "/" not in TaskReport("one step").line()
    task.finish("failed", "mpiexec said:\n  no such file")
    task.seconds = 2.5
    assert str(task) == "start 4 engines: failed after 2.5 s\n  mpiexec said:\n  no such file"


def test_a_slow_view_is_drawn_less_often() -> None:
    draws: list[int] = []

    class Heavy:
        def update(self, report: Any) -> None:
            draws.append(1)
            end = time.thread_time() + 0.02
            while time.thread_time() < end:
                pass

        def close(self, report: Any) -> None:
            pass

    unsubscribe = progress.subscribe(lambda report: Heavy())
    started = time.monotonic()
    with progress.open(progress.TaskReport("work")) as handle:
        for _ in range(100):
            handle.update()
            time.sleep(0.01)
    unsubscribe()
    assert 1 <= len(draws) <= 1 + (time.monotonic() - started) / (0.02 / progress.SHARE)
