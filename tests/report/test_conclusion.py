"""The last lines of a report: the longest phase, advice, and the parts of a call's time."""

from __future__ import annotations

from typing import Any

import pytest
from reports import engine, report

from xpulab.report.conclusion import conclusion, slowest_engine, split
from xpulab.report.fit import FitReport


def spent(rows: tuple[int, int] = (500, 500), cores: tuple[int, int] = (0, 1), **seconds: float) -> dict[str, Any]:
    """Return engines that spent this time in each phase. The second engine spent twice as much."""
    return {
        "engines": [
            engine(
                rank,
                device="Arc",
                rows=rows[rank],
                cores=[cores[rank]],
                seconds={name: (1 + rank) * each for name, each in seconds.items()},
                total=(1 + rank) * sum(seconds.values()),
            )
            for rank in range(2)
        ]
    }


MANY = {"iterations": report(iterations=1000).iterations}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (spent(transfer=1.0), "Moving rows between the host and the devices took longest, 1 s to 2 s by engine, of "),
        (spent(compile=1.0), "by engine, of 4 s; the next call takes the compiled kernels from a cache"),
        (spent(kernel=1.0), "; engine 1 was slower with no more rows: another program may use its device"),
        (spent(kernel=1.0, rows=(400, 600)), "; engine 1 has 600 rows, and the mean is 500: scatter them evenly"),
        (spent(kernel=1.0, cores=(1, 1)), "; engine 1 shares cores with another one: start fewer engines"),
        (spent(wait=2.0, kernel=1.0), "Waiting for other engines took longest, 2 s to 4 s by engine, of 4 s"),
        ({"dtype": "float64"}, "; float32 takes about half as long, if its precision is enough: X.astype('float32')"),
        ({"sent": 3.0}, "Copying the rows into shared memory took longest, 3 s of 4 s; to send them once"),
        ({"sent": 3.0, "spooled": True}, "Writing rows that do not fit into memory to a file took longest, 3 s of 4 s"),
        (
            spent(transfer=1.0) | {"reading": 2.0},
            "Reading again the rows that the engines do not keep took longest, 1 s to 2 s by engine, of 4 s; to have",
        ),
        (spent(transfer=1.0) | {"reading": 0.5}, "Moving rows between the host and the devices took longest, 1 s to"),
        (
            spent(transfer=1.0) | {"stays": True, "files": True},
            "Reading the rows from their files took longest, 1 s to 2 s by engine, of 4 s; to read them once for",
        ),
        ({"sent": 3.0, "spooled": True}, "write a .npy or Parquet file, and pass xpulab.scan of it"),
        ({"waited": 3.0}, "Waiting until another call had ended took longest, 3 s of 4 s"),
        ({"converged": False}, "of 4 s; it ended at max_iter, before it converged: raise max_iter, or tol"),
        (spent(communicate=1.0) | MANY, "; each of the 1000 iterations is so short that fewer engines may be faster"),
    ],
)  # fmt: skip
def test_the_conclusion_names_the_longest_phase_and_gives_advice(changes: dict[str, Any], said: str) -> None:
    ended = report()
    vars(ended).update(changes)
    assert said in conclusion(ended)
    assert str(ended).endswith(f"\n  {conclusion(ended)}")
    assert ended._repr_html_().count("took longest") == 1


def test_rows_that_are_on_the_engines_are_not_to_be_sent_once() -> None:
    for time in ({"sent": 3.0}, spent(transfer=1.0)):
        ended = report()
        vars(ended).update(time)
        assert "scatter(X)" in conclusion(ended)
        ended.stays = True
        assert "scatter" not in conclusion(ended)
        assert "took longest" in conclusion(ended)


def two(first: dict[str, float], second: dict[str, float], **changes: Any) -> Any:
    """Return the report of a call of a second on two engines with a core each, which spent these seconds."""
    ended = report(seconds=1.0, **changes)
    ended.engines = [
        engine(rank, device="Arc", cores=[rank], seconds=seconds, total=sum(seconds.values()))
        for rank, seconds in enumerate((first, second))
    ]
    return ended


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        ({"kernel": 0.15, "compile": 0.225}, {"kernel": 0.14, "compile": 0.045},
         "engine 0 finished kernels for 225 ms, and the others 45 ms: the next call takes them from a cache"),
        ({"kernel": 0.15, "transfer": 0.225}, {"kernel": 0.14, "transfer": 0.045},
         "engine 0 moved its rows for 225 ms, and the others 45 ms"),
        ({"kernel": 0.7}, {"kernel": 0.3}, "another program may use its device or its cores"),
        ({"host": 0.7}, {"host": 0.3}, "another program may use its device or its cores"),
    ],
)  # fmt: skip
def test_a_slow_engine_is_explained_by_the_phase_in_which_it_was_slow(
    first: dict[str, float], second: dict[str, float], said: str
) -> None:
    text = conclusion(two(first, second))
    assert said in text
    assert ("another program" in text) == ("another program" in said)


