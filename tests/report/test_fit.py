"""The record of a call: its numbers, its text, its conversion to JSON and back, and its figure."""

from __future__ import annotations

import enum
import json
import pickle
import subprocess
import sys
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from reports import EVIL, Document, engine, report

from xpulab.report.fit import EngineReport, FitReport, Iteration


def test_the_round_trip_through_json_keeps_everything() -> None:
    original = report(runs=2)
    again = FitReport.from_dict(json.loads(json.dumps(original.to_dict())))
    assert again == original
    assert str(again) == str(original)


def test_parameters_are_described_and_hold_no_data() -> None:
    def start(X: object, k: int) -> None: ...

    parameters = {
        "init": np.zeros((8, 14), np.float32),
        "tol": np.float64(0.5),
        "copy_x": True,
        "max_iter": np.int64(5),
        "choose": start,
        "random_state": None,
        "extra": list(range(1000)),
    }
    kept = report(parameters=parameters).parameters
    assert kept["init"] == "ndarray of shape (8, 14)"
    assert (kept["tol"], kept["copy_x"], kept["max_iter"], kept["random_state"]) == (0.5, True, 5, None)
    assert kept["choose"].endswith("start")
    assert len(kept["extra"]) == 80
    json.dumps(kept)


def test_parameters_of_any_kind_become_plain_values_or_are_left_out() -> None:
    class Word(str, enum.Enum):
        FIRST = "k-means++"

    class Number(enum.IntEnum):
        FIVE = 5

    class Fraction(float):
        pass

    class Silent:
        def __repr__(self) -> str:
            raise RuntimeError("no text")

    class Hostile:
        def __getattribute__(self, name: str) -> Any:
            raise RuntimeError(name)

    class Odd:
        shape = 3

    parameters = {
        "dtype": np.dtype("f4"),
        "dtype_class": type(np.dtype("f8")),
        "kind": np.float64,
        "word": Word.FIRST,
        "number": Number.FIVE,
        "fraction": Fraction(0.5),
        "array": np.array(7),
        "thing": np.array(object(), object),
        "date": np.datetime64("2020-01-01"),
        "long": np.longdouble(1),
        "silent": Silent(),
        "hostile": Hostile(),
        "odd": Odd(),
        "mock": Mock(),
    }
    kept = report(parameters=parameters).parameters
    plain: dict[str, Any] = {
        "dtype": "dtype('float32')",
        "dtype_class": "Float64DType",
        "kind": "float64",
        "word": "k-means++",
    }
    plain |= {"number": 5, "fraction": 0.5, "array": 7}
    assert {name: kept[name] for name in plain} == plain
    assert {type(value) for value in kept.values()} <= {str, int, float}
    assert not {"silent", "hostile", "odd"} & set(kept)
    json.dumps(kept)
    assert pickle.loads(pickle.dumps(kept)) == kept


def test_other_is_the_rest_of_an_engines_time() -> None:
    assert engine(0, kernel=1.0).other == pytest.approx(0.25 - 1.0 + 1.0)


def test_other_is_never_negative() -> None:
    # the device's clock and the host's may disagree by more than the rest
    assert engine(0, total=1.0).other == 0.0


def test_phases_left_out_are_zero_and_unknown_ones_an_error() -> None:
    assert EngineReport(0, "h", 1, "d", 5, seconds={"kernel": 1.0}).seconds == {
        "transfer": 0.0, "compile": 0.0, "kernel": 1.0, "host": 0.0, "communicate": 0.0, "wait": 0.0,
    }  # fmt: skip
    with pytest.raises(ValueError, match=r"unknown phases \['kernal'\] in seconds; the phases are transfer, compile"):
        EngineReport(0, "h", 1, "d", 5, seconds={"kernal": 1.0})


def test_the_slowest_engine_is_the_one_that_works_longest_not_the_one_that_waits() -> None:
    waiting, working = engine(0, kernel=0.5), engine(1, kernel=1.5)
    assert waiting.total == working.total
    both = report(engines=2)
    both.engines = [waiting, working]
    assert both.slowest is working
    assert both.imbalance == pytest.approx(100 * (2.5 / 2.0 - 1))


def test_one_engine_alone_is_not_called_slow() -> None:
    alone = report(engines=1)
    assert (alone.slowest, alone.imbalance) == (None, None)
    assert "slowest" not in str(alone)


