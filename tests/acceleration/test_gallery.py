"""Scripts of scikit-learn's gallery print with accel what they print without it: five of fifteen, or if asked for all.

They are untouched, except that two of them compute less: see `run_gallery.LESS`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SCRIPTS = sorted(str(path) for path in (HERE / "gallery").glob("plot_*.py"))
#: The scripts that run.
CHOSEN = SCRIPTS if os.environ.get("XPULAB_ALL_COMBINATIONS") else SCRIPTS[::3]


@pytest.mark.slow
def test_the_gallery_prints_the_same_and_runs_on_the_engines() -> None:
    assert len(SCRIPTS) == 15
    done = subprocess.run(
        [sys.executable, str(HERE / "run_gallery.py"), "plain,accel", *CHOSEN],
        capture_output=True,
        text=True,
        # On cores that others use, too, OpenMP's threads would wait for each other.
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        timeout=400,
    )
    assert done.returncode == 0, done.stderr[-5000:]
    plain, accelerated = json.loads(done.stdout.splitlines()[-1]).values()
    for script in CHOSEN:
        assert accelerated[script]["printed"] == plain[script]["printed"], script
        assert accelerated[script]["engines"] > 0, script
    assert sum(bool(plain[script]["printed"]) for script in CHOSEN) >= len(CHOSEN) // 2
