"""Compile and launch numba-dpex kernels, so that what numba-dpex would pass over in silence is an error.

numba-dpex compiles the function to SPIR-V; dpctl builds that for the device, and submits it. numba-dpex's own
`call_kernel` is not used: it says nothing of a failed submission, crashes the process when the device's compiler
refuses a kernel, compiles a host function for each launch site as well, and takes three times as long per launch.
"""

from __future__ import annotations

import ctypes
import dis
import functools
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import dpctl.tensor as dpt
import numba_dpex
import numpy as np
from dpctl.program import SyclProgramCompilationError, create_program_from_spirv
from llvmlite import ir
from numba import from_dtype, types
from numba.core import cgutils
from numba.core.errors import NumbaError
from numba.core.event import Listener, install_listener
from numba.core.registry import cpu_target
from numba.core.target_extension import target_override
from numba.extending import intrinsic
from numba_dpex.core.types import DpctlSyclQueue, USMNdArray
from numba_dpex.core.types.kernel_api.index_space_ids import NdItemType
from numba_dpex.core.types.kernel_api.local_accessor import LocalAccessorType
from numba_dpex.kernel_api.memory_enums import AddressSpace

from xpulab.exceptions import DeviceError, KernelBuildError, KernelLaunchError
from xpulab.kernels import cache
from xpulab.kernels.device import Device
from xpulab.kernels.submit import KINDS, LOCAL, POINTER, LocalMemory, submission

__all__ = ["Local", "Prepared", "Specialisation", "fma", "index", "launch", "prefetch", "prepare", "specialise"]

#: Wraps each array index in a kernel: ``data[index(i)]``. Numba lets a signed index count from the end; the test for
#: that hides from the device's compiler that neighbours read neighbouring numbers, and costs up to a factor of ten.
index = np.uint64

_MAX_ITEMS = 2**31 - 1  # more are not launched
_CTYPES: dict[type, Any] = {
    np.float32: ctypes.c_float,
    np.float64: ctypes.c_double,
    np.int32: ctypes.c_int32,
    np.int64: ctypes.c_int64,
}
#: How an array is passed, for as long as it lives: a launch of fifteen arguments would else spend 50 us on that.
#: By id, because arrays have no hash, and whether it is the first; the weak reference takes the entry out again.
_passed: dict[tuple[int, bool], _Passed] = {}
_INTEGER = KINDS[ctypes.c_int64]


@intrinsic(target="spirv")
def fma(typing_context: Any, a: Any, b: Any, c: Any) -> Any:
    """``a * b + c`` with one rounding, in a kernel.

    numba-dpex marks its kernels ContractionOff, so ``a * b + c`` is two instructions: half the speed.
    """
    return a(a, a, a), lambda context, builder, signature, arguments: builder.fma(*arguments)


@intrinsic(target="spirv")
def prefetch(typing_context: Any, array: Any, first: Any, size: Any) -> Any:
    """Have the device load ``array[first:first + size]`` into a cache, in a kernel, without waiting for it.

    OpenCL's function of that name [1]_. A CPU loads the lines; a device without such a thing does nothing.

    References
    ----------
    .. [1] OpenCL Extended Instruction Set Specification, "prefetch".
    """

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
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


@dataclass(frozen=True)
class Local:
    """Memory that the items of a work-group share while they run: as a kernel's argument, an array for each group.

    Attributes
    ----------
    size : int
        Number of elements, which hold anything at first.
    dtype : numpy.dtype
    """

    size: int
    dtype: np.dtype[Any]


@dataclass(frozen=True)
class Specialisation:
    """A kernel compiled for one set of argument types.

    Attributes
    ----------
    name : str
    spirv : bytes
    kernel : dpctl.program.SyclKernel
    most : int
        Work-items that a work-group may have.
    kinds : ctypes array of int
        How each value is passed, as `submit` takes them.
    """

    name: str
    spirv: bytes
    kernel: Any
    most: int
    kinds: Any


class Prepared:
    """A launch to be made again and again: of the same kernel, on the same arrays, with the same numbers.

    Made by `prepare`; a call starts it, as `launch` does. It keeps the arrays alive.

    Attributes
    ----------
    name : str
        The kernel's, as the compiler made it.
    """

    def __init__(
        self, device: Device, specialisation: Specialisation, groups: int, size: int, passed: list[_Passed], keep: Any
    ) -> None:
        if not (groups > 0 and 0 < size <= specialisation.most and groups * size <= _MAX_ITEMS):
            raise KernelLaunchError(
                f"{specialisation.name}: {groups:,} work-groups of {size:,} work-items were asked for; {device.name} "
                f"takes 1 to {specialisation.most:,} in a work-group and {_MAX_ITEMS:,} in all; use more engines, or "
                "fewer rows"
            )
        self._device = device
        self.name = specialisation.name
        self._keep = specialisation, passed, keep
        values = [value for each in passed for value in each.values]
        self._submit = submission(
            device.queue, specialisation.kernel.addressof_ref(), values, specialisation.kinds, groups * size, size
        )
        self._asked = f"{groups:,} work-groups of {size:,}"

    def __call__(self) -> None:
        event = self._submit()
        if event is None:
            raise KernelLaunchError(
                f"{self.name}: {self._device.name} did not take {self._asked}; its memory may be full: use fewer rows"
            )
        self._device.track(event, self)


