"""The options of ``%%xpu`` and ``%%xpu_profile``."""

from __future__ import annotations

from collections.abc import Iterable

from xpulab.console.commands import Parser, identifier, identifiers, numbers
from xpulab.deploy.current import find_current

__all__ = ["cell_parser", "profile_parser"]


def cell_parser(mine: Iterable[str] = ()) -> Parser:
    """Return the parser of the arguments of ``%%xpu``.

    Parameters
    ----------
    mine : iterable of str
        The variables of the notebook, which completion offers after ``--in`` and ``--scatter``.
    """
    parser = Parser(
        prog="%%xpu",
        description=(
            "Run the cell on every engine. The cell can use comm (mpi4py's), rank, size, device and queue (dpctl's), "
            "and the variables of earlier %%xpu cells. Its output is marked with the ranks. You can write kernels in "
            "OpenCL C, which dpctl.program compiles, and on Python 3.10 and 3.11 in Python, which numba-dpex compiles. "
            "await, IPython's magics such as %%timeit, and !commands work, on each rank."
        ),
    )
    parser.add_argument(
        "--ranks",
        type=numbers,
        metavar="R,R",
        help="run the cell on these ranks only; comm then contains only these, numbered from 0, and waits for no other",
    )
    for option, dest, text in (
        (
            "--in",
            "whole",
            "send these variables of the notebook to the ranks first; of a handle, each gets its own rows",
        ),
        ("--scatter", "scatter", "send each rank its part of these arrays first, cut along the first axis"),
        ("--out", "out", "return these variables to the notebook, as a list with one entry per rank"),
    ):
        parser.add_argument(
            option, dest=dest, type=identifiers, metavar="A,B", action="extend", default=[], help=f"{text}; repeatable"
        )
    parser.add_argument(
        "--background",
        type=identifier,
        nargs="?",
        const="_",
        metavar="NAME",
        help="go on at once: the value of the cell, and this variable, is an object with wait(), stop() and output",
    )
    parser.offers |= {"--in": lambda: mine, "--scatter": lambda: mine, "--out": _names_on_ranks}
    return parser


def _names_on_ranks() -> list[str]:
    cluster = find_current()
    return [] if cluster is None else list(cluster.variables.completion.after(""))


def profile_parser() -> Parser:
    """Return the parser of the arguments of ``%%xpu_profile``."""
    parser = Parser(
        prog="%%xpu_profile",
        description=(
            "Run the cell, show where its time went, and return its value. The profile has the phases of every fit and "
            "predict. For every %%xpu cell and every XPUCluster.run in the cell it has, by rank, the time of each "
            "kernel and transfer that the code gives to queue, and the calls of MPI by name: their number, bytes and "
            "seconds, and how long the rank waited in collective calls until the last rank came. What dpnp and "
            "numba-dpex submit to the device themselves cannot be seen. Write %%xpu below %%xpu_profile to profile a "
            "cell of the engines."
        ),
    )
    parser.add_argument(
        "--out",
        type=identifier,
        metavar="NAME",
        help="keep the Profile in this variable: reports has the report of each call, cells what each cell did on the "
        "engines, and to_dict returns all of them as values for JSON",
    )
    return parser
