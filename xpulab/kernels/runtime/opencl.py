"""Stores and loads the programs that the compiler of an OpenCL device has made from SPIR-V.

SYCL does not store programs that were made from SPIR-V, and dpctl cannot make a program from a binary. OpenCL can do
both [1]_. OpenCL's functions make the program in the context of the queue, and SYCL then uses it.

References
----------
.. [1] The OpenCL Specification 3.0, sections 5.8.1 (clCreateProgramWithIL, clCreateProgramWithBinary) and 5.8.7
   (CL_PROGRAM_BINARIES).
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import dpctl

from xpulab.kernels.runtime.submit import library
from xpulab.libraries import oneapi

__all__ = ["Compiler", "CompilerError"]

_BACKEND = 1  # sycl::backend::opencl
_EXECUTABLE = 2  # sycl::bundle_state::executable
_BINARY_SIZES, _BINARIES, _BUILD_LOG = 0x1165, 0x1166, 0x1183

# Mangled names of C++ functions in SYCL's library; they are the same in 2024.2 and 2026.1.
_NATIVE_CONTEXT = "_ZNK4sycl3_V17context9getNativeEv"
_NATIVE_DEVICE = "_ZNK4sycl3_V16device9getNativeEv"
_MAKE_BUNDLE = "_ZN4sycl3_V16detail18make_kernel_bundleEmRKNS0_7contextEbNS0_12bundle_stateENS0_7backendE"


class CompilerError(Exception):
    """The device's compiler rejected a program; the message is the compiler's."""


class Compiler:
    """The compiler of an OpenCL device.

    Parameters
    ----------
    context, device : int
        dpctl's references of a queue's SYCL context and device. The queue must live as long as this object.
    """

    def __init__(self, context: int, device: int) -> None:
        sycl = _sycl()
        self._sycl_context = context
        self._context = getattr(sycl, _NATIVE_CONTEXT)(context)
        self._device = ctypes.c_void_p(getattr(sycl, _NATIVE_DEVICE)(device))

    @staticmethod
    def serves(queue: dpctl.SyclQueue) -> bool:
        """Return whether a queue's device has such a compiler, and SYCL can use its programs."""
        return queue.backend == dpctl.backend_type.opencl and _sycl() is not None

    def from_spirv(self, spirv: bytes) -> int:
        """Build a program from SPIR-V, and return its reference.

        Raises
        ------
        CompilerError
            If the device's compiler rejects it.
        """
        error = ctypes.c_int()
        program = _opencl().clCreateProgramWithIL(self._context, spirv, len(spirv), ctypes.byref(error))
        return self._built(program, error.value)

    def from_binary(self, binary: bytes) -> int:
        """Make the program again from the result of `binary`.

        Raises
        ------
        CompilerError
            If the binary is for another device or driver.
        """
        error, status = ctypes.c_int(), ctypes.c_int()
        size, content = ctypes.c_size_t(len(binary)), ctypes.c_char_p(binary)
        program = _opencl().clCreateProgramWithBinary(
            self._context, 1, ctypes.byref(self._device), ctypes.byref(size), ctypes.byref(content),
            ctypes.byref(status), ctypes.byref(error),
        )  # fmt: skip
        return self._built(program, error.value or status.value)

    def binary(self, program: int) -> bytes:
        """Return the binary of a program, from which `from_binary` makes the program again."""
        size = ctypes.c_size_t()
        _opencl().clGetProgramInfo(program, _BINARY_SIZES, ctypes.sizeof(size), ctypes.byref(size), None)
        content = ctypes.create_string_buffer(size.value)
        address = ctypes.c_void_p(ctypes.addressof(content))
        _opencl().clGetProgramInfo(program, _BINARIES, ctypes.sizeof(address), ctypes.byref(address), None)
        return content.raw

    def kernel(self, program: int, entry: str) -> int | None:
        """Return dpctl's reference of a kernel in a program, which is never freed; None if there is no such kernel."""
        bundle = _Shared()
        getattr(_sycl(), _MAKE_BUNDLE)(ctypes.byref(bundle), program, self._sycl_context, False, _EXECUTABLE, _BACKEND)
        _kept.append(bundle)
        return library.DPCTLKernelBundle_GetKernel(ctypes.byref(bundle), entry.encode())

    def _built(self, program: int | None, error: int) -> int:
        if program is None or error:
            raise CompilerError(f"OpenCL error {error}")
        error = _opencl().clBuildProgram(program, 1, ctypes.byref(self._device), b"", None, None)
        if error:
            log = ctypes.create_string_buffer(1 << 14)
            _opencl().clGetProgramBuildInfo(program, self._device, _BUILD_LOG, len(log), log, None)
            raise CompilerError(f"OpenCL error {error}: {log.value.decode(errors='replace').strip()}")
        return program


class _Shared(ctypes.Structure):
    """A std::shared_ptr, which is the only member of a sycl::kernel_bundle."""

    _fields_ = (("pointer", ctypes.c_void_p), ("count", ctypes.c_void_p))


_kept: list[_Shared] = []  # bundles whose kernels are in use


@cache
def _sycl() -> Any:
    """Return SYCL's library; None if it does not have the functions that are needed."""
    found = ctypes.CDLL(oneapi.STACK.sycl)
    try:
        for name in (_NATIVE_CONTEXT, _NATIVE_DEVICE):
            function = getattr(found, name)
            function.restype, function.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
        function = getattr(found, _MAKE_BUNDLE)
    except AttributeError:
        return None
    # The returned object is larger than a register, so the function writes it to the address in its first argument.
    function.restype = None
    function.argtypes = [
        ctypes.c_void_p, ctypes.c_ulong, ctypes.c_void_p, ctypes.c_bool, ctypes.c_ubyte, ctypes.c_byte
    ]  # fmt: skip
    return found


@cache
def _opencl() -> Any:
    found = ctypes.CDLL(oneapi.OPENCL)
    address, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint
    for name, returned, arguments in (
        ("clCreateProgramWithIL", address, [address, ctypes.c_char_p, size, address]),
        ("clCreateProgramWithBinary", address, [address, number, address, address, address, address, address]),
        ("clBuildProgram", ctypes.c_int, [address, number, address, ctypes.c_char_p, address, address]),
        ("clGetProgramInfo", ctypes.c_int, [address, number, size, address, address]),
        ("clGetProgramBuildInfo", ctypes.c_int, [address, address, number, size, address, address]),
    ):
        function = getattr(found, name)
        function.restype, function.argtypes = returned, arguments
    return found
