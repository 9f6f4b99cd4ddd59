"""The way of an array from `KMeans.fit` to the engines: few functions get it."""

from __future__ import annotations

import itertools
import sys
from collections import Counter
from types import FrameType

import numpy as np
import pytest

import xpulab
from xpulab.cluster import KMeans

pytestmark = pytest.mark.cluster


def test_rows_pass_few_modules_and_most_of_them_once(on_pair: xpulab.XPUCluster) -> None:
    X, passed = np.random.default_rng(0).normal(size=(1500, 2)), []

    def note(frame: FrameType, event: str, _: object) -> None:
        """Note the module of a function of xpulab that is called with X."""
        code, module = frame.f_code, frame.f_globals.get("__name__", "")
        if event == "call" and module.startswith("xpulab."):
            arguments = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
            values = [frame.f_locals.get(name) for name in arguments]
            if any(isinstance(value, np.ndarray) and np.shares_memory(value, X) for value in values):
                passed.append(module)

    KMeans(3, n_init=1).fit(X)
    sys.setprofile(note)
    try:
        KMeans(3, n_init=1).fit(X)
    finally:
        sys.setprofile(None)
    entered = Counter(module.removeprefix("xpulab.") for module, _ in itertools.groupby(passed))
    assert len(entered) <= 11, entered
    # `fit` gives X to the checks, and then to the input that it keeps for `resume`. The checks ask whether the engines
    # read the file of X, and whether X is looked through while it is copied; the call asks the first again, and whether
    # X is in memory that the engines reach, and copies. Between these, it packs X, asks which rank gets which rows, and
    # places a label for each row.
    often = {"cluster._kmeans": 2, "scanning": 2, "sharing.memory": 2, "data": 2, "estimator.sending": 3}
    assert {module: times for module, times in entered.items() if times > 1} == often, passed
