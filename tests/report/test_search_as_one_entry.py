"""A search as one entry: what it says while it runs and at its end, and how much it keeps."""

from __future__ import annotations

import copy
import pickle

from reports import EVIL, Document, report

from xpulab.report.calls import Calls
from xpulab.report.fit import FitReport
from xpulab.report.searches import Search
from xpulab.report.terminal import SearchView


def call_of(search: Search, **changes: object) -> FitReport:
    made = report(**changes)
    made.search = search
    return made


def test_the_best_candidate_is_that_of_all_folds() -> None:
    search = Search("GridSearchCV.fit")
    scores = [None, 0.5, 0.7, 0.9, 0.1]  # of the fit before
    for done, score in enumerate(scores):
        search.reach(done, 6, done // 2, 2, {"k": done // 2}, score)
    assert search.best == (0.6, {"k": 0})
    search.reach(4, 6, 2, 2, {"k": 2}, 0.1)  # another call of the same fit
    search.reach(5, 6, 2, 2, {"k": 2}, 1.0)
    assert search.best == (0.6, {"k": 0})
    search.reach(6, 6, 3, 2, {}, 0.8)
    assert search.best == (0.9, {"k": 2})
    search.reach(0, 2, 0, 2, {"k": 2}, 0.3)  # another round of a halving search
    assert search.best is None


def test_a_running_search_has_a_bar_and_says_where_it_is() -> None:
    search = Search("GridSearchCV.fit")
    search.reach(5, 12, 1, 3, {"k": EVIL})
    search.reach(6, 12, 2, 3, {"k": 2}, 0.5)
    calls = Calls()
    calls.add(call_of(search, status="running", part="candidate 3 of 4, fold 1 of 3", message="compiling"))
    drawn = Document(calls._repr_html_())
    assert ("aria-valuenow", "0.500") in [each for _, attributes in drawn.tags for each in attributes.items()]
    for text in (drawn.text, search.line()):
        assert "candidate 3 of 4, fold 1 of 3" in text
        assert "compiling" in text
    assert str(calls).startswith("GridSearchCV.fit: running for ")
    assert "details" not in [tag for tag, _ in drawn.tags]


def test_a_search_ends_as_its_last_call() -> None:
    for status in ("interrupted", "failed"):
        search, calls = Search("GridSearchCV.fit"), Calls()
        search.reach(1, 4, 0, 2)
        calls.add(call_of(search, status="finished"))
        calls.add(call_of(search, status=status, message="why it ended"))
        calls.end()
        assert str(calls).startswith(f"GridSearchCV.fit: {status} after ")
        assert "why it ended" in str(calls)
        assert "why it ended" in Document(calls._repr_html_()).text


def test_a_search_of_many_calls_stays_small_and_counts_all() -> None:
    search, calls = Search("GridSearchCV.fit"), Calls()
    for number in range(1000):
        calls.add(call_of(search, method="fit" if number % 2 else "score", seconds=0.25))
    calls.leave_out(call_of(search, method="score", seconds=0.25))
    calls.end()
    assert len(calls) == 1
    assert len(search) == 1001
    assert "KMeans.score    501  2 min 05 s  250 ms" in str(calls)
    assert len(calls._repr_html_()) < 20_000
    assert len(search._reports) == 100


def test_between_two_calls_a_search_runs_and_says_of_when_it_is() -> None:
    search = Search("GridSearchCV.fit")
    search.add(call_of(search))
    for text in (search.headline, search._repr_html_()):
        assert "running" in text
    assert "for its latest call, type: %xpu_cluster last" in search._repr_html_()
    search.end()
    assert "%xpu_cluster last" not in search._repr_html_()


def test_a_call_that_was_shown_and_ends_is_counted_once() -> None:
    """A prediction of a second, as a terminal's view gets it."""
    search = Search("GridSearchCV.fit")
    view, call = SearchView(search), call_of(search, method="predict")
    view.update(call)
    view.close(call)
    view.close(call_of(search, method="predict"))
    assert len(search) == 2


def test_a_search_beside_other_calls_is_a_row() -> None:
    calls = Calls()
    search = Search("GridSearchCV.fit")
    search.reach(1, 2, 0, 1, {"k": 3})
    search.reach(2, 2, 1, 1, {"k": 4}, 0.25)
    for each in (report(), call_of(search), call_of(search), report(method="predict")):
        calls.add(each)
    calls.end()
    assert [line.split()[1] for line in str(calls).splitlines()[2:]] == [
        "KMeans.fit",
        "GridSearchCV.fit",
        "KMeans.predict",
    ]
    assert "mean score 0.25 with k=3" in str(calls)
    assert "2 calls" in str(calls)
    drawn = Document(calls._repr_html_())
    assert "report of 2GridSearchCV.fit" in drawn.text


def test_copies_of_a_report_leave_the_search_out() -> None:
    one = call_of(Search("GridSearchCV.fit"))
    for again in (pickle.loads(pickle.dumps(one)), copy.deepcopy(one)):
        assert again == one
        assert again.search is None
