"""Rows on the engines live as long as their handle."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from waiting import until

import xpulab

pytestmark = pytest.mark.cluster


def test_a_handle_is_freed_without_code_of_python_into_which_ctrl_c_could_fall(on_pair: xpulab.XPUCluster) -> None:
    handle, called = on_pair.scatter(np.ones((9, 2))), list[str]()
    name = handle.id
    assert name in on_pair.handles()
    sys.setprofile(lambda frame, event, _: called.append(frame.f_code.co_name) if event == "call" else None)
    try:
        del handle
    finally:
        sys.setprofile(None)
    assert called == []
    until(lambda: name not in on_pair.handles())