def test_inertia_is_that_of_the_run_that_is_kept() -> None:
    runs = [
        Iteration(1, {"inertia": 9.0}, init=1),
        Iteration(2, {"inertia": 3.0}, init=1),
        Iteration(1, {"inertia": 2.0}, init=2),
        Iteration(2, {"inertia": 5.0}, init=2),
    ]
    assert report(iterations=0, n_init=2).objective is None
    kept = report(n_init=2)
    kept.iterations = runs
    assert kept.objective == ("inertia", 3.0)
    assert "iteration 2 of run 1 of 2, the best one, inertia 3" in str(kept)
    assert kept.reached == runs[1]
    kept.status = "interrupted"
    assert kept.reached == runs[3]


def test_a_finished_report_shows_the_result_and_the_run_that_the_estimator_has() -> None:
    kept = report(runs=2, final={"inertia": 2.5}, chosen_run=1)
    assert (kept.metric, kept.objective, kept.best_run) == ("inertia", ("inertia", 2.5), 1)
    assert "iteration 3 of run 1 of 2, the best one, inertia 2.5" in str(kept)
    facts = Document(kept._repr_html_()).text
    assert "best run1 of 2" in facts
    assert "inertia2.5" in facts
    assert FitReport.from_dict(kept.to_dict()) == kept
    of_classes = report(runs=2, every_run=True)
    assert "iteration 3 of run 2 of 2, inertia" in str(of_classes)
    assert "best run2 of 2" not in (shown := Document(of_classes._repr_html_()).text)
    assert "run2 of 2" in shown
    resumed = report(runs=2, chosen_run=1)  # in an earlier call
    resumed.iterations = [Iteration(3, {"inertia": 5.0}, init=2)]
    assert "iteration 3 of run 2 of 2, inertia" in str(resumed)


def test_a_curve_on_a_logarithmic_scale_says_where_the_metric_is_zero() -> None:
    ended = report(iterations=3)
    ended.iterations.append(Iteration(4, {"inertia": 1.0, "center_shift": 0.0}))
    assert "on a logarithmic scale, and 0 in iteration 4" in ended._repr_html_()


def test_the_time_left_assumes_that_no_run_converges_early() -> None:
    running = report(runs=2, iterations=0, parameters={"max_iter": 10}, status="running")
    assert (running.fraction, running.remaining) == (0.0, "")
    # the first iteration waited for the start and the compiler, and one for something else
    paces = [60.0, 0.5, 0.5, 7.0, 0.5]
    running.iterations = [Iteration(i, {"inertia": 1.0}, seconds, 1) for i, seconds in enumerate(paces[:3], 1)]
    assert running.remaining == ""  # two paces are no pace
    running.iterations = [Iteration(i, {"inertia": 1.0}, seconds, 1) for i, seconds in enumerate(paces, 1)]
    assert running.fraction == 0.25
    assert running.remaining == "at most 8 s"  # 15 iterations of half a second, rounded up


def test_steps_fill_the_bar_until_there_are_iterations() -> None:
    running = report(runs=2, iterations=0, parameters={"max_iter": 10}, status="running")
    running.step("first centre", 100, 400)
    assert (running.message, running.fraction) == ("first centre 101 of 400", 0.25)
    assert running.remaining == ""  # the iterations follow
    running.iterations = [Iteration(1, {"inertia": 1.0}, 0.5, 1)]
    running.step("first centre", 200, 400)  # of the second run
    assert (running.message, running.fraction) == ("first centre 201 of 400", 0.05)
    running.step("", 0, 0)
    assert (running.message, running.fraction) == ("", 0.05)


def test_runs_that_have_ended_say_how_long_the_others_take() -> None:
    running = report(runs=10, iterations=0, parameters={"max_iter": 300}, status="running")
    running.iterations = [Iteration(i, {"inertia": 1.0}, 0.5, run) for run in (1, 2) for i in range(1, 7)]
    running.iterations += [Iteration(i, {"inertia": 1.0}, 0.5, 3) for i in range(1, 3)]
    assert running.remaining == "about 23 s"  # 4 iterations of this run and 6 of each of the other seven


def test_without_max_iter_the_remaining_time_is_unknown() -> None:
    open_ended = report(parameters={}, status="running")
    assert (open_ended.fraction, open_ended.remaining) == (None, "")
    assert "left" not in open_ended.line()


