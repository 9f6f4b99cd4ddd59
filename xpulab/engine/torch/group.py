"""A process group of torch.distributed over the communicator of the ranks, with the name ``xpulab``.

It needs no port, no rendezvous and no environment variable. MPI only moves bytes, in messages that do not block, and
PyTorch reduces them, in the order of the ranks. Each part of a reduction is computed on one rank, so that all ranks get
the same bits.

Each collective begins with the exchange of a few numbers, in which the ranks compare their calls. If the calls differ,
all ranks raise an error that names them. Tensors on a device travel through the memory of the host.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from mpi4py import MPI

from xpulab.engine.engine import this_engine
from xpulab.engine.torch.collective_queue import Steps, Work
from xpulab.engine.torch.connections import connection
from xpulab.engine.torch.tensors import bytes_of, combined, on_host, operation
from xpulab.engine.users_mpi.interruptible import WORLD

__all__ = ["NAME", "ProcessGroup", "reachable", "register"]

#: The name of the process group, as in ``torch.distributed.init_process_group("xpulab")``.
NAME = "xpulab"

_FEW = 1 << 14  # bytes per rank: up to here sending everything to all ranks is faster than a reduction in parts
PIECE = 1 << 30  # bytes of a message; MPI counts up to 2**31
_TAGS = 1 << 14  # a later collective may use the tag of an earlier one that has long ended

#: Names of the collectives, for the comparison of the ranks' calls.
_NAMES = (
    "broadcast", "allreduce", "reduce", "allgather", "gather", "scatter", "reduce_scatter", "alltoall", "barrier",
)  # fmt: skip

_Part = tuple[int, np.ndarray]  # a rank, and bytes for it or from it
_Waits = Generator[Sequence[MPI.Request], None, None]


class ProcessGroup(dist.ProcessGroup):
    """The ranks as a group of torch.distributed.

    Parameters
    ----------
    rank : int
        Number of this rank in the group.
    ranks : sequence of int
        The ranks of the group, as numbers of MPI's ranks.
    """

    def __init__(self, rank: int, ranks: Sequence[int]) -> None:
        super().__init__(rank, len(ranks))
        self._rank, self._size = rank, len(ranks)
        self._ranks = tuple(ranks)
        self._name = self._description = ""
        self._connect()

    def getBackendName(self) -> str:
        """Return the name of the process group."""
        return NAME

    # The name by which PyTorch finds a group, such as that of a DeviceMesh. Its own groups have it in their backends.

    def setGroupName(self, name: str) -> None:
        """Note the name that PyTorch gives this group."""
        self._name = name

    def getGroupName(self) -> str:
        """Return the name that PyTorch has given this group."""
        return self._name

    def setGroupDesc(self, description: str) -> None:
        """Note what the group is for."""
        self._description = description

    def getGroupDesc(self) -> str:
        """Return what the group is for."""
        return self._description

    def _connect(self) -> None:
        """Take the communicators of these ranks: new ones after a failure. All ranks call this together."""
        here = connection(self._ranks)
        self._comm, self._pairs, self._queue, self._numbers = here.comm, here.pairs, here.queue, here.numbers

    def _start_coalescing(self, device: torch.device) -> None:
        """Do nothing: calls within `_coalescing_manager` begin one after the other."""

    def _end_coalescing(self, device: torch.device) -> Work:
        """Return a message that has ended, because the calls return works of their own."""
        return Work(iter(()), [])

    # Collectives, under the names that PyTorch calls.

    def broadcast(self, tensors: list[torch.Tensor], opts: dist.BroadcastOptions) -> Work:
        """Send the tensor of rank ``opts.rootRank`` to all ranks."""
        (tensor,), root = tensors, opts.rootRank
        host = on_host(tensor)

        def steps(tag: int) -> Steps:
            yield [self._comm.Ibcast([piece, MPI.BYTE], root) for piece in _pieces(bytes_of(host))]
            _give(tensor, host)

        return self._issue("broadcast", tensors, steps, opts, host.nbytes, root)

    def allreduce(self, tensors: list[torch.Tensor], opts: dist.AllreduceOptions) -> Work:
        """Reduce tensors over the ranks; all ranks get the result."""
        hosts = [on_host(tensor) for tensor in tensors]
        kind = operation(opts.reduceOp, hosts[0].dtype)
        whole = hosts[0].view(-1) if len(hosts) == 1 else torch.cat([host.view(-1) for host in hosts])

        def steps(tag: int) -> Steps:
            yield from self._allreduced(whole, kind, tag)
            parts = whole.split([host.numel() for host in hosts])
            for tensor, host, part in zip(tensors, hosts, parts, strict=True):
                _give(tensor, part.view(host.shape))

        return self._issue("allreduce", tensors, steps, opts, whole.nbytes, int(kind), _DTYPES.index(str(whole.dtype)))

    allreduce_coalesced = allreduce

    def reduce(self, tensors: list[torch.Tensor], opts: dist.ReduceOptions) -> Work:
        """Reduce a tensor over the ranks; only rank ``opts.rootRank`` gets the result."""
        (tensor,), root = tensors, opts.rootRank
        whole = on_host(tensor).view(-1)
        kind = operation(opts.reduceOp, whole.dtype)

        def steps(tag: int) -> Steps:
            parts = whole.chunk(self._size) if whole.numel() else ()
            parts = (*parts, *[whole[:0]] * (self._size - len(parts)))
            mine = yield from self._reduced(parts, kind, tag)
            if self._rank != root:
                yield from self._exchanged([(root, bytes_of(mine))], [], tag)
                return
            found = [torch.empty_like(part) for part in parts]
            found[root] = mine
            yield from self._exchanged([], self._others(found), tag)
            _give(tensor, torch.cat(found).view(tensor.shape))

        return self._issue(
            "reduce", tensors, steps, opts, whole.nbytes, root, int(kind), _DTYPES.index(str(whole.dtype))
        )

    def allgather(
        self, output_tensors: list[list[torch.Tensor]], input_tensors: list[torch.Tensor], opts: dist.AllgatherOptions
    ) -> Work:
        """Collect the tensors of all ranks on all ranks."""
        pairs = list(zip(output_tensors, input_tensors, strict=True))
        sources = [on_host(tensor) for tensor in input_tensors]

        def steps(tag: int) -> Steps:
            for (outputs, _), source in zip(pairs, sources, strict=True):
                yield from self._gathered(outputs, source, tag)

        flat = [tensor for outputs in output_tensors for tensor in outputs]
        return self._issue("allgather", flat, steps, opts, sum(source.nbytes for source in sources))

    def allgather_coalesced(
        self, output_lists: list[list[torch.Tensor]], input_list: list[torch.Tensor], opts: dist.AllgatherOptions
    ) -> Work:
        """Collect several tensors of all ranks on all ranks."""
        by_input = [list(outputs) for outputs in zip(*output_lists, strict=True)]
        return self.allgather(by_input if len(by_input) == len(input_list) else output_lists, input_list, opts)

    def _allgather_base(self, output: torch.Tensor, input: torch.Tensor, opts: dist.AllgatherOptions) -> Work:
        """Collect the tensors of all ranks in one tensor on all ranks."""
        return self.allgather_into_tensor_coalesced([output], [input], opts)

    def allgather_into_tensor_coalesced(
        self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: dist.AllgatherOptions
    ) -> Work:
        """Collect the tensors of all ranks in one tensor on all ranks, for several tensors."""
        sources = [on_host(tensor) for tensor in inputs]

        def steps(tag: int) -> Steps:
            for output, source in zip(outputs, sources, strict=True):
                every = on_host(output)
                yield from self._gathered(list(every.view(-1).chunk(self._size)), source.view(-1), tag)
                _give(output, every)

        for output, source in zip(outputs, sources, strict=True):
            _require_size(output, source.numel() * self._size, "all_gather_into_tensor")
        return self._issue("allgather", outputs, steps, opts, sum(source.nbytes for source in sources))

    def gather(
        self, output_tensors: list[list[torch.Tensor]], input_tensors: list[torch.Tensor], opts: dist.GatherOptions
    ) -> Work:
        """Collect the tensors of all ranks on rank ``opts.rootRank``."""
        (source,), root = [on_host(tensor) for tensor in input_tensors], opts.rootRank
        outputs = output_tensors[0] if output_tensors else []

        def steps(tag: int) -> Steps:
            if self._rank != root:
                yield from self._exchanged([(root, bytes_of(source))], [], tag)
                return
            found = [on_host(output) for output in outputs]
            yield from self._exchanged([], self._others(found), tag)
            found[root] = source
            for output, part in zip(outputs, found, strict=True):
                _give(output, part)

        return self._issue("gather", outputs, steps, opts, source.nbytes, root)

    def scatter(
        self, output_tensors: list[torch.Tensor], input_tensors: list[list[torch.Tensor]], opts: dist.ScatterOptions
    ) -> Work:
        """Send a tensor of rank ``opts.rootRank`` to each rank."""
        (output,), root = output_tensors, opts.rootRank
        sources = [on_host(tensor) for tensor in input_tensors[0]] if input_tensors else []

        def steps(tag: int) -> Steps:
            if self._rank == root:
                yield from self._exchanged(self._others(sources), [], tag)
                _give(output, sources[root])
                return
            found = on_host(output)
            yield from self._exchanged([], [(root, bytes_of(found))], tag)
            _give(output, found)

        return self._issue("scatter", output_tensors, steps, opts, output.nbytes, root)

    def reduce_scatter(
        self,
        output_tensors: list[torch.Tensor],
        input_tensors: list[list[torch.Tensor]],
        opts: dist.ReduceScatterOptions,
    ) -> Work:
        """Reduce a list of tensors over the ranks; each rank gets the tensor with its number."""
        (output,), (inputs,) = output_tensors, input_tensors
        parts = [on_host(tensor).view(-1) for tensor in inputs]
        return self._reduce_scattered([output], [parts], opts)

    def _reduce_scatter_base(self, output: torch.Tensor, input: torch.Tensor, opts: dist.ReduceScatterOptions) -> Work:
        """Reduce a tensor over the ranks; each rank gets the part with its number."""
        return self.reduce_scatter_tensor_coalesced([output], [input], opts)

    def reduce_scatter_tensor_coalesced(
        self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: dist.ReduceScatterOptions
    ) -> Work:
        """Reduce tensors over the ranks; each rank gets the parts with its number."""
        for output, source in zip(outputs, inputs, strict=True):
            _require_size(source, output.numel() * self._size, "reduce_scatter_tensor")
        return self._reduce_scattered(outputs, [list(on_host(t).view(-1).chunk(self._size)) for t in inputs], opts)

    def alltoall(
        self, output_tensors: list[torch.Tensor], input_tensors: list[torch.Tensor], opts: dist.AllToAllOptions
    ) -> Work:
        """Send a tensor to each rank, and receive one from each rank."""
        sources = [on_host(tensor) for tensor in input_tensors]

        def steps(tag: int) -> Steps:
            found = [on_host(output) for output in output_tensors]
            yield from self._exchanged(self._others(sources), self._others(found), tag)
            found[self._rank] = sources[self._rank]
            for output, part in zip(output_tensors, found, strict=True):
                _give(output, part.view(output.shape))

        return self._issue("alltoall", output_tensors, steps, opts)

    def alltoall_base(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_split_sizes: list[int],
        input_split_sizes: list[int],
        opts: dist.AllToAllOptions,
    ) -> Work:
        """Send rows of a tensor to each rank, and receive rows from each rank."""
        sources = [part.contiguous() for part in self._split(on_host(input), input_split_sizes)]
        every = on_host(output)

        def steps(tag: int) -> Steps:
            found = self._split(every, output_split_sizes)
            yield from self._exchanged(self._others(sources), self._others(found), tag)
            found[self._rank].copy_(sources[self._rank])
            _give(output, every)

        return self._issue("alltoall", [output], steps, opts)

    def barrier(self, opts: dist.BarrierOptions | None = None) -> Work:
        """Wait until all ranks have called this."""
        return self._issue("barrier", [], lambda tag: iter(()), opts)

    # The names that later releases of PyTorch call.
    all_gather_single = _allgather_base
    all_gather_single_coalesced = allgather_into_tensor_coalesced
    reduce_scatter_single = _reduce_scatter_base
    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced
    all_to_all_single = alltoall_base

    # Messages between two ranks. Each group has a communicator for them, so that they never match a collective's.

    def send(self, tensors: list[torch.Tensor], dstRank: int, tag: int = 0) -> Work:
        """Send a tensor to a rank."""
        self._connect()
        (tensor,) = tensors
        host = on_host(tensor)

        def steps() -> Steps:
            yield [self._pairs.Isend([piece, MPI.BYTE], dstRank, tag) for piece in _pieces(bytes_of(host))]

        return Work(steps(), tensors)

    def recv(self, tensors: list[torch.Tensor], srcRank: int, tag: int = 0) -> Work:
        """Receive a tensor from a rank."""
        return self._received(tensors, srcRank, tag)

    def recv_anysource(self, tensors: list[torch.Tensor], tag: int = 0) -> Work:
        """Receive a tensor from any rank."""
        return self._received(tensors, MPI.ANY_SOURCE, tag)

    def _received(self, tensors: list[torch.Tensor], source: int, tag: int) -> Work:
        self._connect()
        (tensor,) = tensors
        host = on_host(tensor)
        first, *rest = _pieces(bytes_of(host))

        def steps() -> Steps:
            yield [self._pairs.Irecv([first, MPI.BYTE], source, tag)]
            yield [self._pairs.Irecv([piece, MPI.BYTE], work.source_rank(), tag) for piece in rest]
            _give(tensor, host)

        work = Work(steps(), tensors)
        return work

    # The steps of collectives.

    def _issue(
        self,
        name: str,
        tensors: list[torch.Tensor],
        steps: Callable[[int], Steps],
        opts: object,
        nbytes: int = 0,
        *facts: int,
    ) -> Work:
        """Add a collective to the queue, after the comparison of the ranks' calls."""
        self._connect()
        number = next(self._numbers)
        call = np.array([_NAMES.index(name), number, nbytes, *facts, *[0] * (3 - len(facts))], np.int64)

        def all_steps() -> Steps:
            yield from self._compared(call)
            yield from steps(number % _TAGS)

        work = Work(all_steps(), tensors, self._queue)
        self._queue.add(work, in_background=getattr(opts, "asyncOp", True))
        return work

    def _compared(self, call: np.ndarray) -> _Waits:
        if self._size == 1:
            return
        every = np.empty((self._size, len(call)), np.int64)
        yield [self._comm.Iallgather(call, every)]
        if (every != call).any():
            calls = "; ".join(f"{_described(each)} on rank {rank}" for rank, each in enumerate(every))
            raise ValueError(
                f"received {calls}; expected the same collective with the same size on every rank. A loop over batches "
                "needs the same number of batches on every rank, and every rank must use the same parameters"
            )

    def _allreduced(self, whole: torch.Tensor, kind: dist.ReduceOp.RedOpType, tag: int) -> _Waits:
        """Reduce a flat tensor in place."""
        if whole.nbytes <= _FEW:
            every = torch.empty((self._size, whole.numel()), dtype=whole.dtype)
            if self._size > 1:
                yield [self._comm.Iallgather([bytes_of(whole), MPI.BYTE], [bytes_of(every), MPI.BYTE])]
            else:
                every[0] = whole
            whole.copy_(combined(list(every), kind))
            return
        ends = [whole.numel() * rank // self._size for rank in range(self._size + 1)]
        parts = [whole[first:last] for first, last in itertools.pairwise(ends)]
        own = parts[self._rank]
        total = yield from self._reduced(parts, kind, tag, own if self._rank < 2 else None)
        if total.data_ptr() != own.data_ptr():
            own.copy_(total)
        mine = bytes_of(own)
        yield from self._exchanged([(rank, mine) for rank, _ in self._others(parts)], self._others(parts), tag)

    def _reduced(
        self, parts: Sequence[torch.Tensor], kind: dist.ReduceOp.RedOpType, tag: int, out: torch.Tensor | None = None
    ) -> Generator[Sequence[MPI.Request], None, torch.Tensor]:
        """Return the reduction of the part with this rank's number."""
        own = parts[self._rank]
        found = self._queue.memory(own.numel() * self._size, own.dtype).view(self._size, -1)
        every = [own if rank == self._rank else found[rank].view(own.shape) for rank in range(self._size)]
        yield from self._exchanged(self._others(parts), self._others(every), tag)
        return combined(every, kind, out)

    def _reduce_scattered(
        self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]], opts: dist.ReduceScatterOptions
    ) -> Work:
        kind = operation(opts.reduceOp, inputs[0][0].dtype)

        def steps(tag: int) -> Steps:
            for output, parts in zip(outputs, inputs, strict=True):
                _give(output, (yield from self._reduced(parts, kind, tag)).view(output.shape))

        nbytes = sum(output.nbytes for output in outputs)
        return self._issue(
            "reduce_scatter", outputs, steps, opts, nbytes, int(kind), _DTYPES.index(str(inputs[0][0].dtype))
        )

    def _gathered(self, outputs: list[torch.Tensor], source: torch.Tensor, tag: int) -> _Waits:
        found = [on_host(output) for output in outputs]
        mine = bytes_of(source)
        yield from self._exchanged([(rank, mine) for rank, _ in self._others(found)], self._others(found), tag)
        found[self._rank] = source
        for output, part in zip(outputs, found, strict=True):
            _give(output, part)

    def _exchanged(self, sent: Sequence[_Part], received: Sequence[_Part], tag: int) -> _Waits:
        """Send bytes to ranks, and receive bytes from ranks."""
        yield [
            *(self._comm.Irecv([piece, MPI.BYTE], rank, tag) for rank, data in received for piece in _pieces(data)),
            *(self._comm.Isend([piece, MPI.BYTE], rank, tag) for rank, data in sent for piece in _pieces(data)),
        ]

    def _others(self, tensors: Sequence[torch.Tensor]) -> list[_Part]:
        """Return the bytes of the tensors for, or from, the other ranks. The next rank comes first."""
        ranks = [(self._rank + step) % self._size for step in range(1, self._size)]
        return [(rank, bytes_of(tensors[rank])) for rank in ranks]

    def _split(self, tensor: torch.Tensor, sizes: list[int]) -> list[torch.Tensor]:
        if sizes:
            return list(tensor.split(sizes))
        if tensor.shape[0] % self._size:
            raise ValueError(
                f"received a tensor of {tensor.shape[0]} rows for all_to_all_single; expected a multiple of "
                f"{self._size}, the number of ranks, or input_split_sizes and output_split_sizes"
            )
        return list(tensor.tensor_split(self._size))


