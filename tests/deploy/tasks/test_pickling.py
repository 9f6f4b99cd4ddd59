"""Which code is sent to the engines, and which code they import."""

from __future__ import annotations

import pickle
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

import pytest

from xpulab.deploy.tasks.pickling import by_value


@pytest.mark.parametrize("folder", ["lib/site-packages", "lib/dist-packages", "project"])
def test_code_of_a_library_is_imported_wherever_it_is_installed(tmp_path: Path, folder: str) -> None:
    """As `pip install --user` and PYTHONPATH have it: a library may hold what cannot be pickled, such as a lock."""
    (tmp_path / folder).mkdir(parents=True)
    file = tmp_path / folder / "a_module_of_a_test.py"
    file.write_text("def answer():\n    return 42\n")
    loader = SourceFileLoader("a_module_of_a_test", str(file))
    module = sys.modules["a_module_of_a_test"] = ModuleType(loader.name)
    try:
        module.__file__ = str(file)
        loader.exec_module(module)
        sent = by_value(module.answer, [module.answer])
    finally:
        del sys.modules["a_module_of_a_test"]
    if folder == "project":
        assert pickle.loads(sent)() == 42
    else:
        with pytest.raises(ModuleNotFoundError, match="a_module_of_a_test"):
            pickle.loads(sent)
