"""The functions of `language` that compute with vectors, as the code that `compiler` puts into a kernel.

The vectors are as long as a CPU's registers. A compiler that makes vectors of neighbouring work-items would not
transpose in registers: it gathers numbers one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

__all__ = ["loop", "multiply_columns", "stage_columns", "transpose"]

_GLOBAL = 1  # the address space of a device's memory
_INTEGER = ir.IntType(64)


class _Vectors:
    """Builds instructions for vectors of `size` elements."""

    def __init__(self, builder: ir.IRBuilder, size: int) -> None:
        self.builder, self.size = builder, size

    def load(self, data: ir.Value, offset: ir.Value) -> ir.Value:
        """Return the elements from `offset` on."""
        return self.builder.load(self._address(data, offset), align=_bytes(data.type.pointee))

    def store(self, vector: ir.Value, data: ir.Value, offset: ir.Value) -> None:
        """Write the elements from `offset` on."""
        self.builder.store(vector, self._address(data, offset), align=_bytes(data.type.pointee))

    def _address(self, data: ir.Value, offset: ir.Value) -> ir.Value:
        vectors = ir.VectorType(data.type.pointee, self.size).as_pointer(_GLOBAL)
        return self.builder.bitcast(self.builder.gep(data, [offset]), vectors)

    def splat(self, value: ir.Value) -> ir.Value:
        """Return a vector whose elements all have this value."""
        none = ir.Constant(ir.VectorType(value.type, self.size), ir.Undefined)
        first = self.builder.insert_element(none, value, ir.Constant(ir.IntType(32), 0))
        return self.builder.shuffle_vector(first, none, _mask([0] * self.size))

    def transposed(self, vectors: Sequence[ir.Value]) -> list[ir.Value]:
        """Return the columns of a square whose rows are given: log2(size) perfect shuffles of all its elements."""
        half = self.size // 2
        low = [lane for i in range(half) for lane in (i, self.size + i)]
        high = [lane + half for lane in low]
        square = list(vectors)
        for _ in range(self.size.bit_length() - 1):
            pairs = [(square[i], square[i + half]) for i in range(half)]
            square = [self.builder.shuffle_vector(a, b, _mask(mask)) for a, b in pairs for mask in (low, high)]
        return square

    def fma(self, a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
        """Compute ``a * b + c``, with one rounding."""
        name = f"llvm.fma.v{self.size}f{8 * _bytes(a.type.element)}"
        type_ = ir.FunctionType(a.type, [a.type] * 3)
        return self.builder.call(cgutils.get_or_insert_function(self.builder.module, type_, name), [a, b, c])


def _mask(lanes: Sequence[int]) -> ir.Constant:
    return ir.Constant(ir.VectorType(ir.IntType(32), len(lanes)), list(lanes))


def _bytes(element: ir.Type) -> int:
    return 8 if isinstance(element, ir.DoubleType) else 4


def _after(builder: ir.IRBuilder, offset: ir.Value, steps: int) -> ir.Value:
    return builder.add(offset, ir.Constant(_INTEGER, steps))


@intrinsic(target="spirv", prefer_literal=True)
def stage_columns(
    typing_context: Any, source: Any, first: Any, step: Any, shift: Any, column: Any, weights: Any, row: Any,
    weighted: Any, stage: Any, to: Any, size: Any,
) -> Any:  # fmt: skip
    """Implement `language.stage_columns`."""
    n, apart, multiplies = size.literal_value, step.literal_value, weighted.literal_value

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data, first_, _, shift_, column_, weights_, row_, _, stage_, to_, _ = arguments
        if not isinstance(signature.args[0], types.CPointer):
            data = context.make_array(signature.args[0])(context, builder, value=data).data
        vectors, element = _Vectors(builder, n), stage_.type.pointee
        widened = ir.VectorType(element, n)
        columns = []
        for i in range(n):
            x = vectors.load(data, _after(builder, first_, i * apart))
            x = builder.fpext(x, widened) if data.type.pointee != element else x
            middle = builder.load(builder.gep(shift_, [_after(builder, column_, i)]))
            x = builder.fsub(x, vectors.splat(middle))
            if multiplies:
                x = builder.fmul(x, vectors.load(weights_, row_))
            columns.append(x)
        for i, x in enumerate(vectors.transposed(columns)):
            vectors.store(x, stage_, _after(builder, to_, i * n))
        return context.get_dummy_value()

    integer = types.int64
    return types.void(
        source, integer, step, shift, integer, weights, integer, weighted, stage, integer, size
    ), build  # fmt: skip


@intrinsic(target="spirv", prefer_literal=True)
def multiply_columns(
    typing_context: Any, stage: Any, x: Any, y: Any, next_y: Any, rows: Any, left: Any, right: Any, size: Any,
    sums: Any, to: Any, anew: Any,
) -> Any:  # fmt: skip
    """Implement `language.multiply_columns`."""
    n, n_left, n_right = size.literal_value, left.literal_value, right.literal_value

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        stage_, x_, y_, next_y_, rows_, _, _, _, sums_, to_, anew_ = arguments
        vectors = _Vectors(builder, n)

        def step(row: ir.Value, before: list[ir.Value]) -> list[ir.Value]:
            at = builder.mul(row, ir.Constant(_INTEGER, n))
            right_at = builder.add(y_, at)
            ys = []
            for _ in range(n_right):
                ys.append(vectors.load(stage_, right_at))
                right_at = builder.add(right_at, next_y_)
            left_at, after = builder.add(x_, at), []
            for i in range(n_left):
                value = vectors.splat(builder.load(builder.gep(stage_, [_after(builder, left_at, i)])))
                after += [vectors.fma(value, y, before[i * n_right + j]) for j, y in enumerate(ys)]
            return after

        zero = ir.Constant(ir.VectorType(stage_.type.pointee, n), None)
        found = loop(builder, rows_, [zero] * (n_left * n_right), step)
        targets = [_after(builder, to_, k * n) for k in range(len(found))]
        with builder.if_else(cgutils.is_not_null(builder, anew_)) as (then, otherwise):
            with then:
                for value, target in zip(found, targets, strict=True):
                    vectors.store(value, sums_, target)
            with otherwise:
                for value, target in zip(found, targets, strict=True):
                    vectors.store(builder.fadd(vectors.load(sums_, target), value), sums_, target)
        return context.get_dummy_value()

    integer = types.int64
    return types.void(
        stage, integer, integer, integer, integer, left, right, size, sums, integer, integer
    ), build  # fmt: skip


@intrinsic(target="spirv", prefer_literal=True)
def transpose(
    typing_context: Any, source: Any, first: Any, step: Any, target: Any, to: Any, next_row: Any, size: Any
) -> Any:
    """Implement `language.transpose`."""
    n = size.literal_value

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        source_, first_, step_, target_, to_, next_, _ = arguments
        if not isinstance(signature.args[3], types.CPointer):
            target_ = context.make_array(signature.args[3])(context, builder, value=target_).data
        vectors, rows = _Vectors(builder, n), []
        for _ in range(n):
            rows.append(vectors.load(source_, first_))
            first_ = builder.add(first_, step_)
        for column in vectors.transposed(rows):
            vectors.store(column, target_, to_)
            to_ = builder.add(to_, next_)
        return context.get_dummy_value()

    integer = types.int64
    return types.void(source, integer, integer, target, integer, integer, size), build


def loop(
    builder: ir.IRBuilder,
    count: ir.Value,
    values: list[ir.Value],
    step: Callable[[ir.Value, list[ir.Value]], list[ir.Value]],
) -> list[ir.Value]:
    """Return the values after `count` steps, each of which computes all values from those before."""
    before = builder.block
    body, end = builder.append_basic_block("step"), builder.append_basic_block("end")
    builder.cbranch(builder.icmp_signed(">", count, ir.Constant(_INTEGER, 0)), body, end)
    builder.position_at_end(body)
    counter = builder.phi(_INTEGER)
    counter.add_incoming(ir.Constant(_INTEGER, 0), before)
    current = [builder.phi(value.type) for value in values]
    after = step(counter, current)
    following = builder.add(counter, ir.Constant(_INTEGER, 1))
    last = builder.block
    counter.add_incoming(following, last)
    builder.cbranch(builder.icmp_signed("<", following, count), body, end)
    builder.position_at_end(end)
    results = []
    for phi, value, new in zip(current, values, after, strict=True):
        phi.add_incoming(value, before)
        phi.add_incoming(new, last)
        result = builder.phi(value.type)
        result.add_incoming(value, before)
        result.add_incoming(new, last)
        results.append(result)
    return results