def test_a_slow_engine_with_another_device_needs_no_other_program() -> None:
    ended = two({"kernel": 0.7}, {"kernel": 0.3})
    ended.engines[1].device = "Max 1550"
    assert "engine 0 has another device than others, and computed for 700 ms, and the others 300 ms" in conclusion(
        ended
    )


def test_a_mean_is_said_only_of_engines_that_are_alike() -> None:
    assert "took longest, 123 ms to 709 ms by engine, of 1 s" in conclusion(two({"kernel": 0.709}, {"kernel": 0.123}))
    assert "took longest, 400 ms of 1 s" in conclusion(two({"kernel": 0.42}, {"kernel": 0.38}))


def test_waits_by_turns_are_said_only_if_every_engine_waits() -> None:
    words = "the engines wait for each other by turns: another program may use the cores now and then"
    by_turns = two({"kernel": 0.5, "wait": 0.4}, {"kernel": 0.5, "wait": 0.35})
    assert words in conclusion(by_turns)
    by_turns.engines[1].cores = [0]
    assert "which share cores, wait for each other by turns: start fewer engines" in conclusion(by_turns)
    assert "by turns" not in conclusion(two({"kernel": 0.5, "wait": 0.4}, {"kernel": 0.52, "wait": 0.05}))
    assert "by turns" not in conclusion(two({"kernel": 0.9, "wait": 0.05}, {"kernel": 0.9, "wait": 0.05}))


def test_the_work_of_the_hosts_processor_has_a_word() -> None:
    text = conclusion(two({"host": 0.8}, {"host": 0.8}))
    assert text == "Computing on the processors of the hosts took longest, 800 ms of 1 s"


def test_short_calls_get_no_advice_and_running_ones_no_conclusion() -> None:
    assert conclusion(report(dtype="float64", seconds=0.05)).endswith("of 50 ms")
    assert conclusion(report(status="running")) == split(report(status="running")) == ""
    assert conclusion(report(engines=0)) == ""


def test_the_report_splits_the_time_outside_of_the_engines() -> None:
    assert split(report(seconds=6.0, sent=1.5, waited=0.5)) == (
        "6 s in all: 1.5 s to copy the rows into shared memory, 500 ms until another call had ended, 3.5 s on the "
        "engines, 500 ms for messages and preparation"
    )
    assert split(report(seconds=5.0, sent=1.5)) == (
        "5 s in all: 1.5 s to copy the rows into shared memory, 3.5 s on the engines"
    )
    assert "1.5 s to write the rows to a file, 3.5 s on" in split(report(seconds=5.0, sent=1.5, spooled=True))
    assert split(report(seconds=3.6)) == ""


def test_the_time_is_split_at_a_loss_of_engines() -> None:
    ended = report(seconds=21.0, sent=0.5, lost=5.0, restart=11.0)
    assert split(ended) == (
        "21 s in all: 5 s before the loss of engines, 11 s to start new engines, 500 ms to copy the rows into shared "
        "memory, 3.5 s on the new engines, 1 s for messages and preparation"
    )
    assert conclusion(ended) == "Starting new engines took longest, 11 s of 21 s"
    assert conclusion(report(seconds=21.0, lost=11.0, restart=5.0)).startswith("Work before the loss of engines took l")
    assert split(FitReport.from_dict(ended.to_dict())) == split(ended)


def test_a_slow_engine_is_named_only_if_the_difference_matters() -> None:
    assert slowest_engine(report()) == "engine 1, whose own work, without waits, took 20 % longer than the mean"
    assert slowest_engine(report(engines=1)) == ""
    even = report()
    even.engines = [engine(0), engine(1, kernel=1.1)]
    assert slowest_engine(even) == ""
    assert "slowest" not in str(even)


def test_a_call_that_did_not_converge_says_so_in_every_form() -> None:
    ended = report(converged=False)
    assert ended.headline.startswith("KMeans.fit: finished in 4 s, not converged, ")
    assert "not converged</span>" in ended._repr_html_()
    assert ended.status == "not converged"
    assert report(converged=True).status == report(converged=None).status == "finished"
    assert report(converged=False, status="interrupted").status == "interrupted"
    running = report(status="running", converged=False)
    before = running.status
    running.finish()
    assert (before, running.status) == ("running", "not converged")
    assert FitReport.from_dict(running.to_dict()).status == "not converged"
    of_an_earlier_release = {**ended.to_dict(), "status": "finished"}
    assert FitReport.from_dict(of_an_earlier_release).status == "not converged"
