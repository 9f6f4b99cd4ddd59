"""The files in which ranks note which job they take, and how it ended."""

from __future__ import annotations

import threading
from pathlib import Path

import joblib
from jobs import who

from xpulab.deploy.side_by_side.outcomes import ENDED, Outcome, claim, claimed, found, keep, run


def test_a_job_is_taken_once(tmp_path: Path) -> None:
    assert [claim(tmp_path, 3, rank) for rank in (1, 0, 1)] == [True, False, False]
    assert claimed(tmp_path) == {3}


def test_each_outcome_is_found_once(tmp_path: Path) -> None:
    known: set[int] = set()
    keep(tmp_path, 10, Outcome([1], None, "", []))
    keep(tmp_path, 2, Outcome([2], None, "", []))
    assert [(number, outcome.value) for number, outcome in sorted(found(tmp_path, known))] == [(2, [2]), (10, [1])]
    assert list(found(tmp_path, known)) == []
    assert not (tmp_path / ENDED).exists()


def test_after_an_error_nothing_is_taken_and_the_error_is_found(tmp_path: Path) -> None:
    keep(tmp_path, 0, Outcome(None, KeyError("a"), "told", []))
    assert (tmp_path / ENDED).exists()
    ((_, outcome),) = found(tmp_path, set())
    assert isinstance(outcome.error, KeyError)
    assert outcome.told == "told"


def test_what_cannot_be_pickled_becomes_an_error(tmp_path: Path) -> None:
    error = ValueError("odd")
    error.lock = threading.Lock()  # type: ignore[attr-defined]
    keep(tmp_path, 0, Outcome(threading.Lock(), None, "", []))
    keep(tmp_path, 1, Outcome(None, error, "told", []))
    first, second = (outcome for _, outcome in found(tmp_path, set()))
    assert "what the job returned cannot be sent from the engine" in str(first.error)
    assert str(second.error).startswith("ValueError: odd (this error cannot be sent from the engine: ")


def test_a_job_has_joblib_run_at_once() -> None:
    def inner() -> int:
        return joblib.effective_n_jobs(-1)

    assert run([(inner, (), {}), (who, (1,), {})])[0] == 1
