"""Kernels that the compilation rejects, if numba-dpex is installed."""

from __future__ import annotations

import pytest

from xpulab.exceptions import KernelBuildError
from xpulab.kernels.language import index, kernel

pytest.importorskip("numba_dpex")

from xpulab.kernels.compile.compiler import compiled


def test_a_kernel_that_does_not_compile_raises():
    @kernel("f4[]")
    def wrong(item, x):
        x[index(item.get_global_id(0))] = no_such_name  # noqa: F821

    with pytest.raises(KernelBuildError, match="wrong does not compile"):
        compiled(wrong)


def test_an_exception_inside_a_kernel_is_refused():
    @kernel("f4[]")
    def checked(item, x):
        if x[index(item.get_global_id(0))] < 0:
            raise ValueError

    with pytest.raises(KernelBuildError, match="write an error code instead"):
        compiled(checked)
