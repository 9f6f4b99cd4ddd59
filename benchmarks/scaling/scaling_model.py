"""How long a fit takes on many engines: what one engine computes, plus what messages between the engines cost.

The seconds of a fit are ``fixed + per_row * rows of an engine + messages``. A message of m bytes takes ``latency + m /
bandwidth``, and the collectives are those of xpulab's communicator (`xpulab.engine.comm`), with the algorithms that MPI
libraries choose [1]_: recursive doubling for what every rank sends to all, binomial trees for barriers, for reductions
of a few hundred kilobytes, and for their results.

Engines that share a core also wait for each other to get it. What that costs is measured with two engines on one core:
they are one computation, with its messages in it, and the messages of the model are those between cores.

References
----------
.. [1] R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of collective communication operations in MPICH",
   International Journal of High Performance Computing Applications 19(1), 2005, pages 49 to 66.
.. [2] J. Squyres, "MPI over 40Gb Ethernet", Cisco Blogs, 2014: Open MPI 1.8.1 over usNIC, half a round trip of 1.93
   microseconds and 37.23 Gbit/s.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

__all__ = ["FABRIC", "Collective", "Computation", "Link", "half_way", "messages", "predicted"]

_FEW = 1 << 18  # bytes of all ranks together; up to here every rank gets the numbers of all, as in xpulab.engine.comm


@dataclass(frozen=True)
class Link:
    """What connects the engines.

    Attributes
    ----------
    latency : float
        Seconds of a message of no bytes.
    bandwidth : float
        Bytes per second.
    call : float
        Seconds of a collective beside its messages: the code around MPI.
    """

    latency: float
    bandwidth: float
    call: float

    def message(self, nbytes: float) -> float:
        """Return the seconds of a message."""
        return self.latency + nbytes / self.bandwidth


#: A network on which MPI does without the operating system: the figures of [2]_, and no time beside messages.
FABRIC = Link(1.93e-6, 37.23e9 / 8, 0.0)


@dataclass(frozen=True)
class Collective:
    """A collective of a fit.

    Attributes
    ----------
    kind : {"sum", "exchange"}
        Every rank gets the sum of all ranks' numbers; or rows go from each rank to each other.
    nbytes : float
        Of each rank: of its numbers, or of all that it sends.
    times : int
        How often.
    """

    kind: str
    nbytes: float
    times: int = 1

    def seconds(self, ranks: int, link: Link) -> float:
        """Return the seconds of all of them."""
        if ranks == 1:
            return 0.0
        steps = math.ceil(math.log2(ranks))
        if self.kind == "exchange":
            once = (ranks - 1) * link.message(self.nbytes / ranks)
        elif ranks * self.nbytes <= _FEW:  # recursive doubling
            once = steps * link.latency + (ranks - 1) * self.nbytes / link.bandwidth
        else:  # a barrier, a reduction and a broadcast
            once = steps * (link.latency + 2 * link.message(self.nbytes))
        return self.times * (once + link.call)


@dataclass(frozen=True)
class Computation:
    """The seconds of one core: ``fixed + per_row * rows``.

    Attributes
    ----------
    fixed, per_row : float
    engines : int
        Engines that share the core and have the same number of the rows, with the messages between them.
    """

    fixed: float
    per_row: float
    engines: int = 1

    @classmethod
    def fitted(cls, rows: list[int], seconds: list[float], engines: int = 1) -> Computation:
        """Fit the line to fits on one core; the errors relative to the seconds have the least squares."""
        table = np.column_stack([np.ones(len(rows)), rows]) / np.array(seconds)[:, None]
        fixed, per_row = np.linalg.lstsq(table, np.ones(len(rows)), rcond=None)[0]
        return cls(max(float(fixed), 0.0), float(per_row), engines)


def messages(ranks: int, collectives: list[Collective], link: Link) -> float:
    """Return the seconds of all collectives of a fit."""
    return sum(collective.seconds(ranks, link) for collective in collectives)


def predicted(computation: Computation, rows: float, ranks: int, collectives: list[Collective], link: Link) -> float:
    """Return the seconds of a fit.

    Parameters
    ----------
    computation : Computation
        Of one core.
    rows : float
        Of all engines.
    ranks : int
        Engines.
    collectives : list of Collective
    link : Link
        Between the cores.
    """
    cores = ranks // computation.engines
    return computation.fixed + computation.per_row * rows / cores + messages(cores, collectives, link)


def half_way(computation: Computation, rows: float, collectives: list[Collective], link: Link, most: int) -> int | None:
    """Return the least power of 2 of engines at which messages take half of a fit of these rows, up to `most`."""
    ranks = 2
    while ranks <= most:
        if messages(ranks, collectives, link) >= computation.per_row * rows / ranks:
            return ranks
        ranks *= 2
    return None
