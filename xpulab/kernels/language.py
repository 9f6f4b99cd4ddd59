"""The language of kernels: functions that have a meaning only inside of a kernel, and the class of kernels.

A kernel is a Python function of ``(item, *arguments)``. This module neither compiles nor runs kernels:
`xpulab.kernels.compile.compiler` maps the names here to those of a compiler, and `xpulab.kernels.runtime.launch`
starts compiled kernels. So a module with kernels can be imported without a compiler.
"""

from __future__ import annotations

import hashlib
import inspect
import io
import itertools
import textwrap
import tokenize
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = [
    "INTRINSICS",
    "AtomicRef",
    "DeviceFunction",
    "Kernel",
    "Local",
    "PrivateArray",
    "device_function",
    "fma",
    "group_barrier",
    "index",
    "kernel",
    "multiply_columns",
    "prefetch",
    "stage_columns",
    "transpose",
]

#: Wraps each array index in a kernel: ``data[index(i)]``. In Numba, a negative index counts from the end. The test for
#: negative indices hides from the device's compiler that neighbouring work-items read neighbouring elements, which
#: makes a kernel up to ten times slower.
index = np.uint64


def fma(a: object, b: object, c: object) -> Any:
    """Compute ``a * b + c`` with one rounding.

    numba-dpex marks its kernels ContractionOff, so ``a * b + c`` is two instructions, and half as fast.
    """
    raise _outside("fma")


def prefetch(array: object, first: int, size: int) -> None:
    """Ask the device to load ``array[first:first + size]`` into a cache, without waiting for it.

    This is OpenCL's function of the same name [1]_. A CPU loads the cache lines; other devices may ignore it.

    References
    ----------
    .. [1] OpenCL Extended Instruction Set Specification, "prefetch".
    """
    raise _outside("prefetch")


def group_barrier(group: object) -> None:
    """Wait until all work-items of the group have reached this point. Their writes are then visible to the group."""
    raise _outside("group_barrier")


def PrivateArray(size: int, dtype: npt.DTypeLike) -> Any:
    """Allocate memory of one work-item, of a size known when the kernel is compiled."""
    raise _outside("PrivateArray")


def AtomicRef(array: object, at: object) -> Any:
    """Return an element to which several work-items add atomically. `array` must be the kernel's first argument."""
    raise _outside("AtomicRef")


def stage_columns(
    source: object, first: int, step: int, shift: object, column: int, weights: object, row: int, weighted: bool,
    stage: object, to: int, size: int,
) -> None:  # fmt: skip
    """Copy `size` rows of `size` columns, row by row, minus a shift and multiplied by the rows' weights.

    ``stage[to + r * size + c]`` becomes ``(source[first + c * step + r] - shift[column + c]) * weights[row + r]``.
    Without `weighted`, the weights are not read. `step`, `weighted` and `size` must be constants. One work-item does
    this in a CPU's vector registers: call it in work-groups of one work-item.
    """
    raise _outside("stage_columns")


def multiply_columns(
    stage: object,
    x: int,
    y: int,
    next_y: int,
    rows: int,
    left: int,
    right: int,
    size: int,
    sums: object,
    to: int,
    anew: bool,
) -> None:
    """Multiply columns that `stage_columns` has copied, and sum the products over the rows.

    ``sums[to + (i * right + j) * size + c]`` is the sum over the rows r of
    ``stage[x + r * size + i] * stage[y + j * next_y + r * size + c]``, added to what is there unless `anew`. `left`,
    `right` and `size` must be constants. One work-item does this in a CPU's vector registers, of which it needs `right`
    times ``left + 1``.
    """
    raise _outside("multiply_columns")


def transpose(source: object, first: int, step: int, target: object, to: int, next_row: int, size: int) -> None:
    """Transpose a square: ``target[to + c * next_row + r]`` becomes ``source[first + r * step + c]``.

    `size` must be a constant. One work-item does this in a CPU's vector registers.
    """
    raise _outside("transpose")


#: The functions that the compiler must implement.
INTRINSICS: tuple[Callable[..., Any], ...] = (
    fma, prefetch, group_barrier, PrivateArray, AtomicRef, stage_columns, multiply_columns, transpose,
)  # fmt: skip


def _outside(name: str) -> RuntimeError:
    return RuntimeError(f"{name} was called outside of a kernel; it has a meaning only for the kernels' compiler")


@dataclass(frozen=True)
class DeviceFunction:
    """A function that kernels call; see `device_function`."""

    function: Callable[..., Any]

    def __call__(self, *arguments: object) -> Any:
        raise _outside(self.function.__name__)


#: Decorator for a function that kernels call. It is compiled together with each of these kernels.
device_function = DeviceFunction


@dataclass(frozen=True)
class Local:
    """Local memory: an argument of a kernel, of which each work-group gets its own, uninitialised array.

    Attributes
    ----------
    size : int
        Number of elements.
    dtype : numpy.dtype
        Type of the elements.
    """

    size: int
    dtype: np.dtype[Any]


