"""Numbers, sizes, times and tables, as text and as HTML."""

from __future__ import annotations

import re

import pytest

from xpulab.report.rendering import (
    Html,
    Text,
    block,
    counted,
    drawn,
    escape,
    format_count,
    format_number,
    format_seconds,
    format_size,
    in_notebook,
    plain,
    shorten,
    table_html,
    table_text,
)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (0.0, "0 ms"),
        (0.00042, "0.42 ms"),
        (0.9994, "999 ms"),
        (0.9996, "1 s"),
        (3.4, "3.4 s"),
        (59.96, "1 min 00 s"),
        (125, "2 min 05 s"),
        (3599.6, "1 h 00 min"),
        (3720, "1 h 02 min"),
    ],
)
def test_seconds_take_the_unit_that_reads_best(value: float | None, text: str) -> None:
    assert format_seconds(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1.5 * 2**30, "1.5 GiB"),
        (128 * 2**30, "128 GiB"),
        (2**50, "1024 TiB"),
    ],
)
def test_sizes_are_in_binary_units(value: float | None, text: str) -> None:
    assert format_size(value) == text


def test_numbers_have_separators_and_few_digits() -> None:
    assert format_count(2_000_000) == "2,000,000"
    assert format_number(1234567.8) == "1.23457e+06"
    assert format_number(0.000123456, 3) == "0.000123"
    assert (format_count(None), format_number(None)) == ("–", "–")


def test_control_characters_never_reach_a_terminal() -> None:
    assert plain("Arc\x1b[2J\nA770\x07") == "Arc [2J A770"


def test_a_long_name_keeps_its_beginning_and_its_end() -> None:
    assert shorten("Intel(R) Data Center GPU Max 1550, tile 1", 20) == "Intel(R) Data…tile 1"
    assert len(shorten("x" * 100, 20)) == 20
    assert shorten("Arc", 20) == "Arc"


def test_escape_makes_data_harmless_and_leaves_html_alone() -> None:
    assert escape("<script>\"'&") == "&lt;script&gt;&quot;&#x27;&amp;"
    assert escape(Html("<b>bold</b>")) == "<b>bold</b>"
    assert escape(escape("a < b")) == "a &lt; b"


def test_text_table_aligns_each_column_as_told() -> None:
    assert table_text(["engine", "device", "rows"], [[0, "Arc", "1,000"], [10, "CPU\n0", "9"]], "rlr") == (
        "  engine  device   rows\n"
        "       0  Arc     1,000\n"
        "      10  CPU 0       9"
    )  # fmt: skip


def test_a_row_of_another_length_than_the_header_is_refused() -> None:
    with pytest.raises((ValueError, IndexError)):
        table_text(["a", "b"], [["only one"]], "ll")
    with pytest.raises(ValueError, match="zip"):
        table_html(["a", "b"], [["only one"]], "ll")


def test_html_table_says_what_each_header_belongs_to() -> None:
    html = table_html(["engine", "rows"], [[0, "<i>"]], "lr", "Engines & rows")
    assert '<th scope="col">engine</th><th scope="col" class="xpu-r">rows</th>' in html
    assert '<th scope="row" data-column="engine">0</th><td class="xpu-r" data-column="rows">&lt;i&gt;</td>' in html
    assert "<caption>Engines &amp; rows</caption>" in html


def test_a_folded_table_names_each_value() -> None:
    key = Html("<i></i>kernel &amp; wait")
    narrow = table_html(["engine", key], [[0, "1.5"]], "lr")
    assert '<td class="xpu-r" data-column="kernel &amp; wait">1.5</td>' in narrow
    wide = table_html(["engine", key], [[0, "1.5" * 40]], "lr")
    narrow_width, wide_width = (
        int(re.findall(r"@container \(max-width:(\d+)px\)", each)[0]) for each in (narrow, wide)
    )
    assert narrow_width < 240 < 800 < wide_width
    assert f".xpu-fold-{wide_width} tr{{display:flex" in wide
    assert "WIDTH" not in wide


def test_pictures_that_need_styles_are_hidden_without_them() -> None:
    html = drawn("<svg></svg>", "words")
    assert html == '<div class="xpu-drawn" hidden="hidden"><svg></svg></div><div class="xpu-undrawn">words</div>'
    for rule in (".xpu .xpu-drawn[hidden]{display:contents!important}", ".xpu .xpu-undrawn{display:none}"):
        assert rule in block("", [])


def test_ipython_shows_a_text_as_lines() -> None:
    from IPython.lib.pretty import pretty

    assert pretty(Text("two\nlines")) == "two\nlines"


def test_a_block_is_named_for_screen_readers_and_fetches_nothing() -> None:
    html = block('a "name"', ["<p>body</p>"])
    assert 'role="group" aria-label="a &quot;name&quot;"' in html
    assert "<p>body</p>" in html
    assert not any(word in html for word in ("url(", "src=", "@import", "<script"))


def test_counted_adds_the_plural() -> None:
    assert [counted(n, "engine") for n in (0, 1, 2)] == ["0 engines", "1 engine", "2 engines"]
    assert [counted(n, "class", "classes") for n in (1, 4)] == ["1 class", "4 classes"]


def test_a_shell_of_a_kernel_is_a_notebook() -> None:
    kernels = type("ZMQInteractiveShell", (), {})
    assert in_notebook(type("Shell", (kernels,), {})())
    assert not in_notebook(None)
    assert not in_notebook(type("TerminalInteractiveShell", (), {})())
