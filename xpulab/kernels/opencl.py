"""Programs of OpenCL devices as files: a program that a device's compiler made of SPIR-V can be kept and loaded.

SYCL keeps no program that was made from SPIR-V, and dpctl makes none from a binary. OpenCL does both [1]_: the program
is made by its functions, in the queue's own context, and then handed to SYCL.

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

from xpulab import oneapi
from xpulab.kernels.submit import library

__all__ = ["Compiler", "CompilerError"]

_BACKEND = 1  # sycl::backend::opencl
_EXECUTABLE = 2  # sycl::bundle_state::executable
_BINARY_SIZES, _BINARIES, _BUILD_LOG = 0x1165, 0x1166, 0x1183

# C++ functions of SYCL's library, by the names that the linker knows; they are the same in 2024.2 and 2026.1.
_NATIVE_CONTEXT = "_ZNK4sycl3_V17context9getNativeEv"
_NATIVE_DEVICE = "_ZNK4sycl3_V16device9getNativeEv"
_MAKE_BUNDLE = "_ZN4sycl3_V16detail18make_kernel_bundleEmRKNS0_7contextEbNS0_12bundle_stateENS0_7backendE"


class CompilerError(Exception):
    """The device's compiler refused a program; the message is its own."""


class Compiler:
    """The compiler of an OpenCL device.

    Parameters
    ----------
    context, device : int
        dpctl's references of a queue's SYCL context and device, which live as long.
    """

    def __init__(self, context: int, device: int) -> None:
        sycl = _sycl()
        self._sycl_context = context
        self._context = getattr(sycl, _NATIVE_CONTEXT)(context)
        self._device = ctypes.c_void_p(getattr(sycl, _NATIVE_DEVICE)(device))

    @staticmethod
    def serves(queue: dpctl.SyclQueue) -> bool:
        """Whether a queue's device has one, and SYCL takes its programs."""
        return queue.backend == dpctl.backend_type.opencl and _sycl() is not None

    def from_spirv(self, spirv: bytes) -> int:
        """A built program.

        Raises
        ------
        CompilerError
        """
        error = ctypes.c_int()
        program = _opencl().clCreateProgramWithIL(self._context, spirv, len(spirv), ctypes.byref(error))
        return self._built(program, error.value)

    def from_binary(self, binary: bytes) -> int:
        """Make the program again from the result of `binary`.

        Raises
        ------
        CompilerError
            If it is of another device or driver.
        """
        error, status = ctypes.c_int(), ctypes.c_int()
        size, content = ctypes.c_size_t(len(binary)), ctypes.c_char_p(binary)
        program = _opencl().clCreateProgramWithBinary(
            self._context, 1, ctypes.byref(self._device), ctypes.byref(size), ctypes.byref(content),
            ctypes.byref(status), ctypes.byref(error),
        )  # fmt: skip
        return self._built(program, error.value or status.value)

    def binary(self, program: int) -> bytes:
        """A program as bytes."""
        size = ctypes.c_size_t()
        _opencl().clGetProgramInfo(program, _BINARY_SIZES, ctypes.sizeof(size), ctypes.byref(size), None)
        content = ctypes.create_string_buffer(size.value)
        place = ctypes.c_void_p(ctypes.addressof(content))
        _opencl().clGetProgramInfo(program, _BINARIES, ctypes.sizeof(place), ctypes.byref(place), None)
        return content.raw

    def kernel(self, program: int, entry: str) -> int | None:
        """dpctl's reference of a kernel in a program; None if it has no such kernel. It is never freed."""
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
    """A std::shared_ptr, all that a sycl::kernel_bundle is."""

    _fields_ = (("pointer", ctypes.c_void_p), ("count", ctypes.c_void_p))


_kept: list[_Shared] = []  # bundles that kernels are of


@cache
def _sycl() -> Any:
    """SYCL's library; None if it has not the functions that are needed."""
    found = ctypes.CDLL(oneapi.STACK.sycl)
    try:
        for name in (_NATIVE_CONTEXT, _NATIVE_DEVICE):
            function = getattr(found, name)
            function.restype, function.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
        function = getattr(found, _MAKE_BUNDLE)
    except AttributeError:
        return None
    # What it returns is larger than a register, and so written to where the first argument points.
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
