"""The lines of several ranks are merged to one output while they are printed."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xpulab.console.commands import numbers
from xpulab.deploy.tasks.merging import Merging, merged
from xpulab.sharing.transcript import SHOWN, plain


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", clock)
    return clock


def test_a_line_waits_a_moment_for_other_ranks_and_then_stands_alone(clock: Clock) -> None:
    lines: list[str] = []
    merging = Merging(lines.append)
    merging.add(0, "epoch 1\nepo")
    merging.show([0, 1])
    assert lines == []
    merging.add(1, "epoch 1\n")
    merging.show([0, 1])
    assert lines == ["[0-1] epoch 1"]
    merging.add(0, "ch 2\n")
    merging.show([0, 1])
    clock.now += 0.6
    merging.show([0, 1])
    assert lines[1:] == ["[0] epoch 2"]
    merging.add(1, "epoch 2\nthe end")
    merging.show([1])
    assert lines[2:] == ["[1] epoch 2"]
    merging.show(last=True)
    assert lines[3:] == ["[1] the end"]


@pytest.mark.parametrize(("later", "order"), [(0.3, ["[0] b", "[1] a"]), (0.7, ["[1] a", "[0] b"])])
def test_lines_of_about_the_same_time_come_in_the_order_of_the_ranks(
    clock: Clock, later: float, order: list[str]
) -> None:
    lines: list[str] = []
    merging = Merging(lines.append)
    merging.add(1, "a\n")
    merging.show([0, 1])
    clock.now += later
    merging.add(0, "b\n")
    merging.show([0, 1])
    merging.show(last=True)
    assert lines == order


def test_lines_that_a_rank_prints_together_stay_together() -> None:
    assert merged({0: "a\nb\nc\n", 1: "a\nb\nd\n", 2: "e\n"}) == ["[0-1] a", "[0-1] b", "[0] c", "[1] d", "[2] e"]


def test_lines_that_ranks_share_are_joined_between_lines_of_their_own() -> None:
    assert merged({0: "rank 0\na\nb\n", 1: "rank 1\na\nb\n"}) == ["[0] rank 0", "[1] rank 1", "[0-1] a", "[0-1] b"]
    assert merged({0: "a\nb\n", 1: "more\na\nb\n"}) == ["[1] more", "[0-1] a", "[0-1] b"]
    assert merged({0: "more\na\nb\n", 1: "a\nb\n"}) == ["[0] more", "[0-1] a", "[0-1] b"]
    assert merged({0: "a\nb\n", 1: "b\na\n"}) == ["[0] a", "[0-1] b", "[1] a"]


@given(st.dictionaries(st.integers(0, 3), st.lists(st.sampled_from("abcde"), max_size=12), min_size=1))
def test_every_line_is_shown_in_the_order_of_its_rank(printed: dict[int, list[str]]) -> None:
    shown = merged({rank: "".join(f"{line}\n" for line in lines) for rank, lines in printed.items()})
    for rank, lines in printed.items():
        mine = [text for ranks, text in (line[1:].split("] ") for line in shown) if rank in numbers(ranks)]
        assert mine == lines


@given(st.lists(st.lists(st.sampled_from("abc"), min_size=1, max_size=3), min_size=1, max_size=6))
def test_ranks_that_print_the_same_between_their_own_lines_share_all_of_it(steps: list[list[str]]) -> None:
    texts = {
        rank: "".join(f"rank {rank} step {i}\n" + "\n".join(lines) + "\n" for i, lines in enumerate(steps))
        for rank in range(3)
    }
    common = [line for lines in steps for line in lines]
    assert [line for line in merged(texts) if "step" not in line] == [f"[0-2] {line}" for line in common]


def test_a_progress_bar_is_one_line(clock: Clock) -> None:
    lines: list[str] = []
    merging = Merging(lines.append)
    for percent in range(0, 101, 20):
        for rank in (0, 1):
            merging.add(rank, f"\r{percent}%")
        merging.show([0, 1])
        assert merging.unfinished() == f"[0-1] {percent}%"
    merging.add(0, "\n")
    merging.add(1, "\r\n")
    merging.show([0, 1])
    assert (lines, merging.unfinished()) == (["[0-1] 100%"], "")


@pytest.mark.parametrize(
    ("written", "lines"),
    [
        ("\r|##| 100%\rdone\n", ["[0] done 100%"]),  # as print(bar, end="\r") leaves it
        ("|##| 100%\r         \rnext\n", ["[0] next"]),
        ("|##| 100%\r         \r", []),
        ("bar\r\x1b[2Klast\n", ["[0] \x1b[2Klast"]),
        ("\x1b[31mred\x1b[0m\rlast\n", ["[0] last"]),
        ("a \r\n\r\n", ["[0] a", "[0] "]),
    ],
)
def test_text_after_a_carriage_return_overwrites_as_in_a_terminal(written: str, lines: list[str]) -> None:
    said: list[str] = []
    merging = Merging(said.append)
    for character in written:
        merging.add(0, character)
        merging.show([0, 1])
    merging.show(last=True)
    assert said == merged({0: written}) == lines


def test_of_versions_of_an_object_that_are_too_many_the_last_one_is_shown(clock: Clock) -> None:
    lines: list[str] = []
    merging = Merging(lines.append, most=3)

    def version(number: int) -> str:
        thing = {"data": {"text/plain": str(number)}, "metadata": {}, "id": "bar", "update": number > 0}
        return f"{SHOWN}{json.dumps(thing)}\n"

    merging.add(0, "".join(map(version, range(100))))
    merging.show([0])
    assert [plain(line) for line in lines] == ["[0] 0\n", "[0] 1\n", "[0] 2\n"]
    clock.now += 1.0
    merging.show([0])
    assert [plain(line) for line in lines[3:]] == ["[0] 99\n"]
    merging.add(0, "".join(map(version, range(100, 200))))
    merging.show(last=True)
    assert plain(lines[-1]) == "[0] 199\n"


def test_fast_output_is_cut_and_slow_lines_are_not(clock: Clock) -> None:
    lines: list[str] = []
    merging = Merging(lines.append, most=3)
    merging.add(0, "".join(f"{i}\n" for i in range(1003)))
    merging.show([0])
    assert lines == ["[0] 0", "[0] 1", "[0] 2"]
    clock.now += 1.0
    merging.add(0, "later\n")
    merging.show([0])
    merging.add(0, "x\n" * 20)
    merging.show(last=True)
    assert lines[3:5] == ["[0] … 1,000 more lines; to see them, type: %xpu_cluster last --output", "[0] later"]
    assert lines[-1] == "[0] … 11 more lines; to see them, type: %xpu_cluster last --output"
    assert len(lines) == 3 + 1 + 10 + 1