def launch(device: Device, function: Callable[..., None], groups: int, size: int, *arguments: Any) -> None:
    """Start a kernel on `groups` work-groups of `size` work-items each; it runs after those started before it.

    Parameters
    ----------
    device : Device
    function : callable
        A plain function of ``(nd_item, *arguments)``. Closures over numbers are folded; keep the function object
        (e.g. by caching its factory), since each new one is compiled anew.
    groups, size : int
    *arguments : dpctl.tensor.usm_ndarray, numpy scalar or Local
        Flat contiguous arrays on the device's queue; float32, float64, int32 and int64. Only the first one can be
        given to `AtomicRef`. A kernel gets lengths as arguments: only whole work-groups are launched, and it guards
        its tail.

    Raises
    ------
    KernelBuildError
        If the kernel does not compile.
    KernelLaunchError
        If the sizes are beyond the device, or the device did not take the kernel.
    DeviceError
        If an argument is float64 on a device without it, or of another type than those above.
    """
    prepare(device, function, groups, size, *arguments)()


def prepare(device: Device, function: Callable[..., None], groups: int, size: int, *arguments: Any) -> Prepared:
    """What `launch` does before it starts the kernel; the parameters and errors are the same."""
    passed = _pass_all(arguments)
    return Prepared(device, _specialise(device, function, passed, arguments), groups, size, passed, arguments)


def specialise(device: Device, function: Callable[..., None], *arguments: Any) -> Specialisation:
    """The kernel for these arguments' types: compiled and built the first time, and kept with the device.

    Raises
    ------
    KernelBuildError, DeviceError
        See `launch`.
    """
    return _specialise(device, function, _pass_all(arguments), arguments)


def _specialise(
    device: Device, function: Callable[..., None], passed: list[_Passed], arguments: tuple[Any, ...]
) -> Specialisation:
    key = function, tuple([each.kind for each in passed])
    found = device.specialisations.get(key)
    if found is None:
        start = time.perf_counter()
        found = device.specialisations[key] = _build(device, function, passed, arguments)
        device.compile_seconds += time.perf_counter() - start
    return found


class _Passed(NamedTuple):
    """How a kernel is given an argument.

    Attributes
    ----------
    kind : Any
        What the compiled code depends on: the type of a scalar, or an array's.
    values : tuple of int
        Addresses, as `submit` takes them.
    kinds : tuple of int
        Of each value, also as `submit` takes them.
    keep : Any
        What has to live as long as the addresses are used.
    """

    kind: Any
    values: tuple[int, ...]
    kinds: tuple[int, ...]
    keep: Any


def _pass_all(arguments: tuple[Any, ...]) -> list[_Passed]:
    passed, first = [], True
    for argument in arguments:
        if isinstance(argument, dpt.usm_ndarray):
            passed.append(_pass_array(argument, first))
            first = False
        else:
            passed.append(_pass_local(argument) if isinstance(argument, Local) else _pass_number(argument))
    return passed


def _pass_array(array: dpt.usm_ndarray, first: bool) -> _Passed:
    """The first one as numba-dpex does, which wants one such array; the others as pointers.

    That is size, itemsize, data, shape and stride, and a launch takes 0.4 us for each value.
    """
    key = id(array), first
    found = _passed.get(key)
    if found is None:
        if array.ndim != 1 or not array.flags.c_contiguous:
            raise KernelLaunchError(f"an array of shape {array.shape} was given, a flat contiguous one expected")
        data = array.usm_data._pointer
        gone = weakref.ref(array, lambda _: _passed.pop(key, None))
        if first:
            facts = (ctypes.c_int64 * 2)(array.size, array.itemsize)
            size, itemsize = ctypes.addressof(facts), ctypes.addressof(facts) + 8
            kinds = _INTEGER, _INTEGER, POINTER, _INTEGER, _INTEGER
            found = _Passed(f"array of {array.dtype}", (size, itemsize, data, size, itemsize), kinds, (facts, gone))
        else:
            found = _Passed(f"pointer to {array.dtype}", (data,), (POINTER,), gone)
        _passed[key] = found
    return found


