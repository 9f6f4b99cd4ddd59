"""Kernels that the compilation rejects, if numba-dpex is installed."""

from __future__ import annotations

import importlib.util

import pytest

from xpulab.exceptions import KernelBuildError
from xpulab.kernels.language import index, kernel

pytestmark = pytest.mark.skipif(importlib.util.find_spec("numba_dpex") is None, reason="numba-dpex is not installed")


def test_a_kernel_that_does_not_compile_raises():
    @kernel("f4[]")
    def wrong(item, x):
        x[index(item.get_global_id(0))] = no_such_name  # noqa: F821

    from xpulab.kernels.compile.compiler import compiled  # whose imports take a second in each worker

    with pytest.raises(KernelBuildError, match="wrong does not compile"):
        compiled(wrong)


def test_an_exception_inside_a_kernel_is_refused():
    @kernel("f4[]")
    def checked(item, x):
        if x[index(item.get_global_id(0))] < 0:
            raise ValueError

    from xpulab.kernels.compile.compiler import compiled

    with pytest.raises(KernelBuildError, match="write an error code instead"):
        compiled(checked)
