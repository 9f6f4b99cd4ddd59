"""Horovod's functions for code that was written with them, on the process group of the ranks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist

from xpulab.engine.torch.setting import init
from xpulab.exceptions import UsageError

__all__ = ["DistributedOptimizer", "allgather", "allreduce", "broadcast", "broadcast_parameters"]

_OPERATIONS = {
    "average": dist.ReduceOp.AVG,
    "sum": dist.ReduceOp.SUM,
    "product": dist.ReduceOp.PRODUCT,
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
}


def allreduce(tensor: torch.Tensor, op: str = "average") -> torch.Tensor:
    """Reduce a tensor over the ranks, and return the result in a new tensor.

    Parameters
    ----------
    tensor : torch.Tensor
        It has the same shape and dtype on all ranks.
    op : {"average", "sum", "product", "min", "max"}
        The average, as in Horovod, is the default. It is for floating-point numbers.

    Returns
    -------
    torch.Tensor
    """
    if op not in _OPERATIONS:
        raise UsageError(f"received op={op!r}; expected one of {', '.join(_OPERATIONS)}")
    init()
    result = tensor.detach().clone()
    dist.all_reduce(result, _OPERATIONS[op])
    return result


def allgather(tensor: torch.Tensor) -> torch.Tensor:
    """Join the tensors of all ranks along their first dimension, in the order of the ranks.

    Parameters
    ----------
    tensor : torch.Tensor of shape (n, ...)
        The ranks may have different numbers n of rows, and otherwise have the same shape and dtype.

    Returns
    -------
    torch.Tensor of shape (sum of n, ...)
    """
    if tensor.ndim == 0:
        raise UsageError("received a tensor without dimensions; expected one of shape (n, ...): tensor.reshape(1)")
    setting = init()
    every: list[Any] = [None] * setting.size
    dist.all_gather_object(every, (tuple(tensor.shape), str(tensor.dtype)))
    if len({(shape[1:], dtype) for shape, dtype in every}) > 1:
        given = "; ".join(f"{shape} of {dtype} on rank {rank}" for rank, (shape, dtype) in enumerate(every))
        raise UsageError(
            f"received tensors of shape {given}; expected the same dtype, and shapes that differ in rows only"
        )
    longest = max(shape[0] for shape, _ in every)
    mine = tensor.detach().new_zeros((longest, *tensor.shape[1:]))
    mine[: len(tensor)] = tensor.detach()
    found = [torch.empty_like(mine) for _ in every]
    dist.all_gather(found, mine)
    return torch.cat([rows[: shape[0]] for rows, (shape, _) in zip(found, every, strict=True)])


def broadcast(tensor: torch.Tensor, root_rank: int = 0) -> torch.Tensor:
    """Return the tensor of one rank on all ranks, in a new tensor.

    Parameters
    ----------
    tensor : torch.Tensor
        The tensor of this rank, of the same shape and dtype on all ranks.
    root_rank : int, default=0
        The rank whose tensor counts.

    Returns
    -------
    torch.Tensor
        A copy of the tensor of `root_rank`.
    """
    _check_root(root_rank)
    result = tensor.detach().clone()
    dist.broadcast(result, root_rank)
    return result


def broadcast_parameters(
    params: Mapping[str, torch.Tensor] | Iterable[tuple[str, torch.Tensor]], root_rank: int = 0
) -> None:
    """Give all ranks the parameters of one rank.

    Parameters
    ----------
    params : mapping or iterable of pairs
        ``model.state_dict()`` or ``model.named_parameters()``; the tensors are changed in place.
    root_rank : int
    """
    _check_root(root_rank)
    pairs = sorted(params.items() if isinstance(params, Mapping) else params, key=lambda pair: pair[0])
    works = [dist.broadcast(tensor.detach(), root_rank, async_op=True) for _, tensor in pairs if _is_tensor(tensor)]
    for work in works:
        work.wait()


def _is_tensor(value: object) -> bool:
    return isinstance(value, torch.Tensor)


def _check_root(root_rank: int) -> None:
    size = init().size
    if not 0 <= root_rank < size:
        raise UsageError(f"received root_rank={root_rank}; expected a number from 0 to {size - 1}")


def DistributedOptimizer(  # Horovod's name
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None,
    op: str = "average",
) -> torch.optim.Optimizer:
    """Return the optimizer, whose `step` first reduces the gradients over the ranks.

    The model needs no DistributedDataParallel, which is faster, because it reduces gradients during the backward pass.
    Call `broadcast_parameters` once before the first step.

    Parameters
    ----------
    optimizer : torch.optim.Optimizer
        It keeps its class and its parameters, and is changed.
    named_parameters : iterable of pairs, optional
        ``model.named_parameters()``, for the names in messages.
    op : {"average", "sum"}

    Returns
    -------
    torch.optim.Optimizer
        The same object, also with a method `synchronize`, which waits for the gradients, for clipping them.

    Raises
    ------
    UsageError
        In `step`, if a parameter has a gradient on some of the ranks only; the message has its name.
    """
    if op not in ("average", "sum"):
        raise UsageError(f"received op={op!r}; expected 'average' or 'sum'")
    init()
    _Reducing(optimizer, dict(named_parameters or ()), _OPERATIONS[op])
    return optimizer


class _Reducing:
    """Reduces the gradients of an optimizer's parameters."""

    def __init__(self, optimizer: torch.optim.Optimizer, named: dict[str, torch.Tensor], operation: object) -> None:
        self._operation = operation
        self._parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        names = {id(parameter): name for name, parameter in named.items()}
        self._names = [names.get(id(each), f"number {number}") for number, each in enumerate(self._parameters)]
        self._works: dict[int, Any] = {}
        self._done = False
        optimizer.synchronize = self.synchronize
        optimizer.register_step_pre_hook(lambda *_: self._before_step())

    def _before_step(self) -> None:
        if not self._done:
            self.synchronize()
        self._done = False

    def synchronize(self) -> None:
        """Reduce all gradients, and wait for them."""
        has = torch.tensor([parameter.grad is not None for parameter in self._parameters])
        every = [torch.empty_like(has) for _ in range(dist.get_world_size())]
        dist.all_gather(every, has)
        for number, name in enumerate(self._names):
            without = [rank for rank, flags in enumerate(every) if not flags[number]]
            if 0 < len(without) < len(every):
                raise UsageError(
                    f"received no gradient of {name} on rank {', '.join(map(str, without))}; expected one "
                    "on every rank or on none: every rank must use the same parameters of the model in a step"
                )
        gradients = [parameter.grad for parameter in self._parameters if parameter.grad is not None]
        for work in [dist.all_reduce(gradient, self._operation, async_op=True) for gradient in gradients]:
            work.wait()
        self._done = True
