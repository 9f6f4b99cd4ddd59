"""Starts kernels, and raises an error where the runtime would report none.

The catalogue has the SPIR-V of a kernel. The device's driver compiles it once to a program, which the device keeps.
"""

from __future__ import annotations

import ctypes
import functools
import os
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from xpulab.exceptions import DeviceError, KernelLaunchError
from xpulab.kernels.language import Kernel, Local
from xpulab.kernels.runtime.catalogue import find
from xpulab.kernels.runtime.device import Array, Device
from xpulab.kernels.runtime.program import Program, build
from xpulab.kernels.runtime.submit import KINDS, LOCAL, POINTER, LocalMemory, submission

__all__ = ["Prepared", "build_together", "launch", "prepare", "program_of"]

_MAX_ITEMS = 2**31 - 1  # largest number of work-items of a launch
_CTYPES: dict[str, Any] = {
    "f4": ctypes.c_float,
    "f8": ctypes.c_double,
    "i4": ctypes.c_int32,
    "i8": ctypes.c_int64,
}
_DTYPES = {code: np.dtype(code) for code in _CTYPES}
_INTEGER = KINDS[ctypes.c_int64]
#: Word of a signature -> the kinds of the values that a launch passes for such an argument.
_PASSED: dict[str, tuple[int, ...]] = {
    **{code: (KINDS[kind],) for code, kind in _CTYPES.items()},
    **{f"{code}*": (POINTER,) for code in _CTYPES},
    **{f"{code}[]": (_INTEGER, _INTEGER, POINTER, _INTEGER, _INTEGER) for code in _CTYPES},  # as in numba-dpex
    **{f"{code}@": (_INTEGER, _INTEGER, LOCAL, _INTEGER, _INTEGER) for code in _CTYPES},
}


class Prepared:
    """A launch that can be repeated, with the same kernel, the same arrays and the same numbers.

    `prepare` creates it. A call starts the kernel, as `launch` does. It keeps references to the arrays.

    Attributes
    ----------
    name : str
        Name of the kernel.
    """

    def __init__(
        self, device: Device, kernel: Kernel, program: Program, groups: int, size: int, arguments: Sequence[Any]
    ) -> None:
        if not (groups > 0 and 0 < size <= program.most and groups * size <= _MAX_ITEMS):
            raise KernelLaunchError(
                f"{kernel.name}: {groups:,} work-groups of {size:,} work-items were asked for; {device.name} "
                f"takes 1 to {program.most:,} in a work-group and {_MAX_ITEMS:,} in all; use more engines, or "
                "fewer rows"
            )
        self._device = device
        self.name = kernel.name
        values, held = _addresses(kernel, arguments)
        self._keep = program, held, arguments
        kinds = _kinds(kernel.signature)
        self._submit = submission(device.queue, program.reference, values, kinds, groups * size, size)
        self._asked = f"{groups:,} work-groups of {size:,}"

    def __call__(self) -> None:
        event = self._submit()
        if event is None:
            raise KernelLaunchError(
                f"{self.name}: {self._device.name} did not take {self._asked}; its memory may be full: use fewer rows"
            )
        self._device.track(event, self)


def launch(device: Device, kernel: Kernel, groups: int, size: int, *arguments: object) -> None:
    """Start a kernel on `groups` work-groups of `size` work-items. It runs after the kernels that were started before.

    Parameters
    ----------
    device : Device
    kernel : Kernel
        Keep this object, for example by caching the function that makes it, because the device keeps programs by
        kernel.
    groups, size : int
        Number of work-groups, and of work-items of a work-group.
    *arguments : Array, numpy scalar or Local
        Arguments as the kernel's signature says. Only whole work-groups are launched, so a kernel gets the lengths of
        arrays as arguments, and must check them.

    Raises
    ------
    KernelBuildError
        If the catalogue does not have the kernel, or the device's compiler rejects it.
    KernelLaunchError
        If the device does not allow these sizes, or did not start the kernel.
    DeviceError
        If an argument does not match the signature, or is float64 on a device without float64.
    """
    prepare(device, kernel, groups, size, *arguments)()


