"""Columns of a copy of a table can be replaced, as scikit-learn's permutation importance does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import sklearn.linear_model
from numpy.testing import assert_allclose, assert_array_equal
from sent import nothing_sent
from sklearn.inspection import permutation_importance
from waiting import until

import xpulab
from xpulab.linear_model import Ridge

pytestmark = pytest.mark.cluster

RNG = np.random.default_rng(0)
FRAME = pd.DataFrame(RNG.normal(size=(203, 3)), columns=["a", "b", "c"])
WORDS = FRAME.assign(word=np.array(["blue", "green", "red"])[RNG.integers(0, 3, 203)])
Y = FRAME.to_numpy() @ [1.0, 3, 0] + RNG.normal(size=203)


def test_importances_are_those_of_a_data_frame(current: xpulab.XPUCluster) -> None:
    """The rows are on the engines in any shares; the engines permute a column, and the labels are in this process."""
    counts = [203 - 2 * (current.size - 1)] + [2] * (current.size - 1)
    table = current.scatter(FRAME, counts=counts)
    ours, theirs = Ridge().fit(table, current.scatter(Y, counts=counts)), sklearn.linear_model.Ridge().fit(FRAME, Y)
    given: dict[str, Any] = {"n_repeats": 3, "random_state": 0}
    found = permutation_importance(ours, table, Y, **given)
    expected = permutation_importance(theirs, FRAME, Y, **given)
    assert_allclose(found.importances, expected.importances, 1e-9, 1e-12)
    some = permutation_importance(ours, table, Y, max_samples=50, **given)
    assert_allclose(some.importances, permutation_importance(theirs, FRAME, Y, max_samples=50, **given).importances)
    assert_allclose(table.gather(), FRAME)  # the rows themselves are as they were


def test_a_column_of_a_copy_is_replaced(on_pair: xpulab.XPUCluster) -> None:
    table: Any = on_pair.scatter(WORDS)
    copy, order = table.copy(), np.arange(203)[::-1]
    word = copy.iloc[order, 3]
    word.index = copy.index
    copy[copy.columns[3]] = word
    copy["a"] = copy["b"]
    assert_array_equal(copy.head(203).to_pandas()["word"], WORDS["word"][::-1])
    assert_array_equal(copy.head(203).to_pandas()[["a", "b", "c"]], WORDS[["b", "b", "c"]])
    assert_array_equal(table.head(203).to_pandas()["word"], WORDS["word"])
    assert copy.digest != table.digest
    handles = len(on_pair.handles())
    del copy
    until(lambda: len(on_pair.handles()) < handles)  # the engines free rows before a later task


def test_what_is_refused(on_pair: xpulab.XPUCluster) -> None:
    table: Any = on_pair.scatter(WORDS)
    with pytest.raises(TypeError, match=r"expected a copy: type: table.copy\(\)"):
        table["a"] = table["b"]
    copy = table.copy()
    other: Any = on_pair.scatter(WORDS.assign(word="blue"))
    column = table["b"]
    with nothing_sent(on_pair):
        with pytest.raises(KeyError, match="there is no column 'd'; the columns are a, b, c, word"):
            copy["d"] = column
        with pytest.raises(TypeError, match="'a' was to be replaced by ndarray; expected a column on the same engines"):
            copy["a"] = np.zeros(203)
    with pytest.raises(ValueError, match="'word' was to be replaced by one with other strings"):
        copy["word"] = other["word"]
    with pytest.raises(TypeError, match="was asked of a table whose rows are on the engines"):
        copy.iloc[[1, 2], [0, 1]]
    assert_array_equal(copy.iloc[[5, 2], 1].gather(), WORDS["b"][[5, 2]])
