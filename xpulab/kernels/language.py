"""The language of kernels: the functions that have a meaning only inside of a kernel, and the kernel itself.

A kernel is a plain Python function of ``(item, *arguments)``. Nothing here compiles or runs one:
`xpulab.kernels.compiler` gives each of these names its meaning for a compiler, and `xpulab.kernels.launch` starts what
was compiled. So a module with kernels can be imported where there is no compiler.
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
    "prefetch",
]

#: Wraps each array index in a kernel: ``data[index(i)]``. Numba lets a signed index count from the end; the test for
#: that hides from the device's compiler that neighbours read neighbouring numbers, and costs up to a factor of ten.
index = np.uint64


def fma(a: Any, b: Any, c: Any) -> Any:
    """``a * b + c`` with one rounding.

    numba-dpex marks its kernels ContractionOff, so ``a * b + c`` is two instructions: half the speed.
    """
    raise _outside("fma")


def prefetch(array: Any, first: Any, size: Any) -> None:
    """Have the device load ``array[first:first + size]`` into a cache, without waiting for it.

    OpenCL's function of that name [1]_. A CPU loads the lines; a device without such a thing does nothing.

    References
    ----------
    .. [1] OpenCL Extended Instruction Set Specification, "prefetch".
    """
    raise _outside("prefetch")


def group_barrier(group: Any) -> None:
    """Wait until all work-items of the group are here, and see what they have written."""
    raise _outside("group_barrier")


def PrivateArray(size: int, dtype: Any) -> Any:
    """Memory of one work-item, of a size known when the kernel is compiled."""
    raise _outside("PrivateArray")


def AtomicRef(array: Any, place: Any) -> Any:
    """An element to which several work-items add; `array` is the kernel's first one."""
    raise _outside("AtomicRef")


#: The functions that a compiler has to give a meaning.
INTRINSICS: tuple[Callable[..., Any], ...] = (fma, prefetch, group_barrier, PrivateArray, AtomicRef)


def _outside(name: str) -> RuntimeError:
    return RuntimeError(f"{name} was called outside of a kernel; it has a meaning only for the kernels' compiler")


@dataclass(frozen=True)
class DeviceFunction:
    """A function that kernels call; see `device_function`."""

    function: Callable[..., Any]

    def __call__(self, *arguments: Any) -> Any:
        raise _outside(self.function.__name__)


#: Marks a function as one that kernels call; it is compiled with each of them.
device_function = DeviceFunction


@dataclass(frozen=True)
class Local:
    """Memory that the items of a work-group share while they run: as a kernel's argument, an array for each group.

    Attributes
    ----------
    size : int
        Number of elements, whose values are arbitrary at first.
    dtype : numpy.dtype
    """

    size: int
    dtype: np.dtype[Any]


@dataclass(frozen=True, eq=False)
class Kernel:
    """A function for the device, and how it takes its arguments; made by `kernel`.

    Attributes
    ----------
    function : callable
        A plain function of ``(item, *arguments)``. It may close over numbers, which are folded, and over functions
        marked with `device_function`, which may do the same.
    signature : tuple of str
        One word for each argument: a dtype (``f4``, ``f8``, ``i4`` or ``i8``), and after it ``[]`` for an array of
        which the kernel knows the size, ``*`` for a pointer to an array's first element, ``@`` for memory that the
        items of a work-group share (`Local`), or nothing for a number.
    shelf : str
        The file of the catalogue that holds it: kernels of one shelf are usually asked for together.
    """

    function: Callable[..., None]
    signature: tuple[str, ...]
    shelf: str

    @property
    def name(self) -> str:
        """The function's, for messages."""
        return self.function.__name__

    @cached_property
    def key(self) -> str:
        """Module, function, what it closes over, and signature: different for any two kernels of a package."""
        module = self.function.__module__.rpartition(".")[2]
        return f"{module}.{self.name}({_closure(self.function)}) {' '.join(self.signature)}"

    @property
    def folder(self) -> Path:
        """Where the catalogue is that holds it: beside its module."""
        return Path(self.function.__code__.co_filename).parent / "catalogue"

    @cached_property
    def digest(self) -> str:
        """Of all that its code depends on: its source without comments, what it closes over, what it calls."""
        text = "\n".join([self.key, *_meaning(self.function)])
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def kernel(signature: str, dtype: npt.DTypeLike = None, shelf: str = "") -> Callable[[Callable[..., None]], Kernel]:
    """Make a function a kernel.

    Parameters
    ----------
    signature : str
        The words of `Kernel.signature` with blanks between them; ``T`` stands for `dtype`. The first array has ``[]``,
        which numba-dpex and `AtomicRef` need; for all others a pointer is faster, since a launch takes 0.4
        microseconds for each value, and an array is five.
    dtype : numpy.dtype, optional
    shelf : str, optional
        By default the module's, the function's name and the dtype.
    """
    code = "" if dtype is None else np.dtype(dtype).str[1:]
    words = tuple(signature.replace("T", code).split())

    def make(function: Callable[..., None]) -> Kernel:
        names = (function.__module__.rpartition(".")[2], function.__name__, shelf or code)
        return Kernel(function, words, ".".join(name for name in names if name))

    return make


def _enclosed(function: Callable[..., Any]) -> dict[str, Any]:
    """The variables that a function closes over, by name, in order."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    return {name: cell.cell_contents for name, cell in sorted(cells, key=lambda cell: cell[0])}


def _closure(function: Callable[..., Any]) -> str:
    return ", ".join(f"{name}={_number(value)}" for name, value in _enclosed(function).items())


def _number(value: Any) -> str:
    """A number, a type, or what a device function closes over, as text that is the same with every Python and NumPy."""
    if isinstance(value, DeviceFunction):
        return f"({_closure(value.function)})"
    return value.__name__ if isinstance(value, type) else str(value)


def _meaning(function: Callable[..., Any]) -> list[str]:
    """What a function's code says, and what the names in it stand for, as text that is the same with every Python."""
    assert isinstance(function, FunctionType)
    lines = [_without_comments(function.__code__)]
    for name, value in _enclosed(function).items():
        if isinstance(value, DeviceFunction):
            lines += [name, *_meaning(value.function)]
    for name in sorted(set(function.__code__.co_names) & function.__globals__.keys()):
        value = function.__globals__[name]
        if isinstance(value, DeviceFunction):
            lines += [name, *_meaning(value.function)]
        elif isinstance(value, ModuleType) or value in INTRINSICS:  # those are what the compiler says they are
            lines.append(f"{name} is {value.__name__}")
        elif isinstance(value, (int, float, np.number, type)):
            lines.append(f"{name} = {_number(value)}")
        else:
            raise TypeError(f"{function.__name__} uses {name}, {type(value).__name__}; a number was expected")
    return lines


@cache
def _without_comments(code: CodeType) -> str:
    """A function's source from its `def` on: what the decorator is given is in the key."""
    source = textwrap.dedent(inspect.getsource(code))
    kinds = {tokenize.INDENT: "<in>", tokenize.DEDENT: "<out>", tokenize.NEWLINE: "<line>"}
    skipped = {tokenize.COMMENT, tokenize.NL, tokenize.ENCODING, tokenize.ENDMARKER}
    every = tokenize.generate_tokens(io.StringIO(source).readline)
    tokens = itertools.dropwhile(lambda token: token.string != "def", every)
    return " ".join(kinds.get(token.type, token.string) for token in tokens if token.type not in skipped)
