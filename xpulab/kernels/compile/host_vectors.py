"""The functions of `host_functions` in whose place `host_compiler` puts instructions.

LLVM cuts the vectors into registers of the target processor. Left to itself, it would write the sums to memory after
every few products.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from xpulab.kernels.compile.compiler_vectors import loop
from xpulab.kernels.on_cpu.host_functions import TOGETHER

__all__ = ["count_bits", "products_below"]

_SIZE = 16  # numbers of a vector
_SINGLES = ir.VectorType(ir.FloatType(), _SIZE)
_INTEGER = ir.IntType(64)


@intrinsic
def products_below(
    typing_context: Any, row: Any, x: Any, step: Any, others: Any, y: Any, d: Any, low: Any, high: Any
) -> Any:
    """Implement `host_functions.products_below`."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        row_, x_, step_, others_, y_, d_, low_, high_ = arguments
        multiplied = _function(builder, f"llvm.fmuladd.v{_SIZE}f32", _SINGLES, 3)

        def vectors(number: ir.Value) -> list[ir.Value]:
            place = builder.add(y_, builder.mul(number, ir.Constant(_INTEGER, TOGETHER)))
            at = builder.bitcast(builder.gep(others_, [place]), _SINGLES.as_pointer())
            places = [ir.Constant(_INTEGER, k) for k in range(TOGETHER // _SIZE)]
            return [builder.load(builder.gep(at, [k]), align=4) for k in places]

        def feature(f: ir.Value, scores: list[ir.Value]) -> list[ir.Value]:
            own = _splat(builder, builder.load(builder.gep(row_, [builder.add(x_, builder.mul(f, step_))])))
            theirs = vectors(builder.add(f, ir.Constant(_INTEGER, 1)))
            return [builder.call(multiplied, [builder.fneg(own), y, s]) for y, s in zip(theirs, scores, strict=True)]

        scores = loop(builder, d_, vectors(ir.Constant(_INTEGER, 0)), feature)
        masks = []
        for most in (_splat(builder, low_), _splat(builder, high_)):
            mask = ir.Constant(_INTEGER, 0)
            for k, score in enumerate(scores):
                bits = builder.bitcast(builder.fcmp_ordered("<=", score, most), ir.IntType(_SIZE))
                mask = builder.or_(mask, builder.shl(builder.zext(bits, _INTEGER), ir.Constant(_INTEGER, _SIZE * k)))
            masks.append(mask)
        return context.make_tuple(builder, signature.return_type, masks)

    singles, places = types.CPointer(types.float32), types.int64
    masks = types.UniTuple(types.int64, 2)
    return masks(singles, places, places, singles, places, places, types.float32, types.float32), build


@intrinsic
def count_bits(typing_context: Any, mask: Any) -> Any:
    """Implement `host_functions.count_bits`."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.call(_function(builder, "llvm.ctpop.i64", _INTEGER, 1), arguments)

    return types.int64(types.int64), build


def _function(builder: ir.IRBuilder, name: str, type_: ir.Type, n: int) -> ir.Value:
    """An intrinsic function of LLVM with n arguments of one type, which is also that of the result."""
    return cgutils.get_or_insert_function(builder.module, ir.FunctionType(type_, [type_] * n), name)


def _splat(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
    none = ir.Constant(_SINGLES, ir.Undefined)
    first = builder.insert_element(none, value, ir.Constant(ir.IntType(32), 0))
    return builder.shuffle_vector(first, none, ir.Constant(ir.VectorType(ir.IntType(32), _SIZE), [0] * _SIZE))