def _pass_number(argument: Any) -> _Passed:
    kind = type(argument)
    if kind not in _CTYPES:
        return _Passed(kind, (), (), None)  # refused where it would be compiled
    number = _CTYPES[kind](argument.item())
    return _Passed(kind, (ctypes.addressof(number),), (KINDS[_CTYPES[kind]],), number)


@functools.cache
def _pass_local(memory: Local) -> _Passed:
    facts = (ctypes.c_int64 * 2)(memory.size, memory.dtype.itemsize)
    size, itemsize = ctypes.addressof(facts), ctypes.addressof(facts) + 8
    wanted = LocalMemory(1, KINDS[_CTYPES[memory.dtype.type]], (ctypes.c_size_t * 3)(memory.size, 1, 1))
    kinds = _INTEGER, _INTEGER, LOCAL, _INTEGER, _INTEGER
    values = size, itemsize, ctypes.addressof(wanted), size, itemsize
    return _Passed(f"local {memory.dtype}", values, kinds, (facts, wanted))


def _build(
    device: Device, function: Callable[..., None], passed: list[_Passed], arguments: tuple[Any, ...]
) -> Specialisation:
    name = function.__name__
    types_ = tuple(_numba_type(device, name, *each) for each in zip(arguments, passed, strict=True))
    key = cache.key_of(function, tuple(each.kind for each in passed))
    found = cache.load(key)
    if found is None:
        with cache.claimed(key, device.while_compiling):
            found = cache.load(key)  # another engine may have compiled it meanwhile
            if found is None:
                with install_listener("numba:run_pass", _Asks(device)):
                    found = _compile(function, types_)
                cache.store(key, *found)
    entry, spirv = found
    device.while_compiling()
    try:
        program = create_program_from_spirv(device.queue, spirv)
    except SyclProgramCompilationError as error:
        raise KernelBuildError(f"{name}: the compiler of {device.name} refused the kernel: {error}") from error
    kernel = program.get_sycl_kernel(entry)
    kinds = [kind for each in passed for kind in each.kinds]
    if len(kinds) != kernel.num_args:
        raise KernelBuildError(f"{name}: {len(kinds)} values for the kernel's {kernel.num_args} arguments")
    most = min(device.max_group, kernel.work_group_size)
    return Specialisation(name, spirv, kernel, most, (ctypes.c_int * len(kinds))(*kinds))


class _Asks(Listener):
    """Between two of numba's passes, which take most of a second for the largest kernels; all of them take three."""

    def __init__(self, device: Device) -> None:
        self._device = device

    def on_start(self, event: Any) -> None:
        self._device.while_compiling()

    def on_end(self, event: Any) -> None:
        pass


def _compile(function: Callable[..., None], kinds: tuple[Any, ...]) -> tuple[str, bytes]:
    """The kernel's name in its SPIR-V, and that."""
    name = function.__name__
    if any(step.opname == "RAISE_VARARGS" for step in dis.get_instructions(function)):
        raise KernelBuildError(f"{name}: raise and assert only end a work-item, unseen; write an error code instead")
    signature = types.void(NdItemType(1), *kinds)
    # Without the first line numba-dpex finds no range(), without the second no index functions, unless its own
    # call_kernel ran before.
    cpu_target.target_context.refresh()
    try:
        with target_override("spirv"):
            # The "python" error model would end a work-item, unseen, where it divides by zero.
            dispatcher = numba_dpex.kernel([signature], error_model="numpy")(function)
        module = dispatcher.overloads[signature.args].kernel_device_ir_module
    except NumbaError as error:
        raise KernelBuildError(f"{name} does not compile: {error}") from error
    return module.kernel_name, module.kernel_bitcode


def _numba_type(device: Device, name: str, argument: Any, passed: _Passed) -> Any:
    """The numba type of a kernel argument.

    Raises
    ------
    DeviceError
        If it is of a type that kernels do not take, or float64 where there is none.
    """
    dtype = getattr(argument, "dtype", None)
    if dtype is None or dtype.type not in _CTYPES:
        raise DeviceError(
            f"{name}: an argument of type {dtype or type(argument).__name__} was given, float32, float64, int32 or "
            "int64 expected; cast floats to float32, and wrap a Python number as np.float32(...) or np.int64(...)"
        )
    if dtype == np.float64:
        device.check_dtype(dtype)
    if isinstance(argument, Local):
        local = LocalAccessorType(1, from_dtype(dtype))
        local.queue = DpctlSyclQueue(device.queue)  # numba-dpex would only take kernels for the default queue
        return local
    if not isinstance(argument, dpt.usm_ndarray):
        return from_dtype(dtype)
    if len(passed.values) == 1:
        return types.CPointer(from_dtype(dtype), addrspace=AddressSpace.GLOBAL.value)
    return USMNdArray(1, layout="C", dtype=from_dtype(dtype), queue=DpctlSyclQueue(device.queue))
