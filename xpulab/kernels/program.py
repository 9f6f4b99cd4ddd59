"""Programs, which a device's own compiler makes of a kernel's SPIR-V, and files that keep them for other processes."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cache as cached

from xpulab import oneapi
from xpulab.exceptions import KernelBuildError
from xpulab.kernels import cache
from xpulab.kernels.catalogue import Compiled
from xpulab.kernels.device import Device
from xpulab.kernels.opencl import Compiler, CompilerError
from xpulab.kernels.submit import library

__all__ = ["Program", "build"]


@dataclass(frozen=True)
class Program:
    """A kernel that a device can start.

    Attributes
    ----------
    reference : int
        dpctl's, of the SYCL kernel. It is never freed.
    most : int
        Work-items that a work-group may have.
    """

    reference: int
    most: int


def build(device: Device, name: str, compiled: Compiled, n_values: int) -> Program:
    """Have the device's compiler make a program, or take one that it has made for an earlier process.

    Parameters
    ----------
    device : Device
    name : str
        The kernel's, for messages.
    compiled : Compiled
    n_values : int
        How many values a launch passes.

    Raises
    ------
    KernelBuildError
        If the compiler refuses it.
    """
    device.while_compiling()
    try:
        if Compiler.serves(device.queue):
            compiler = _compiler(device)
            reference = compiler.kernel(_kept_program(device, compiler, compiled.spirv), compiled.entry)
        else:  # Level Zero, whose drivers keep what they compile themselves
            reference = _made_by_sycl(device, compiled)
    except CompilerError as error:
        raise KernelBuildError(f"{name}: the compiler of {device.name} refused the kernel: {error}") from error
    if reference is None:
        raise KernelBuildError(f"{name}: its program has no {compiled.entry}; install xpulab again")
    if n_values != library.DPCTLKernel_GetNumArgs(reference):
        raise KernelBuildError(
            f"{name}: {n_values} values for the kernel's {library.DPCTLKernel_GetNumArgs(reference)} arguments"
        )
    most = min(device.max_group, library.DPCTLKernel_GetWorkGroupSize(reference))
    return Program(reference, most)


def _made_by_sycl(device: Device, compiled: Compiled) -> int | None:
    """dpctl's reference of a kernel; None if the program has no such kernel. It is never freed.

    Not by dpctl's create_program_from_spirv, which lets no other thread of Python run until the driver is done: an
    engine whose heart does not beat looks stuck.
    """
    bundle = library.DPCTLKernelBundle_CreateFromSpirv(*_sycl(device), compiled.spirv, len(compiled.spirv), b"")
    if not bundle:
        raise CompilerError("what it said is in the engine's log; type: %xpu_cluster logs")
    return library.DPCTLKernelBundle_GetKernel(bundle, compiled.entry.encode())


@cached
def _sycl(device: Device) -> tuple[int, int]:
    """References of the SYCL context and device."""
    queue = device.queue.addressof_ref()
    return library.DPCTLQueue_GetContext(queue), library.DPCTLQueue_GetDevice(queue)


def _kept_program(device: Device, compiler: Compiler, spirv: bytes) -> int:
    key = hashlib.sha256(_machine(device) + spirv).hexdigest()
    program = _taken_up(compiler, key)
    if program is None:
        with cache.claimed(key, device.while_compiling):
            program = _taken_up(compiler, key)  # another engine may have compiled it meanwhile
            if program is None:
                program = compiler.from_spirv(spirv)
                cache.store(key, compiler.binary(program))
    return program


def _taken_up(compiler: Compiler, key: str) -> int | None:
    binary = cache.load(key)
    try:
        return None if binary is None else compiler.from_binary(binary)
    except CompilerError:  # of a driver that says no other version; it is compiled anew, and kept in the place of this
        return None


@cached
def _compiler(device: Device) -> Compiler:
    return Compiler(*_sycl(device))


@cached
def _machine(device: Device) -> bytes:
    """Text that names all that a binary depends on: the device and its driver, and for a CPU its instructions.

    A folder of caches may be shared by hosts whose processors only have the same name.
    """
    about = device.describe()
    facts = [about["name"], about["driver"], about["backend"]]
    if device.is_cpu:
        facts += oneapi.processor()
    return json.dumps(facts).encode()
