"""Builds programs from the SPIR-V of kernels with the device's compiler, and stores them for other processes."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cache as cached

from xpulab.exceptions import KernelBuildError
from xpulab.kernels.runtime import cache
from xpulab.kernels.runtime.catalogue import Compiled
from xpulab.kernels.runtime.device import Device
from xpulab.kernels.runtime.opencl import Compiler, CompilerError
from xpulab.kernels.runtime.submit import library
from xpulab.libraries import oneapi

__all__ = ["Program", "build"]


@dataclass(frozen=True)
class Program:
    """A kernel that a device can start.

    Attributes
    ----------
    reference : int
        dpctl's reference of the SYCL kernel, which is never freed.
    most : int
        Largest number of work-items of a work-group.
    """

    reference: int
    most: int


def build(device: Device, name: str, compiled: Compiled, n_values: int) -> Program:
    """Build the program of a kernel with the device's compiler, or take it from the cache.

    Parameters
    ----------
    device : Device
    name : str
        Name of the kernel, for messages.
    compiled : Compiled
        The kernel's SPIR-V.
    n_values : int
        Number of values that a launch passes.

    Returns
    -------
    Program

    Raises
    ------
    KernelBuildError
        If the compiler rejects the kernel.
    """
    device.while_compiling()
    try:
        if Compiler.serves(device.queue):
            compiler = _compiler(device)
            reference = compiler.kernel(_kept_program(device, compiler, compiled.spirv), compiled.entry)
        else:  # Level Zero, whose drivers have their own caches
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
    """Return dpctl's reference of a kernel, which is never freed; None if the program has no such kernel.

    dpctl's create_program_from_spirv is not used, because no other thread of Python can run until the driver has
    finished: without heartbeats, the engine would appear to be stuck.
    """
    bundle = library.DPCTLKernelBundle_CreateFromSpirv(*_sycl(device), compiled.spirv, len(compiled.spirv), b"")
    if not bundle:
        raise CompilerError("the compiler's message is in the engine's log; type: %xpu_cluster logs")
    return library.DPCTLKernelBundle_GetKernel(bundle, compiled.entry.encode())


@cached
def _sycl(device: Device) -> tuple[int, int]:
    """Return dpctl's references of the SYCL context and device."""
    queue = device.queue.addressof_ref()
    return library.DPCTLQueue_GetContext(queue), library.DPCTLQueue_GetDevice(queue)


def _kept_program(device: Device, compiler: Compiler, spirv: bytes) -> int:
    key = hashlib.sha256(_machine(device) + spirv).hexdigest()
    program = _taken_up(compiler, key)
    if program is None:
        with cache.claimed(key, device.while_compiling):
            program = _taken_up(compiler, key)  # another engine may have compiled it in the meantime
            if program is None:
                program = compiler.from_spirv(spirv)
                cache.store(key, compiler.binary(program))
    return program


def _taken_up(compiler: Compiler, key: str) -> int | None:
    binary = cache.load(key)
    try:
        return None if binary is None else compiler.from_binary(binary)
    except CompilerError:  # the driver has changed, but not its version: compile again, and replace the file
        return None


@cached
def _compiler(device: Device) -> Compiler:
    return Compiler(*_sycl(device))


@cached
def _machine(device: Device) -> bytes:
    """Return a text with all that a binary depends on: the device, its driver, and, for a CPU, its instructions.

    The instructions are included because hosts with different processors of the same name may share a cache folder.
    """
    about = device.describe()
    facts = [about.name, about.driver, about.backend]
    if device.is_cpu:
        facts += oneapi.processor()
    return json.dumps(facts).encode()
