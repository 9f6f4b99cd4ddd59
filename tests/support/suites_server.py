"""Runs scikit-learn's tests in forks of itself, so that pytest, scikit-learn and xpulab are imported only once.

Each line on standard input is a run, as JSON, and is answered with the exit status of pytest. This program has one
thread, and has swapped nothing: each fork swaps the classes for itself.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from typing import Any

import pytest
from threadpoolctl import threadpool_limits

# What the plugin `suites_plugin` imports before it swaps.
for _name in ("xpulab", "sklearn.cluster._spectral", "sklearn.pipeline", "sklearn.compose", "sklearn.decomposition"):
    importlib.import_module(_name)


def _run(folder: str, arguments: list[str], variables: dict[str, str], output: str) -> None:
    """In a fork: run pytest in this folder, with what it prints in the file `output`, and exit."""
    status = 70
    try:
        with open(output, "wb") as file, open(os.devnull, "rb") as nothing:
            for number, opened in enumerate((nothing, file, file)):
                os.dup2(opened.fileno(), number)
        os.chdir(folder)
        os.environ.update(variables)
        status = int(pytest.main(arguments))
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(status)


def main() -> None:
    """Serve until standard input is closed, with one thread for OpenMP and BLAS beside the engines."""
    threadpool_limits(1)
    for line in sys.stdin:
        run: dict[str, Any] = json.loads(line)
        child = os.fork()
        if child == 0:
            _run(**run)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


main()