def prepare(device: Device, kernel: Kernel, groups: int, size: int, *arguments: object) -> Prepared:
    """Do the part of `launch` that comes before the start of the kernel; the parameters and errors are the same."""
    _check(kernel, arguments)
    return Prepared(device, kernel, program_of(device, kernel), groups, size, arguments)


def program_of(device: Device, kernel: Kernel) -> Program:
    """Return the program of a kernel on a device. It is built at the first call, and the device keeps it.

    Raises
    ------
    KernelBuildError, DeviceError
        As `launch`.
    """
    program = device.programs.get(kernel)
    if program is None:
        if any(word.startswith("f8") for word in kernel.signature):
            device.check_dtype(np.float64)
        start = time.perf_counter()
        n_values = len(_kinds(kernel.signature))
        program = device.programs[kernel] = build(device, kernel.name, find(kernel), n_values)
        device.compile_seconds += time.perf_counter() - start
    return program


def build_together(device: Device, kernels: Sequence[Kernel], rank: int) -> None:
    """Build programs before they are needed, on all ranks of a host at the same time.

    As many ranks as there are cores begin with different kernels, and then take the programs of other ranks from the
    cache. If all ranks had the same order, they would all wait for the rank that builds each kernel. More ranks than
    cores do not build, because each rank that builds has to load the compiler, which takes 0.15 s.
    """
    first = rank % min(len(kernels), os.cpu_count() or 1)
    for kernel in (*kernels[first:], *kernels[:first]):
        program_of(device, kernel)


def _check(kernel: Kernel, arguments: Sequence[Any]) -> None:
    if len(arguments) != len(kernel.signature):
        raise DeviceError(f"{kernel.name}: {len(arguments)} arguments were given, {len(kernel.signature)} expected")
    for number, (word, argument) in enumerate(zip(kernel.signature, arguments, strict=True), 1):
        if not _fits(word, argument):
            is_array = isinstance(argument, (Array, Local))
            given = f"{type(argument).__name__}{f' of {argument.dtype}' if is_array else ''}"
            raise DeviceError(
                f"{kernel.name}: argument {number} is of type {given}, {_DTYPES[word[:2]]}{word[2:]} expected; wrap a "
                "Python number as np.float32(...) or np.int64(...)"
            )


def _fits(word: str, argument: object) -> bool:
    dtype, kind = _DTYPES[word[:2]], word[2:]
    if kind == "":
        return type(argument) is dtype.type
    return isinstance(argument, Local if kind == "@" else Array) and argument.dtype == dtype


@functools.cache
def _kinds(signature: tuple[str, ...]) -> ctypes.Array[ctypes.c_int]:
    kinds = [kind for word in signature for kind in _PASSED[word]]
    return (ctypes.c_int * len(kinds))(*kinds)


def _addresses(kernel: Kernel, arguments: Sequence[Any]) -> tuple[list[int], list[Any]]:
    """Return the addresses of the values that a launch passes, and objects that must live as long as the addresses."""
    values: list[int] = []
    held: list[Any] = []
    for word, argument in zip(kernel.signature, arguments, strict=True):
        if isinstance(argument, Local):
            values += _local(argument)[0]
        elif not isinstance(argument, Array):
            number = _CTYPES[word](argument.item())
            held.append(number)
            values.append(ctypes.addressof(number))
        elif word.endswith("*"):
            values.append(argument.pointer)
        else:
            size = ctypes.addressof(argument.facts)
            values += size, size + 8, argument.pointer, size, size + 8  # size, itemsize, data, shape, stride
    return values, held


@functools.cache
def _local(memory: Local) -> tuple[tuple[int, ...], Any]:
    facts = (ctypes.c_int64 * 2)(memory.size, memory.dtype.itemsize)
    size = ctypes.addressof(facts)
    kind = KINDS[_CTYPES[memory.dtype.str[1:]]]
    wanted = LocalMemory(1, kind, (ctypes.c_size_t * 3)(memory.size, 1, 1))
    return (size, size + 8, ctypes.addressof(wanted), size, size + 8), (facts, wanted)
