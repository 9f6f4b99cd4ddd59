"""Ranks that do not find each other are warned that each of them computes alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

PROGRAM = """
import json, os, sys, warnings
from xpulab.spmd._rank import ranks
for variables in json.load(sys.stdin):
    for name in (*ranks._OF_MPIEXEC, *ranks._OF_SRUN):
        os.environ.pop(name, None)
    os.environ.update(variables)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        ranks._warn_if_alone()
    print(json.dumps([str(each.message) for each in said]))
"""

SRUN = ": they do not find each other, and each computes alone as rank 0; type: xpulab run --launcher slurm script.py"
CASES = [  # this process is one rank
    ({}, ""),
    ({"SLURM_NTASKS": "1"}, ""),
    ({"SLURM_NTASKS": "2(x3)"}, ""),
    ({"SLURM_NTASKS": "2"}, f"MPI has 1 rank, and 2 were started (SLURM_NTASKS=2){SRUN}"),
    ({"SLURM_NTASKS": "4", "SLURM_STEP_NUM_TASKS": "1"}, ""),  # mpiexec or a single process in a larger job
    ({"SLURM_NTASKS": "4", "PMI_SIZE": "1"}, ""),
    ({"SLURM_NTASKS": "1", "PMI_SIZE": "3"}, "MPI has 1 rank, and 3 were started (PMI_SIZE=3)"),
    (
        {"OMPI_COMM_WORLD_SIZE": "2"},
        "type: the mpiexec of the library, which is Intel(R) MPI Library, or: xpulab run -n 2",
    ),
]


@pytest.mark.cluster
def test_the_number_of_ranks_is_compared_with_that_which_was_started() -> None:
    variables = json.dumps([case for case, _ in CASES])
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PMI_", "OMPI_", "SLURM_"))}
    words = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(words, input=variables, env=clean, capture_output=True, text=True, check=True)
    said = [json.loads(line) for line in done.stdout.splitlines()]
    assert [len(each) for each in said] == [bool(words) for _, words in CASES]
    for found, (_, expected) in zip(said, CASES, strict=True):
        assert expected in "".join(found)
