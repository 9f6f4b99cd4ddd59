"""The last lines of a report: the longest phase, advice, and the parts of a call's time."""

from __future__ import annotations

from typing import Any

import pytest
from reports import engine, report

from xpulab.report.conclusion import conclusion, slowest_engine, split


def spent(rows: tuple[int, int] = (500, 500), cores: tuple[int, int] = (0, 1), **seconds: float) -> dict[str, Any]:
    """Return engines that spent this time in each phase. The second engine spent twice as much."""
    return {
        "engines": [
            engine(
                rank,
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
        (spent(transfer=1.0), "Moving rows between the host and the devices took longest, 1.5 s of 4 s"),
        (spent(compile=1.0), "took longest, 1.5 s of 4 s; the next call takes the compiled kernels from a cache"),
        (spent(kernel=1.0), "; engine 1 was slower with no more rows: another program may use its device"),
        (spent(kernel=1.0, rows=(400, 600)), "; engine 1 has 600 rows, and the mean is 500: scatter them evenly"),
        (spent(kernel=1.0, cores=(1, 1)), "; engine 1 shares cores with another one: start fewer engines"),
        (spent(wait=2.0, kernel=1.0), "Engines that waited for each other took longest, 3 s of 4 s; engine 1 was "),
        ({"dtype": "float64"}, "; float32 takes about half as long, if its precision is enough: X.astype('float32')"),
        ({"sent": 3.0}, "Copying the rows into shared memory took longest, 3 s of 4 s; to copy them once"),
        ({"waited": 3.0}, "Waiting until another call had ended took longest, 3 s of 4 s"),
        ({"converged": False}, "1.5 s of 4 s; it ended at max_iter, before it converged: raise max_iter, or tol"),
        (spent(communicate=1.0) | MANY, "; each of the 1000 iterations is so short that fewer engines may be faster"),
    ],
)  # fmt: skip
def test_the_conclusion_names_the_longest_phase_and_gives_advice(changes: dict[str, Any], said: str) -> None:
    ended = report()
    vars(ended).update(changes)
    assert said in conclusion(ended)
    assert str(ended).endswith(f"\n  {conclusion(ended)}")
    assert ended._repr_html_().count("took longest") == 1


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
    assert split(report(seconds=3.6)) == ""


def test_a_slow_engine_is_named_only_if_the_difference_matters() -> None:
    assert slowest_engine(report()) == "engine 1, busy 20 % longer than the mean"
    assert slowest_engine(report(engines=1)) == ""
    even = report()
    even.engines = [engine(0), engine(1, kernel=1.1)]
    assert slowest_engine(even) == ""
    assert "slowest" not in str(even)


def test_a_call_that_did_not_converge_says_so_in_every_form() -> None:
    ended = report(converged=False)
    assert ended.headline.startswith("KMeans.fit: finished in 4 s, not converged, ")
    assert "not converged</span>" in ended._repr_html_()
    assert report(converged=True).state == report(converged=None).state == "finished"
    assert report(converged=False, status="interrupted").state == "interrupted"
