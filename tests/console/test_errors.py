"""Errors of everyday in a notebook and in IPython: few lines, the place first, and the rest folded."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

import xpulab
from xpulab.console.errors import LINES

pytestmark = pytest.mark.cluster

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_BEGIN = """import numpy as np
import xpulab
from xpulab.cluster import KMeans
%xpu_cluster start -n 1
%xpu_cluster display none
X = np.random.default_rng(0).normal(size=(40, 3))
bad = X.copy()
bad[7, 2] = np.nan"""

#: The cell -> lines that a user sees, in their order.
_MISTAKES = {
    "km = KMeans(2)\nkm.fit(bad)": ["row 7, column 2", "line 2: km.fit(bad)", "ValueError: Input X contains NaN."],
    "KMeans(8).fit(X[:3])": ["line 1: KMeans(8).fit(X[:3])", "ValueError: n_samples=3 should be >= n_clusters=8."],
    "%%xpu\na = 1\nb = (a +": [
        "line 2, column 5 of %%xpu cell 1:",
        "    b = (a +",
        "        ^",
        "SyntaxError: '(' was never closed",
    ],
    "%%xpu\nnumbers = [1]\nnumbers[5 - 5 * rank]": [
        "rank 0, line 2 of %%xpu cell 2: numbers[5 - 5 * rank]",
        "EngineError: 1 of ",
    ],
    "xpulab.XPUCluster(1, timeout=0.01).start()": [
        "line 1: xpulab.XPUCluster(1, timeout=0.01).start()",
        "ClusterStartError: ",
    ],
    "KMeans(2).fitt(X)": [
        "line 1: KMeans(2).fitt(X)",
        "AttributeError: 'KMeans' object has no attribute 'fitt'; did you mean fit?",
    ],
    "%xpu_cluster strat": ["UsageError: "],
}
_OWN = "def mine():\n    raise ValueError('my own')\nmine()"


def seen(said: list[str], expected: list[str]) -> None:
    assert len(expected) <= len(said) <= LINES, said
    for line, begin in zip(said, expected, strict=False):  # a long message has further lines
        assert line.startswith(begin), said


def test_a_notebook_shows_five_lines_and_folds_the_rest(pair: xpulab.XPUCluster) -> None:
    begin = _BEGIN.replace("start -n 1", f"attach {pair.known_as}")
    cells = [begin, *_MISTAKES, _OWN, "%xpu_cluster detach"]
    notebook: Any = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    NotebookClient(notebook, timeout=120, kernel_name="python3", allow_errors=True).execute()
    _, *mistakes, own, _ = notebook.cells
    for cell, expected in zip(mistakes, _MISTAKES.values(), strict=True):
        errors = [output for output in cell.outputs if output.output_type == "error"]
        assert len(errors) == 1, cell
        seen("\n".join(errors[0].traceback).split("\n"), expected)
        shown = [output.data["text/html"] for output in cell.outputs if "data" in output]
        folded = [html for html in shown if html.startswith("<details><summary>The whole error</summary>")]
        assert len(folded) == ("strat" not in cell.source), cell
    assert "Traceback" in mistakes[0].outputs[-1].data["text/html"]
    assert mistakes[0].outputs[0].evalue.startswith("Input X contains NaN.\nKMeans does not accept")
    (error,) = own.outputs
    assert "Traceback (most recent call last)" in _COLOURS.sub("", "\n".join(error.traceback))


def test_ipython_shows_five_lines_and_says_how_to_see_all(shell: Any, capsys: pytest.CaptureFixture[str]) -> None:
    shell.run_cell(_BEGIN).raise_error()
    capsys.readouterr()
    for cell, expected in _MISTAKES.items():
        result = shell.run_cell(cell)
        assert result.error_in_exec is not None
        said = capsys.readouterr().out.rstrip("\n").split("\n")
        number = re.compile(r"cell \d+")  # other tests of this process have run cells
        seen([number.sub("cell", line) for line in said], [number.sub("cell", line) for line in expected])
        if "strat" not in cell:
            assert said[-1] == "%tb shows all"
            shell.run_line_magic("tb", "")
            assert len(capsys.readouterr().out.split("\n")) > LINES
    assert shell.run_cell(f"%%xpu_profile\n{_OWN}").error_in_exec is not None  # xpulab has called the user's code
    assert "Traceback (most recent call last)" in capsys.readouterr().out


def test_a_program_sees_the_whole_traceback(pair: xpulab.XPUCluster) -> None:
    lines = _BEGIN.replace("%xpu_cluster start -n 1", f"xpulab.XPUCluster.attach({pair.known_as!r})").split("\n")
    program = "\n".join([*[line for line in lines if not line.startswith("%")], "KMeans(2).fit(bad)"])
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    said = done.stderr
    assert "Traceback (most recent call last)" in said
    assert "ValueError: Input X contains NaN.\nKMeans does not accept" in said
    assert said.rstrip().endswith("The first such value is in row 7, column 2.")