def test_a_report_has_the_time_before_losses_and_that_of_new_engines() -> None:
    lossy = report(sent=1.5, waited=0.5)
    for lossy.seconds, lost, restart in ((14.0, 10.0, 4.0), (21.0, 13.0, 8.0)):  # two losses; each start takes 4 s
        lossy.replaced(4.0)
        assert (lossy.lost, lossy.restart, lossy.sent, lossy.waited) == (lost, restart, 0.0, 0.0)


def test_the_clock_runs_until_the_report_is_finished() -> None:
    running = report(status="running", seconds=0.0)
    first = running.elapsed
    assert running.elapsed > first
    running.finish("interrupted", "by the user")
    assert running.elapsed == running.seconds > first
    assert (running.status, running.message) == ("interrupted", "by the user")


def test_the_clock_of_a_report_from_a_dict_stands_still() -> None:
    again = FitReport.from_dict(report(status="running", seconds=2.0).to_dict())
    assert again.elapsed == 2.0


def test_started_is_a_time_in_utc() -> None:
    from datetime import datetime, timedelta

    assert datetime.fromisoformat(report().started).utcoffset() == timedelta(0)


def test_text_has_headline_inertia_engines_straggler_and_notes() -> None:
    assert str(report(engines=2)).splitlines() == [
        "KMeans.fit: finished in 4 s, 1,000 × 14 float32 on 2 engines",
        "  iteration 3, inertia 332.333",
        "  engine  device  machine  rows  transfer  compile  kernel  communicate   wait  other  total (s)",
        "       0  Arc A0  node01    500     0.500    0.500   1.000        0.250  1.000  0.250      3.500",
        "       1  Arc A1  node01    500     0.500    0.500   2.000        0.250  0.000  0.250      3.500",
        "  slowest: engine 1, whose own work, without waits, took 20 % longer than the mean",
        "  note: 2 engines share the cores 0-1",
        "  4 s in all: 3.5 s on the engines, 500 ms for messages and preparation",
        "  Computing on the devices took longest, 1 s to 2 s by engine, of 4 s",
    ]


def test_equal_launch_shapes_of_all_engines_are_shown_once() -> None:
    one, two = "4x4x16, span 4096 (default)", "1x8x64, span 1024 (tuned)"
    assert report().launch_shapes == ""
    same, differ = report(), report()
    same.engines = [engine(rank, launch_shape=one) for rank in range(2)]
    assert same.launch_shapes == one
    assert "launch shape" not in str(same)  # it says nothing to those who did not choose it
    differ.engines = [engine(rank, launch_shape=shape) for rank, shape in enumerate((one, two))]
    assert differ.launch_shapes == f"engine 0: {one}; engine 1: {two}"
    folded = same._repr_html_().partition("<summary>Launch shape</summary>")[2]
    assert folded.startswith(f"{one} = rows of a thread of the device x centres at a time x threads of a group, span ")


def test_text_of_short_calls_is_in_milliseconds() -> None:
    quick = report(engines=1)
    quick.engines = [EngineReport(0, "h", 1, "d", 5, seconds={"kernel": 0.0015}, total=0.002)]
    assert "total (ms)" in str(quick)
    assert "1.500" in str(quick)


def test_text_of_a_failure_keeps_its_lines_and_no_control_characters() -> None:
    text = str(report(status="failed", message=f"engine 1 was lost:\n{EVIL}"))
    assert "  engine 1 was lost:\n  <script>" in text
    assert "\x1b" not in text


def test_a_report_that_has_only_begun_has_every_form() -> None:
    begun = FitReport("KMeans", "fit", {"max_iter": 300}, 10, 2, "float64", message="sending 10 rows")
    assert "sending 10 rows" in begun.line()
    assert "sending 10 rows" in str(begun)
    assert "sending 10 rows" in begun._repr_html_()
    assert repr(begun).startswith("<FitReport KMeans.fit: running for")


def _early() -> FitReport:
    """Return a report whose last iteration is the tenth of 300, so that the remaining time is known."""
    running = report(iterations=0, status="running")
    running.iterations = [Iteration(i, {"inertia": 999.0, "center_shift": 0.125}, 0.1) for i in range(1, 11)]
    return running


def test_the_line_of_a_running_call_says_where_it_stands() -> None:
    line = report(runs=2, status="running").line()
    assert "KMeans.fit" in line
    assert "run 2/2  iteration 3/300  inertia 331.333  center shift 0.125" in line
    assert "inertia 999  at most 29 s left  center" in _early().line()
    assert "\n" not in report(status="running", message="a\nb").line()


