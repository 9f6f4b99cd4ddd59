"""Which code is sent to the engines, and which code they import."""

from __future__ import annotations

import importlib
import pickle
import sys
from pathlib import Path

import pytest

from xpulab.deploy.tasks.pickling import by_value


@pytest.mark.parametrize("folder", ["lib/site-packages", "lib/dist-packages", "project"])
def test_code_of_a_library_is_imported_wherever_it_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    """As `pip install --user` and PYTHONPATH have it: a library may hold what cannot be pickled, such as a lock."""
    (tmp_path / folder).mkdir(parents=True)
    (tmp_path / folder / "a_module_of_a_test.py").write_text("def answer():\n    return 42\n")
    monkeypatch.syspath_prepend(str(tmp_path / folder))
    module = importlib.import_module("a_module_of_a_test")
    sent = by_value(module.answer, [module.answer])
    monkeypatch.undo()
    del sys.modules["a_module_of_a_test"]
    if folder == "project":
        assert pickle.loads(sent)() == 42
    else:
        with pytest.raises(ModuleNotFoundError, match="a_module_of_a_test"):
            pickle.loads(sent)