def _pieces(data: np.ndarray) -> list[np.ndarray]:
    return [data[first : first + PIECE] for first in range(0, len(data), PIECE)] or [data]


def _give(tensor: torch.Tensor, host: torch.Tensor) -> None:
    """Write a result into the tensor of the caller, unless its memory has the result."""
    if tensor.data_ptr() != host.data_ptr() or tensor.device.type != "cpu" or tensor.stride() != host.stride():
        tensor.detach().copy_(host.view(tensor.shape))


def _require_size(tensor: torch.Tensor, expected: int, name: str) -> None:
    """Raise `ValueError` unless the larger tensor of a call has room for one part from each rank, or for each rank."""
    if tensor.numel() != expected:
        raise ValueError(f"received a tensor of {tensor.numel():,} numbers for {name}; expected {expected:,}")


_DTYPES = sorted({str(each) for each in vars(torch).values() if isinstance(each, torch.dtype)})


def _described(call: np.ndarray) -> str:
    """Describe a call of a rank for users."""
    name, number, nbytes, *_ = map(int, call)
    return f"{_NAMES[name]} of {nbytes:,} bytes as collective {number + 1}"


def register() -> None:
    """Tell torch.distributed the name of the process group. Repeated calls do nothing."""
    if NAME not in dist.Backend.backend_list:
        dist.Backend.register_backend(NAME, _created, extended_api=True, devices=["cpu", "cuda", "xpu"])


def _created(options: Any, _: object) -> ProcessGroup:
    """Return the group that ``init_process_group`` or ``new_group`` asks for."""
    members = list(options.global_ranks_in_group)
    if members:  # as numbers of the ranks of the default group
        ranks = [dist.group.WORLD._ranks[member] for member in members]
    elif options.group_size != len(ranks := reachable()):
        raise ValueError(
            f"received world_size={options.group_size}; expected {len(ranks)}, the number of ranks that run this code. "
            "Type: xpulab.torch.init()"
        )
    return ProcessGroup(options.group_rank, ranks)


def reachable() -> list[int]:
    """Return the ranks that run this code: those of the cell, or those of the script."""
    engine = this_engine()
    task = engine.task if engine is not None else None
    return list(task.ranks) if task is not None else list(range(WORLD.size))
