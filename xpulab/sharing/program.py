"""The command lines of xpulab's own programs, which import nothing from the folder in which they start; their input.

``python -m`` and ``python -c`` put the current folder first on `sys.path`. A file there with the name of a module, such
as ``random.py`` or ``numpy.py``, would then replace the module.
"""

from __future__ import annotations

import os
import sys

__all__ = ["close_input", "program"]

#: For Python 3.10, which has no option -P: the same without the current folder, which is first on `sys.path`. The first
#: argument is the module. Python imports nothing before it runs this; later releases do.
_WITHOUT_FOLDER = (
    "import sys; del sys.path[0], sys.argv[0]; "
    "import runpy; runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)"
)


def program(module: str, *arguments: str, version: tuple[int, ...] = sys.version_info[:2]) -> list[str]:
    """Return the command line that runs a module of xpulab.

    Parameters
    ----------
    module : str
        Its full name.
    *arguments : str
    version : tuple of int
        The version of Python on the host where it runs.

    Returns
    -------
    list of str
    """
    options = ["-P", "-m"] if version >= (3, 11) else ["-c", _WITHOUT_FOLDER]
    return [sys.executable, *options, module, *arguments]


def close_input() -> None:
    """Let this process, and the processes that it starts, read the end of the file from standard input.

    mpiexec passes its own on to rank 0 only: other ranks would wait for ever.
    """
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
