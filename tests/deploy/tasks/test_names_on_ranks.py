"""The names on the ranks of a cluster, as a table with HTML and text."""

from __future__ import annotations

import json

import numpy as np
import pytest
from reports import EVIL, Document

import xpulab
from xpulab.console.cells import run_cell
from xpulab.deploy.tasks.names import Names
from xpulab.sharing.variables import Variable


@pytest.mark.cluster
def test_the_ranks_tell_their_variables_and_rows(pair: xpulab.XPUCluster) -> None:
    rows = pair.scatter(np.ones((7, 3), np.float32), name="seven rows")
    pair.push({"both_have": np.arange(10.0), "part_of": np.zeros((4, 2))})
    pair.push({"part_of": np.arange(8.0).reshape(4, 2)}, scatter=True)
    run_cell(pair, "from math import tau\nonly_one = 'here'\nlist_of = [tau]", ranks=[1])
    names = pair.names()
    lines = {line.split()[0]: line for line in str(names).splitlines()[2:]}
    assert " ".join(lines["both_have"].split()) == "both_have numpy.ndarray of float64 10 80 B 0-1 the same"
    assert " ".join(lines["part_of"].split()) == "part_of numpy.ndarray of float64 2 × 2 32 B 0-1 per rank"
    assert lines["only_one"].split()[-1] == "1"
    assert lines["tau"].split()[:2] == ["tau", "float"]
    assert " ".join(lines["seven"].split()) == "seven rows rows of float32 7 × 3 84 B 0-1 per rank"
    page = Document(names._repr_html_()).text
    assert all(word in page for word in ("both_have", "part_of", "only_one", "the same", "seven rows"))
    assert json.loads(json.dumps(names.to_dict()))["rows"][-1]["dtype"] == "float32"
    pair.release(rows)
    assert "seven rows" not in str(pair.names())


def test_ranks_without_variables_have_no_table() -> None:
    names = Names({0: [], 1: []})
    assert str(names) == "0 names on 2 ranks, 0 B"
    assert "<table" not in names._repr_html_()


def test_names_and_types_from_a_cell_are_escaped() -> None:
    names = Names({0: [Variable("x", EVIL, (), 1, "")], 1: [Variable("x", EVIL, (), 1, "")]})
    assert "<script" not in names._repr_html_()
    assert "not compared" in str(names)
