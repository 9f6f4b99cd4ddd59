"""Advice on errors in a cell whose own message does not say what to type instead."""

from __future__ import annotations

import sys

__all__ = ["EXAMPLE", "advice", "is_of_gloo"]

#: A complete cell with a kernel in OpenCL C. A test runs it.
EXAMPLE = '''\
import ctypes

import dpnp
from dpctl.memory import as_usm_memory
from dpctl.program import create_program_from_source

source = """
kernel void scale(global float *x, const float factor, const long n) {
    const long i = get_global_id(0);
    if (i < n)
        x[i] *= factor;
}
"""
scale = create_program_from_source(queue, source).get_sycl_kernel("scale")
x = dpnp.arange(1000, dtype="float32")
queue.wait()  # until dpnp has filled x
arguments = [as_usm_memory(x), ctypes.c_float(2), ctypes.c_int64(x.size)]
queue.submit(scale, arguments, [1024])  # work-items: x.size, padded to a multiple of 256
queue.wait()
print("the sum is", float(x.sum()))
'''

_TAKERS = (
    "Devices of an OpenCL driver take OpenCL C; devices of the Level Zero driver do not. To use a GPU through its "
    "OpenCL driver, type %xpu_cluster stop, and then %xpu_cluster start --devices opencl:gpu"
)
_PYTHON = ".".join(map(str, sys.version_info[:2]))
_NO_NUMBA_DPEX = f"""\
numba-dpex is for Python 3.10 and 3.11, and this is {_PYTHON}. Write the kernel in OpenCL C, which dpctl compiles.
{_TAKERS}.
notebooks/05_your_own_algorithm.ipynb explains how to write one. This cell runs as it is:

%%xpu
{EXAMPLE}"""
_NO_DPCTL_TENSOR = "dpctl.tensor is for Python 3.10 and 3.11; from Python 3.12 on dpnp has it: import dpnp.tensor\n"
_NOT_COMPILED = (
    f"The device's compiler refused the program, and dpctl does not pass on the reason. {_TAKERS}. If the device takes "
    "OpenCL C, there is a mistake in the source.\n"
)
_TOO_MANY = (
    "If this sends an object of 2 GiB or more, or an array of as many items: Open MPI takes none so large. Send it in "
    "parts, such as slices of an array, or use another MPI; type %xpu_cluster stop, and then %xpu_cluster start --mpi "
    "intel, or xpulab run --mpi intel.\n"
)
_CLOSED = (
    "gloo's connections are closed for good: another rank has ended before this one, or an earlier wait for ranks that "
    "did not come has ended so. Every rank needs the same number of batches; torch.distributed.algorithms.join.Join "
    "allows other numbers. For new connections, type torch.distributed.destroy_process_group(), and then "
    "torch.distributed.init_process_group().\n"
)


def advice(error: BaseException) -> str:
    """Return a text that says what the user can do about an error; empty if nothing is known.

    Parameters
    ----------
    error : BaseException
        The exception that a cell raised.

    Returns
    -------
    str
        Lines for the end of the traceback.
    """
    if type(error).__name__ == "SyclProgramCompilationError":
        return _NOT_COMPILED
    if is_of_gloo(error):
        return _CLOSED
    if _is_of_open_mpi(error) and str(error).startswith("MPI_ERR_ARG"):
        return _TOO_MANY
    if isinstance(error, ImportError) and sys.version_info >= (3, 12):
        # For "from package import module", name is the package and name_from the module.
        missing = ".".join(filter(None, (error.name, error.name_from)))
        if missing.split(".")[0] == "numba_dpex":
            return _NO_NUMBA_DPEX
        if missing.startswith("dpctl.tensor"):
            return _NO_DPCTL_TENSOR
    return ""


def is_of_gloo(error: BaseException) -> bool:
    """Return whether an error is that of PyTorch's backend gloo whose connection to another rank was closed."""
    return isinstance(error, RuntimeError) and "/gloo/" in str(error) and "closed by peer" in str(error)


def _is_of_open_mpi(error: BaseException) -> bool:
    loaded = sys.modules.get("mpi4py.MPI")
    return loaded is not None and isinstance(error, loaded.Exception) and bool(loaded.get_vendor()[0] == "Open MPI")
