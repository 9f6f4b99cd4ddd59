"""The functions of `host_functions` for which `host_compiler` puts instructions.

LLVM cuts the vectors into registers of the target processor. Left to itself, it would write the sums to memory after
every few products.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.base import BaseContext as Context
from numba.core.typing import Signature
from numba.extending import intrinsic

from xpulab.kernels.compile.compiler_vectors import loop
from xpulab.kernels.on_cpu.host_functions import TOGETHER
from xpulab.kernels.on_cpu.sparse_functions import VECTOR

__all__ = [
    "add_column_facts",
    "add_multiples",
    "add_pair",
    "count_bits",
    "multiply_tile",
    "products_below",
    "stage_vector",
    "vector_size",
]

_SIZE = 16  # numbers of a vector
_SINGLES = ir.VectorType(ir.FloatType(), _SIZE)
_INTEGER = ir.IntType(64)


@intrinsic
def products_below(
    typing_context: Context,
    row: types.Type,
    x: types.Type,
    step: types.Type,
    others: types.Type,
    y: types.Type,
    d: types.Type,
    low: types.Type,
    high: types.Type,
) -> Any:
    """Implement `host_functions.products_below`."""

    def build(context: Context, builder: ir.IRBuilder, signature: Signature, arguments: list[ir.Value]) -> ir.Value:
        row_, x_, step_, others_, y_, d_, low_, high_ = arguments
        multiplied = _function(builder, f"llvm.fmuladd.v{_SIZE}f32", _SINGLES, 3)

        def vectors(number: ir.Value) -> list[ir.Value]:
            offset = builder.add(y_, builder.mul(number, ir.Constant(_INTEGER, TOGETHER)))
            at = builder.bitcast(builder.gep(others_, [offset]), _SINGLES.as_pointer())
            indices = [ir.Constant(_INTEGER, k) for k in range(TOGETHER // _SIZE)]
            return [builder.load(builder.gep(at, [k]), align=4) for k in indices]

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

    singles, integer = types.CPointer(types.float32), types.int64
    masks = types.UniTuple(types.int64, 2)
    return masks(singles, integer, integer, singles, integer, integer, types.float32, types.float32), build


@intrinsic
def add_multiples(
    typing_context: Context,
    vectors: types.Type,
    values: types.Type,
    columns: types.Type,
    first: types.Type,
    last: types.Type,
    matrix: types.Type,
    k: types.Type,
    at: types.Type,
    end: types.Type,
    out: types.Type,
    row: types.Type,
) -> Any:
    """Implement `sparse_functions.add_multiples`."""
    n = vectors.literal_value

    def build(context: Context, builder: ir.IRBuilder, signature: Signature, arguments: list[ir.Value]) -> ir.Value:
        _, values_, columns_, first_, last_, matrix_, k_, at_, end_, out_, row_ = arguments
        number = values_.type.pointee
        size, name = (4, "f32") if isinstance(number, ir.FloatType) else (8, "f64")
        vector = ir.VectorType(number, VECTOR)
        multiplied = _function(builder, f"llvm.fmuladd.v{VECTOR}{name}", vector, 3)
        starts = [builder.add(at_, ir.Constant(_INTEGER, VECTOR * j)) for j in range(n - 1)]
        starts.append(builder.sub(end_, ir.Constant(_INTEGER, VECTOR)))

        def places(pointer: ir.Value, of_row: ir.Value) -> list[ir.Value]:
            begin = builder.mul(of_row, k_)
            found = [builder.gep(pointer, [builder.add(begin, start)]) for start in starts]
            return [builder.bitcast(place, vector.as_pointer()) for place in found]

        def stored(i: ir.Value, sums: list[ir.Value]) -> list[ir.Value]:
            p = builder.add(first_, i)
            own = _splat(builder, builder.load(builder.gep(values_, [p])), vector)
            rows = places(matrix_, builder.sext(builder.load(builder.gep(columns_, [p])), _INTEGER))
            return [
                builder.call(multiplied, [own, builder.load(at_row, align=size), total])
                for at_row, total in zip(rows, sums, strict=True)
            ]

        zeros = [ir.Constant(vector, [0.0] * VECTOR)] * n
        sums = loop(builder, builder.sub(last_, first_), zeros, stored)
        for total, place in zip(sums, places(out_, row_), strict=True):
            builder.store(total, place, align=size)
        return ir.Constant(_INTEGER, 0)

    i8 = types.int64
    return i8(vectors, values, columns, i8, i8, matrix, i8, i8, i8, out, i8), build


@intrinsic
def add_pair(typing_context: Context, sums: types.Type, at: types.Type, first: types.Type, second: types.Type) -> Any:
    """Implement `boosting_functions.add_pair`."""
    vector = ir.VectorType(_INTEGER, 2)

    def build(context: Context, builder: ir.IRBuilder, signature: Signature, arguments: list[ir.Value]) -> ir.Value:
        sums_, at_, *both = arguments
        own = ir.Constant(vector, ir.Undefined)
        for lane, value in enumerate(both):
            own = builder.insert_element(own, value, ir.Constant(ir.IntType(32), lane))
        pointer = builder.bitcast(builder.gep(sums_, [at_]), vector.as_pointer())
        builder.store(builder.add(builder.load(pointer, align=8), own), pointer, align=8)
        return ir.Constant(_INTEGER, 0)

    integer = types.int64
    return integer(types.CPointer(integer), integer, integer, integer), build


@intrinsic
def vector_size(typing_context: Context, numbers: types.Type) -> Any:
    """Implement `passing_functions.vector_size`."""

    def build(context: Context, builder: ir.IRBuilder, signature: Signature, arguments: list[ir.Value]) -> ir.Value:
        return ir.Constant(_INTEGER, _vector_of(arguments[0])[0].count)

    return types.int64(numbers), build


@intrinsic
def stage_vector(
    typing_context: Context,
    rows: types.Type,
    at: types.Type,
    shift: types.Type,
    f: types.Type,
    root: types.Type,
    stage: types.Type,
    to: types.Type,
) -> Any:
    """Implement `passing_functions.stage_vector`."""

    def build(context: Context, builder: ir.IRBuilder, signature: Signature, arguments: list[ir.Value]) -> ir.Value:
        rows_, at_, shift_, f_, root_, stage_, to_ = arguments
        vector, size = _vector_of(rows_)
        x, middle = (builder.load(_at(builder, *place), align=size) for place in ((rows_, at_), (shift_, f_)))
        staged = builder.fmul(builder.fsub(x, middle), _splat(builder, root_, vector))
        builder.store(staged, _at(builder, stage_, to_), align=size)
        return ir.Constant(_INTEGER, 0)

    i8 = types.int64
    return i8(rows, i8, shift, i8, root, stage, i8), build


@intrinsic
def multiply_tile(
    typing_context: Context,
    left: types.Type,
    vectors: types.Type,
    stage: types.Type,
    x: types.Type,
    y: types.Type,
    rows: types.Type,
    sums: types.Type,
    to: types.Type,
) -> Any:
    """Implement `passing_functions.multiply_tile`."""
    n_left, n_vectors = left.literal_value, vectors.literal_value

    def build(context: Context, builder: ir.IRBuilder, signature: Signature, arguments: list[ir.Value]) -> ir.Value:
        _, _, stage_, x_, y_, rows_, sums_, to_ = arguments
        vector, size = _vector_of(stage_)
        multiplied = _function(builder, f"llvm.fmuladd.v{vector.count}f{8 * size}", vector, 3)

        def after(start: ir.Value, number: int) -> ir.Value:
            return builder.add(start, ir.Constant(_INTEGER, number))

        places = [
            _at(builder, sums_, after(to_, (2 * i + v) * vector.count)) for i in range(n_left) for v in range(n_vectors)
        ]

        def row(i: ir.Value, sums: list[ir.Value]) -> list[ir.Value]:
            begin = builder.mul(i, ir.Constant(_INTEGER, 2 * vector.count))
            x_at, y_at = builder.add(x_, begin), builder.add(y_, begin)
            right = [
                builder.load(_at(builder, stage_, after(y_at, v * vector.count)), align=size) for v in range(n_vectors)
            ]
            own = [_splat(builder, builder.load(builder.gep(stage_, [after(x_at, i)])), vector) for i in range(n_left)]
            pairs = [(a, b) for a in own for b in right]
            return [builder.call(multiplied, [*pair, total]) for pair, total in zip(pairs, sums, strict=True)]

        sums = loop(builder, rows_, [builder.load(place, align=size) for place in places], row)
        for total, place in zip(sums, places, strict=True):
            builder.store(total, place, align=size)
        return ir.Constant(_INTEGER, 0)

    i8 = types.int64
    return i8(left, vectors, stage, i8, i8, i8, sums, i8), build


@intrinsic
def add_column_facts(
    typing_context: Context,
    vectors: types.Type,
    rows: types.Type,
    at: types.Type,
    d: types.Type,
    n: types.Type,
    shift: types.Type,
    f: types.Type,
    room: types.Type,
) -> Any:
    """Implement `passing_functions.add_column_facts`."""
    n_vectors = vectors.literal_value

    def build(context: Context, builder: ir.IRBuilder, signature: Signature, arguments: list[ir.Value]) -> ir.Value:
        _, rows_, at_, d_, n_, shift_, f_, room_ = arguments
        vector, size = _vector_of(rows_)
        multiplied = _function(builder, f"llvm.fmuladd.v{vector.count}f{8 * size}", vector, 3)
        starts = [ir.Constant(_INTEGER, v * vector.count) for v in range(n_vectors)]
        middles = [builder.load(_at(builder, shift_, builder.add(f_, start)), align=size) for start in starts]

        def row(i: ir.Value, before: list[ir.Value]) -> list[ir.Value]:
            begin, after = builder.add(at_, builder.mul(i, d_)), []
            for v, (start, middle) in enumerate(zip(starts, middles, strict=True)):
                total, squares, low, high = before[4 * v : 4 * v + 4]
                x = builder.load(_at(builder, rows_, builder.add(begin, start)), align=size)
                away = builder.fsub(x, middle)
                after += [builder.fadd(total, away), builder.call(multiplied, [away, away, squares])]
                after.append(builder.select(builder.fcmp_ordered("<", x, low), x, low))
                after.append(builder.select(builder.fcmp_ordered(">", x, high), x, high))
            return after

        of_vector = [ir.Constant(vector, [number] * vector.count) for number in (0.0, 0.0, np.inf, -np.inf)]
        found = loop(builder, n_, of_vector * n_vectors, row)
        for i, value in enumerate(found):
            v, kind = divmod(i, 4)
            to = ir.Constant(_INTEGER, (kind * n_vectors + v) * vector.count)
            builder.store(value, _at(builder, room_, to), align=size)
        return ir.Constant(_INTEGER, 0)

    i8 = types.int64
    return i8(vectors, rows, i8, i8, i8, shift, i8, room), build


@intrinsic
def count_bits(typing_context: Context, mask: types.Type) -> Any:
    """Implement `host_functions.count_bits`."""

    def build(context: Context, builder: ir.IRBuilder, signature: Signature, arguments: list[ir.Value]) -> ir.Value:
        return builder.call(_function(builder, "llvm.ctpop.i64", _INTEGER, 1), arguments)

    return types.int64(types.int64), build


def _function(builder: ir.IRBuilder, name: str, type_: ir.Type, n: int) -> ir.Value:
    """Return an intrinsic function of LLVM with n arguments of one type, which is also that of the result."""
    return cgutils.get_or_insert_function(builder.module, ir.FunctionType(type_, [type_] * n), name)


def _vector_of(pointer: ir.Value) -> tuple[ir.VectorType, int]:
    """Return a vector of 64 bytes of the numbers at a pointer, and the bytes of a number."""
    size = 4 if isinstance(pointer.type.pointee, ir.FloatType) else 8
    return ir.VectorType(pointer.type.pointee, 64 // size), size


def _at(builder: ir.IRBuilder, pointer: ir.Value, index: ir.Value) -> ir.Value:
    """Return a pointer to the vector of 64 bytes that begins with a number."""
    return builder.bitcast(builder.gep(pointer, [index]), _vector_of(pointer)[0].as_pointer())


def _splat(builder: ir.IRBuilder, value: ir.Value, vector: ir.VectorType = _SINGLES) -> ir.Value:
    none = ir.Constant(vector, ir.Undefined)
    first = builder.insert_element(none, value, ir.Constant(ir.IntType(32), 0))
    same = ir.Constant(ir.VectorType(ir.IntType(32), vector.count), [0] * vector.count)
    return builder.shuffle_vector(first, none, same)
