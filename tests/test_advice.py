"""The advice about what to type next, in a script and in IPython."""

from __future__ import annotations

from typing import Any

import pytest

import xpulab
from xpulab.advice import to_have_interrupted, to_resume, to_start
from xpulab.exceptions import NoClusterError


def test_advice_in_a_script_is_python() -> None:
    names: dict[str, Any] = {}
    exec(to_start().partition(";")[0], names)
    assert names["xpulab"] is xpulab
    assert to_start() == "import xpulab; xpulab.XPUCluster().start()"
    assert to_resume() == "import xpulab; model = xpulab.interrupted().resume()"
    assert to_have_interrupted() == "import xpulab; model = xpulab.interrupted()"


def test_advice_in_ipython_is_a_magic_after_the_extension_was_loaded(shell: Any) -> None:
    assert (to_start(), to_resume()) == ("%xpu_cluster start", "model = %xpu_cluster resume")
    assert to_have_interrupted() == "import xpulab; model = xpulab.interrupted()"
    shell.run_cell("import xpulab")
    assert to_have_interrupted() == "model = xpulab.interrupted()"
    shell.extension_manager.unload_extension("xpulab")
    assert to_start() == "%load_ext xpulab, and then %xpu_cluster start"
    with pytest.raises(NoClusterError, match="type: %load_ext xpulab, and then"):
        xpulab.current_cluster()
    shell.extension_manager.load_extension("xpulab")