def test_front_ends_get_both_forms() -> None:
    bundle = report()._repr_mimebundle_()
    assert set(bundle) == {"text/html", "text/plain"}
    assert bundle["text/plain"] == str(report())


def test_two_reports_compare_side_by_side() -> None:
    slow, fast = report(engines=1), report(engines=2, seconds=1.6, converged=False)
    assert str(slow.compare(fast)).splitlines() == [
        "first: KMeans.fit, 1,000 × 14 float32 on 1 engine (Arc A0)",
        "second: KMeans.fit, 1,000 × 14 float32 on 2 engines (Arc A0, Arc A1)",
        "                                   first         second  first / second",
        "  status                        finished  not converged",
        "  iterations                           3              3",
        "  inertia                        332.333        332.333",
        "  wall time                          4 s          1.6 s            2.50",
        "  copying rows                      0 ms           0 ms",
        "  transfer, mean of engines       500 ms         500 ms            1.00",
        "  compile, mean of engines        500 ms         500 ms            1.00",
        "  kernel, mean of engines            1 s          1.5 s            0.67",
        "  communicate, mean of engines    250 ms         250 ms            1.00",
        "  wait, mean of engines              1 s         500 ms            2.00",
        "  other, mean of engines          250 ms         250 ms            1.00",
        "  engine that was busy longest  engine 0       engine 1",
        "  how long it was busy               2 s            3 s            0.67",
    ]


def test_a_report_without_engines_can_be_compared() -> None:
    text = str(report().compare(report(engines=0)))
    assert "wall time" in text
    assert "mean of engines" not in text


def test_plot_draws_the_inertia_of_each_run_and_the_phases_of_each_engine() -> None:
    drawn = report(engines=3, runs=2)
    figure = drawn.plot()
    curve, bars = figure.axes
    assert [list(line.get_ydata()) for line in curve.lines] == [
        [i.metrics["inertia"] for i in drawn.iterations if i.init == run] for run in (1, 2)
    ]
    kernel = next(group for group in bars.containers if group.get_label() == "kernel")
    assert [bar.get_width() for bar in kernel] == [1.0, 2.0, 3.0]
    other = next(group for group in bars.containers if group.get_label() == "other")
    assert [bar.get_x() + bar.get_width() for bar in other] == pytest.approx(
        [sum(e.phases.values()) for e in drawn.engines]
    )
    figure.canvas.draw()


def test_plot_draws_on_given_axes() -> None:
    from matplotlib.figure import Figure

    figure = Figure()
    axes = figure.subplots(2)
    assert report().plot(tuple(axes)) is figure
    assert axes[0].lines


@pytest.mark.parametrize(
    "module", ["xpulab.report.fit", "xpulab.report.progress", "xpulab.report.rendering", "xpulab.widgets"]
)
def test_importing_is_light(module: str) -> None:
    code = (
        f"import sys, {module}; print({{'IPython', 'ipywidgets', 'matplotlib', 'dpctl', 'mpi4py'}} & set(sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "set()"


def test_a_network_has_its_passes_in_place_of_kernels() -> None:
    seconds = {"transfer": 0.5, "kernel": 2.0, "communicate": 0.25}
    engines = [
        engine(rank, seconds=seconds, passes={"import": 0.5, "forward": 0.75, "backward": 1.25}) for rank in range(2)
    ]
    net = report(engines=0, seconds=4.0)
    net.engines = engines
    assert engines[0].phases == {
        "transfer": 0.5, "import": 0.5, "forward": 0.75, "backward": 1.25, "communicate": 0.25, "wait": 0.0,
        "other": 0.25,
    }  # fmt: skip
    assert engines[0].work == 2.5
    header = str(net).splitlines()[2].split()
    assert header[4:] == [*engines[0].phases, "total", "(s)"]
    assert "Computing the gradients, and adding them over the engines took longest, 1.25 s of 4 s" in str(net)
    assert 'xpu-p-backward" title="backward 1.25 s"' in net._repr_html_()
    bars = net.plot().axes[1].containers
    assert [group.get_label() for group in bars] == list(engines[0].phases)
    assert FitReport.from_dict(json.loads(json.dumps(net.to_dict()))) == net
    beside = str(net.compare(report()))
    assert "forward, mean of engines        750 ms      0 ms" in beside
    assert "kernel, mean of engines           0 ms     1.5 s" in beside
    with pytest.raises(
        ValueError, match=r"unknown names \['forwards'\] in passes; the names are import, forward, backward"
    ):
        engine(0, passes={"forwards": 1.0})
