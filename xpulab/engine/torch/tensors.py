"""Tensors as MPI sees them, which is bytes on the host, and their reduction, which PyTorch computes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

__all__ = ["AVERAGE", "bytes_of", "combined", "on_host", "operation"]

_Op = Callable[..., torch.Tensor]

AVERAGE = dist.ReduceOp.AVG

_NUMBERS: dict[Any, _Op] = {
    dist.ReduceOp.SUM: torch.add,
    dist.ReduceOp.AVG: torch.add,
    dist.ReduceOp.PRODUCT: torch.mul,
    dist.ReduceOp.MIN: torch.minimum,
    dist.ReduceOp.MAX: torch.maximum,
    dist.ReduceOp.BAND: torch.bitwise_and,
    dist.ReduceOp.BOR: torch.bitwise_or,
    dist.ReduceOp.BXOR: torch.bitwise_xor,
}
_TRUTHS: dict[Any, _Op] = {
    dist.ReduceOp.SUM: torch.logical_or,
    dist.ReduceOp.PRODUCT: torch.logical_and,
    dist.ReduceOp.MIN: torch.logical_and,
    dist.ReduceOp.MAX: torch.logical_or,
    dist.ReduceOp.BAND: torch.bitwise_and,
    dist.ReduceOp.BOR: torch.bitwise_or,
    dist.ReduceOp.BXOR: torch.bitwise_xor,
}
_BITS = (dist.ReduceOp.BAND, dist.ReduceOp.BOR, dist.ReduceOp.BXOR)
_SHORT = (torch.float16, torch.bfloat16)


def on_host(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor's values in one piece on the host: the tensor's own memory, if it is such a piece.

    Raises
    ------
    TypeError
        If the tensor is sparse.
    """
    if tensor.layout is not torch.strided:
        raise TypeError(
            f"received a tensor with layout {tensor.layout}; expected a dense tensor: the process group xpulab sends "
            "no sparse tensors. Type: tensor.to_dense(), and torch.nn.Embedding(..., sparse=False)"
        )
    return tensor.detach().resolve_conj().resolve_neg().to("cpu").contiguous()


class _Memory:
    """The memory of a contiguous tensor on the host, as NumPy's interface of arrays.

    `Tensor.numpy` would forbid for ever that the tensor's memory is freed, as FSDP frees gathered parameters.
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor
        self.__array_interface__ = {
            "version": 3,
            "typestr": "|u1",
            "shape": (tensor.nbytes,),
            "data": (tensor.data_ptr(), False),
        }


def bytes_of(tensor: torch.Tensor) -> np.ndarray:
    """Return the memory of a contiguous tensor on the host as bytes. The array keeps the tensor alive."""
    return np.asarray(_Memory(tensor.detach())) if tensor.nbytes else np.empty(0, np.uint8)


def operation(reduce_op: dist.ReduceOp | dist.ReduceOp.RedOpType, dtype: torch.dtype) -> Any:
    """Return the kind of a reduction, such as ``dist.ReduceOp.SUM``, if it is defined for this dtype.

    Parameters
    ----------
    reduce_op : torch.distributed.ReduceOp or torch.distributed.ReduceOp.RedOpType
    dtype : torch.dtype

    Raises
    ------
    TypeError
        If it is not.
    """
    kind = getattr(reduce_op, "op", reduce_op)
    name = str(kind).rpartition(".")[2]
    known = _TRUTHS if dtype is torch.bool else _NUMBERS
    fractional = dtype.is_floating_point or dtype.is_complex
    refused = (
        kind not in known
        or (kind == AVERAGE and not fractional)
        or (kind in _BITS and fractional)
        or (kind in (dist.ReduceOp.MIN, dist.ReduceOp.MAX) and dtype.is_complex)
    )
    if refused:
        allowed = [str(each).rpartition(".")[2] for each in known]
        raise TypeError(
            f"received ReduceOp.{name} for tensors of {dtype}; expected one of {', '.join(allowed)}, of which AVG is "
            "for floating-point numbers, MIN and MAX are for real numbers, and BAND, BOR and BXOR for integers and bool"
        )
    return kind


def combined(
    parts: Sequence[torch.Tensor], kind: dist.ReduceOp.RedOpType, out: torch.Tensor | None = None
) -> torch.Tensor:
    """Reduce tensors of one shape and dtype in their order, which is that of the ranks.

    Numbers of 16 bits are added and multiplied in float32, and rounded once.

    Parameters
    ----------
    parts : sequence of torch.Tensor
    kind : torch.distributed.ReduceOp.RedOpType
    out : torch.Tensor, optional
        Memory for the result, which may be that of one of the first two parts.
    """
    dtype = parts[0].dtype
    if dtype in _SHORT:
        parts = [part.float() for part in parts]
    function = (_TRUTHS if dtype is torch.bool else _NUMBERS)[kind]
    if out is not None and dtype in _SHORT:
        out = None
    if len(parts) == 1:
        total = parts[0].clone() if out is None else parts[0]
    else:
        total = function(parts[0], parts[1]) if out is None else function(parts[0], parts[1], out=out)
    for part in parts[2:]:
        function(total, part, out=total)
    if kind == AVERAGE:
        total /= len(parts)
    return total.to(dtype)
