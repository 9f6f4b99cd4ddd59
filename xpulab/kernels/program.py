"""Programs: what a device's own compiler makes of a kernel's SPIR-V, and what is kept of that for other processes."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cache as cached
from typing import Any

from dpctl.program import SyclProgramCompilationError, create_program_from_spirv

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
    name : str
    spirv : bytes
    reference : int
        dpctl's, of the SYCL kernel.
    most : int
        Work-items that a work-group may have.
    keep : object
        What has to live as long as the reference is used.
    """

    name: str
    spirv: bytes
    reference: int
    most: int
    keep: Any


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
            reference, keep = compiler.kernel(_kept_program(device, compiler, compiled.spirv), compiled.entry), None
        else:  # Level Zero, whose drivers keep what they compile themselves
            keep = create_program_from_spirv(device.queue, compiled.spirv).get_sycl_kernel(compiled.entry)
            reference = keep.addressof_ref()
    except (SyclProgramCompilationError, CompilerError) as error:
        raise KernelBuildError(f"{name}: the compiler of {device.name} refused the kernel: {error}") from error
    if reference is None:
        raise KernelBuildError(f"{name}: its program has no {compiled.entry}; install xpulab again")
    if n_values != library.DPCTLKernel_GetNumArgs(reference):
        raise KernelBuildError(
            f"{name}: {n_values} values for the kernel's {library.DPCTLKernel_GetNumArgs(reference)} arguments"
        )
    most = min(device.max_group, library.DPCTLKernel_GetWorkGroupSize(reference))
    return Program(name, compiled.spirv, reference, most, keep)


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
    return Compiler(device.queue)


@cached
def _machine(device: Device) -> bytes:
    """What a binary depends on: the device and its driver, and of a CPU the instructions that it has.

    A folder of caches may be shared by hosts whose processors only have the same name.
    """
    about = device.describe()
    facts = [about["name"], about["driver"], about["backend"]]
    if device.is_cpu:
        facts += oneapi.processor()
    return json.dumps(facts).encode()
