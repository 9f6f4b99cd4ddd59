"""Compiles `host_functions` to machine code with numba.

The command is ``python -m xpulab.kernels.compile.host_compiler x86-64-v3 FILE``.

Each level of x86-64 needs its own process, because numba reads the target processor only once.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import Any

from xpulab.kernels.on_cpu import (  # they add their functions
    boosting_functions,
    few_functions,  # noqa: F401
    forest_functions,  # noqa: F401
    passing_functions,
    sparse_functions,  # noqa: F401
    tree_functions,  # noqa: F401
    tree_search_functions,  # noqa: F401
)
from xpulab.kernels.on_cpu.host_functions import FUNCTIONS, HostFunction, count_bits, products_below
from xpulab.kernels.on_cpu.sparse_functions import add_multiples

__all__ = ["object_code"]

_TRIPLE = "x86_64-unknown-linux-gnu"
#: Functions for which `host_vectors` has instructions, under the same names.
_BUILT = [
    add_multiples,
    boosting_functions.add_pair,
    count_bits,
    passing_functions.add_column_facts,
    passing_functions.multiply_tile,
    passing_functions.stage_vector,
    passing_functions.vector_size,
    products_below,
]
_DTYPES = {"u1": "uint8", "f4": "float32", "f8": "float64", "i4": "int32", "i8": "int64"}


def object_code(level: str) -> bytes:
    """Return an object file with all functions, for rows of float32 and of float64: ``finish_f4`` and so on.

    A function without arguments of the rows' dtype is compiled once, for float64.

    Parameters
    ----------
    level : str
        Level of x86-64, as LLVM names it.

    Returns
    -------
    bytes
    """
    os.environ.update(NUMBA_CPU_NAME=level, NUMBA_CPU_FEATURES="")
    import llvmlite.binding as llvm
    import numba

    numba.config.reload_config()
    assert level == numba.config.CPU_NAME
    whole = llvm.parse_assembly("")
    whole.triple = _TRIPLE
    for dtype in ("f4", "f8"):
        for name, declared in FUNCTIONS.items():
            if dtype == "f4" and not declared.has_rows:
                continue
            made = numba.cfunc(_signature(declared, dtype), error_model="numpy")(_compilable(declared, numba.njit))
            module = llvm.parse_assembly(made.inspect_llvm())
            for function in module.functions:
                if function.name == made.native_name:
                    function.name = f"{name}_{dtype}"
                elif not function.is_declaration:
                    function.linkage = "internal"
            whole.link_in(module)
    passes = llvm.create_module_pass_manager()
    passes.add_global_dce_pass()  # removes the code for callers from Python
    passes.run(whole)
    # For x86-64-v4, LLVM uses registers of half the size by default.
    target, features = llvm.Target.from_triple(_TRIPLE), "-prefer-256-bit" if level == "x86-64-v4" else ""
    machine = target.create_target_machine(cpu=level, features=features, opt=3, reloc="pic")
    return machine.emit_object(whole)


def _signature(declared: HostFunction, dtype: str) -> str:
    """Return the signature of a function, as numba writes it."""
    words = [_type(word.replace("T", dtype)) for word in declared.signature]
    return f"{_type(declared.returns) if declared.returns else 'void'}({', '.join(words)})"


def _type(word: str) -> str:
    return f"CPointer({_DTYPES[word[:2]]})" if word.endswith("*") else _DTYPES[word]


def _compilable(declared: HostFunction, njit: Callable[..., Any]) -> FunctionType:
    """Return the function, in which the names of other host functions stand for the compiled ones."""
    function = declared.function
    assert isinstance(function, FunctionType)
    names = {}
    for name, value in function.__globals__.items():
        if name in function.__code__.co_names:
            if isinstance(value, HostFunction):
                value = njit(error_model="numpy", inline="always")(_compilable(value, njit))
            elif value in _BUILT:
                from xpulab.kernels.compile import host_vectors

                value = getattr(host_vectors, name)
            names[name] = value
    return FunctionType(function.__code__, names, function.__name__)


if __name__ == "__main__":
    Path(sys.argv[2]).write_bytes(object_code(sys.argv[1]))