@dataclass(frozen=True, eq=False)
class Kernel:
    """A function for the device, with the types of its arguments. `kernel` creates it.

    Attributes
    ----------
    function : callable
        A Python function of ``(item, *arguments)``. It may close over numbers, which become constants, and over
        functions with the decorator `device_function`, which may do the same.
    signature : tuple of str
        One word for each argument: a dtype (``f4``, ``f8``, ``i4`` or ``i8``), followed by ``[]`` for an array whose
        size the kernel knows, ``*`` for a pointer to an array's first element, ``@`` for local memory (`Local`), or
        nothing for a number.
    shelf : str
        Name of the file in the catalogue. Kernels of one shelf are usually needed together.
    """

    function: Callable[..., None]
    signature: tuple[str, ...]
    shelf: str

    @property
    def name(self) -> str:
        """Name of the function, for messages."""
        return self.function.__name__

    @cached_property
    def key(self) -> str:
        """Module, function, values that it closes over, and signature. It is unique among the kernels of a package."""
        module = self.function.__module__.rpartition(".")[2]
        return f"{module}.{self.name}({_closure(self.function)}) {' '.join(self.signature)}"

    @property
    def folder(self) -> Path:
        """Folder of the catalogue that has the kernel: beside its module, or of this package for its own kernels."""
        module, package = Path(self.function.__code__.co_filename), Path(__file__).parent
        return (package if package in module.parents else module.parent) / "catalogue"

    @cached_property
    def digest(self) -> str:
        """Digest of all that the code depends on: the source without comments, the values that it closes over, and
        the functions that it calls.
        """
        text = "\n".join([self.key, *_meaning(self.function)])
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def kernel(signature: str, dtype: npt.DTypeLike = None, shelf: str = "") -> Callable[[Callable[..., None]], Kernel]:
    """Make a function a kernel.

    Parameters
    ----------
    signature : str
        The words of `Kernel.signature`, separated by blanks; ``T`` stands for `dtype`. The first array has ``[]``,
        which numba-dpex and `AtomicRef` need. For all others a pointer is faster: a launch takes 0.4 microseconds for
        each value, and an array consists of five values.
    dtype : numpy.dtype, optional
        The dtype that ``T`` stands for.
    shelf : str, optional
        By default the names of the module and the function, and the dtype.

    Returns
    -------
    callable
        A decorator that makes a function a `Kernel`.
    """
    code = "" if dtype is None else np.dtype(dtype).str[1:]
    words = tuple(signature.replace("T", code).split())

    def make(function: Callable[..., None]) -> Kernel:
        names = (function.__module__.rpartition(".")[2], function.__name__, shelf or code)
        return Kernel(function, words, ".".join(name for name in names if name))

    return make


def _enclosed(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the variables that a function closes over, by name, in order."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    return {name: cell.cell_contents for name, cell in sorted(cells, key=lambda cell: cell[0])}


def _closure(function: Callable[..., Any]) -> str:
    return ", ".join(f"{name}={_number(value)}" for name, value in _enclosed(function).items())


def _number(value: object) -> str:
    """Return a value that a function closes over, as text that does not depend on the versions of Python and NumPy."""
    if isinstance(value, DeviceFunction):
        return f"({_closure(value.function)})"
    return value.__name__ if isinstance(value, type) else str(value)


def _meaning(function: Callable[..., Any]) -> list[str]:
    """Return a function's source and the meanings of its names, as text that does not depend on Python's version."""
    assert isinstance(function, FunctionType)
    lines = [_without_comments(function.__code__)]
    for name, value in _enclosed(function).items():
        if isinstance(value, DeviceFunction):
            lines += [name, *_meaning(value.function)]
    for name in sorted(set(function.__code__.co_names) & function.__globals__.keys()):
        value = function.__globals__[name]
        if isinstance(value, DeviceFunction):
            lines += [name, *_meaning(value.function)]
        elif isinstance(value, ModuleType) or value in INTRINSICS:  # the compiler defines these
            lines.append(f"{name} is {value.__name__}")
            if value in (stage_columns, multiply_columns, transpose):
                lines.append(_definition())
        elif isinstance(value, (int, float, np.number, type)):
            lines.append(f"{name} = {_number(value)}")
        else:
            raise TypeError(f"{function.__name__} uses {name}, {type(value).__name__}; a number was expected")
    return lines


@cache
def _definition() -> str:
    """Return the source of the functions that compute with vectors."""
    return Path(__file__).with_name("compile").joinpath("compiler_vectors.py").read_text()


@cache
def _without_comments(code: CodeType) -> str:
    """Return a function's source from `def` on, without comments. The key has the arguments of the decorator."""
    source = textwrap.dedent(inspect.getsource(code))
    kinds = {tokenize.INDENT: "<in>", tokenize.DEDENT: "<out>", tokenize.NEWLINE: "<line>"}
    skipped = {tokenize.COMMENT, tokenize.NL, tokenize.ENCODING, tokenize.ENDMARKER}
    every = tokenize.generate_tokens(io.StringIO(source).readline)
    tokens = itertools.dropwhile(lambda token: token.string != "def", every)
    return " ".join(kinds.get(token.type, token.string) for token in tokens if token.type not in skipped)
