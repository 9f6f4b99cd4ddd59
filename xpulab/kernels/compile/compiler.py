"""Compiles kernels to SPIR-V with numba-dpex. No other module imports numba-dpex, and engines do not import this one.

xpulab does not use numba-dpex's `call_kernel`: it does not report a failed submission, crashes the process if the
device's compiler rejects a kernel, compiles a host function for each launch in the source, and takes three
times as long for a launch.
"""

from __future__ import annotations

import dis
import itertools
from collections.abc import Callable
from functools import cache
from importlib.metadata import version
from types import CellType, FunctionType
from typing import TYPE_CHECKING, Any

import dpctl
import numba_dpex
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.bytecode import FunctionIdentity
from numba.core.errors import NumbaError
from numba.core.registry import cpu_target
from numba.core.target_extension import target_override
from numba.extending import intrinsic
from numba_dpex import kernel_api
from numba_dpex.core.types import DpctlSyclQueue, USMNdArray
from numba_dpex.core.types.kernel_api.index_space_ids import NdItemType
from numba_dpex.core.types.kernel_api.local_accessor import LocalAccessorType
from numba_dpex.kernel_api.memory_enums import AddressSpace

from xpulab.exceptions import KernelBuildError
from xpulab.kernels import language
from xpulab.kernels.compile.compiler_vectors import multiply_columns, stage_columns, transpose
from xpulab.kernels.language import DeviceFunction, Kernel
from xpulab.kernels.runtime.catalogue import Compiled

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numba.core.base import BaseContext
    from numba.core.typing.context import BaseContext as TypingContext
    from numba.core.typing.templates import Signature

__all__ = ["COMPILER", "compiled", "renumber", "warm_up"]

#: Names and versions of the compiler's packages, for the catalogue.
COMPILER = ", ".join(f"{name} {version(name)}" for name in ("numba-dpex", "numba", "dpcpp-llvm-spirv"))


@intrinsic(target="spirv")
def _fma(typing_context: TypingContext, a: types.Type, b: types.Type, c: types.Type) -> Any:
    return a(a, a, a), lambda context, builder, signature, arguments: builder.fma(*arguments)


@intrinsic(target="spirv")
def _prefetch(typing_context: TypingContext, array: types.Type, first: types.Type, size: types.Type) -> Any:
    def build(context: BaseContext, builder: ir.IRBuilder, signature: Signature, arguments: Sequence[ir.Value]) -> Any:
        element = {types.float32: "f", types.float64: "d"}[signature.args[0].dtype]
        data = arguments[0]
        if not isinstance(signature.args[0], types.CPointer):
            data = context.make_array(signature.args[0])(context, builder, value=data).data
        address = builder.gep(data, [arguments[1]])
        type_ = ir.FunctionType(ir.VoidType(), [address.type, arguments[2].type])
        name = f"_Z20__spirv_ocl_prefetchPU3AS1K{element}m"
        function = cgutils.get_or_insert_function(builder.module, type_, name)
        function.calling_convention = "spir_func"
        builder.call(function, [address, arguments[2]]).calling_convention = "spir_func"
        return context.get_dummy_value()

    return types.void(array, types.uint64, types.uint64), build


_MEANINGS: dict[Callable[..., Any], Any] = {
    language.fma: _fma,
    language.prefetch: _prefetch,
    language.group_barrier: kernel_api.group_barrier,
    language.PrivateArray: kernel_api.PrivateArray,
    language.AtomicRef: kernel_api.AtomicRef,
    language.stage_columns: stage_columns,
    language.multiply_columns: multiply_columns,
    language.transpose: transpose,
}
_FIRST = 100_000  # first number of functions, see `renumber`
_TYPES = {"f4": types.float32, "f8": types.float64, "i4": types.int32, "i8": types.int64}


def compiled(kernel: Kernel) -> Compiled:
    """Compile a kernel.

    Raises
    ------
    KernelBuildError
        If the kernel does not compile, or has statements that numba-dpex would compile to something else.
    """
    name, function = kernel.name, _with_meanings(kernel.function)
    if any(step.opname == "RAISE_VARARGS" for step in dis.get_instructions(function)):
        raise KernelBuildError(f"{name}: raise and assert only end a work-item, unseen; write an error code instead")
    signature = types.void(NdItemType(1), *(_type(word) for word in kernel.signature))
    # Without the first line numba-dpex does not find range(), and without the second no index functions, unless its
    # call_kernel was used before.
    cpu_target.target_context.refresh()
    try:
        with target_override("spirv"):
            # With the "python" error model, a division by zero would end a work-item without any message.
            dispatcher = numba_dpex.kernel([signature], error_model="numpy")(function)
        module = dispatcher.overloads[signature.args].kernel_device_ir_module
    except NumbaError as error:
        raise KernelBuildError(f"{name} does not compile: {error}") from error
    return Compiled(module.kernel_name, kernel.digest, module.kernel_bitcode)


@cache
def warm_up() -> None:
    """Make numba do its one-time work now, so that processes forked from this one need not repeat it."""

    @language.kernel("f4[]")
    def fill(item, x):  # type: ignore[no-untyped-def]
        x[language.index(item.get_global_id(0))] = np.float32(0)

    compiled(fill)


def renumber() -> None:
    """Make the names of compiled functions the same in any process. Call it once, before the first compilation.

    Numba numbers functions, and their names contain the numbers. A number must not be used twice, because two functions
    with the same name would become one.
    """
    FunctionIdentity._unique_ids = itertools.count(_FIRST)


def _with_meanings(function: Callable[..., Any]) -> FunctionType:
    """Return the same function, in which the names of `language` stand for the functions of numba-dpex."""
    assert isinstance(function, FunctionType)
    code = function.__code__
    names = {name: _meaning(function.__globals__[name]) for name in code.co_names if name in function.__globals__}
    closure = tuple(CellType(_meaning(cell.cell_contents)) for cell in function.__closure__ or ())
    return FunctionType(code, names, function.__name__, function.__defaults__, closure)


def _meaning(value: object) -> Any:
    if isinstance(value, DeviceFunction):
        return _device_function(value)
    return _MEANINGS.get(value, value) if isinstance(value, FunctionType) else value


@cache
def _device_function(function: DeviceFunction) -> Any:
    return numba_dpex.device_func(_with_meanings(function.function))


def _type(word: str) -> Any:
    """Return the numba type of an argument, from its word in a signature."""
    element, kind = _TYPES[word[:2]], word[2:]
    if kind == "":
        return element
    if kind == "*":
        return types.CPointer(element, addrspace=AddressSpace.GLOBAL.value)
    queue = DpctlSyclQueue(_queue())
    if kind == "@":
        local = LocalAccessorType(1, element)
        local.queue = queue  # otherwise numba-dpex would accept only kernels for the default queue
        return local
    return USMNdArray(1, layout="C", dtype=element, queue=queue)


@cache
def _queue() -> dpctl.SyclQueue:
    """Return any queue: the types of arrays need one, but the code does not depend on it."""
    return dpctl.SyclQueue()
