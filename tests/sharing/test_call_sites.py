"""What a thread tells of the line of the user's code that runs, without parsing it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from xpulab.sharing import call_sites

#: A script whose `Comm` notes what is told of each line that calls it.
SCRIPT = """
import sys
from xpulab.sharing.call_sites import called_module, place

class Comm:
    def __init__(self):
        self.told = []
        self.inner = self
    def recv(self, *given):
        frame = sys._getframe(1)
        self.told.append((place(frame), called_module(frame)))
        return 1

def f(x):
    return x

comm = Comm()
LINE
print(comm.told)
"""


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("comm.recv()", "[('line 18 (recv)', '__main__')]"),
        ("x = f(comm.recv('a)', (1, 2)))", "[('line 18 (recv)', '__main__')]"),
        ("for _ in range(comm.inner.inner.recv()): pass", "[('line 18 (recv)', '__main__')]"),
        ("if (1) and comm.recv(): pass", "[('line 18 (recv)', '__main__')]"),
        ("f(comm).recv()", "[('line 18 (recv)', '__main__')]"),  # the module of f
        ("f(comm).inner.recv(f(1))", "[('line 18 (recv)', '__main__')]"),
        ("[comm][0].recv()", "[('line 18 (recv)', '')]"),
        ("comm.recv(\n    1,\n)", "[('line 18 (recv)', '__main__')]"),
        ("recv = comm.recv; recv()", "[('line 18 (recv)', '')]"),
    ],
)
def test_the_call_that_runs_is_named(tmp_path: Path, line: str, told: str) -> None:
    if sys.version_info < (3, 11) and line.startswith(("x =", "for", "f(", "[")):
        pytest.skip("the frames of Python 3.10 do not know which part of a line they execute")
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.replace("LINE", line))
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == told


@pytest.mark.parametrize(
    "call",
    [
        "comm.recv()",
        "comm.recv(f(1), (f(2), 3))",
        "f(comm).recv(1, key=f(1))",
        "[comm][0].recv(*[1, f(2)], **{'a': f(1)})",
        "recv(f(comm))",
        "recv(1, a=f(1))",
        "given(f(1), *[f(2)])",
        "given(f(1))",
    ],
)
def test_the_call_of_a_function_without_a_source_is_named(call: str) -> None:
    told = []

    def recv(*_: object, **__: object) -> int:
        told.append(call_sites.place(sys._getframe(1)))
        return 1

    code = f"def fn(f, given):\n    comm = __import__('types').SimpleNamespace(recv=recv)\n    return {call}\n"
    names = {"recv": recv}
    exec(compile(code, "<sent>", "exec"), names)
    names["fn"](lambda x: x, recv)
    assert told == [f"line 3 of fn ({'given' if call.startswith('given') else 'recv'})"]


def test_no_name_is_guessed_if_an_argument_has_a_branch() -> None:
    told = []

    def recv(*_: object) -> None:
        told.append(call_sites.place(sys._getframe(1)))

    names: dict[str, object] = {"recv": recv}
    exec(compile("def fn(a):\n    recv(1 if a else 2)\n    return len([recv()])\n", "<sent>", "exec"), names)
    names["fn"](1)  # type: ignore[operator]
    assert told == ["line 2 of fn", "line 3 of fn (recv)"]


def test_nothing_is_parsed_in_a_thread() -> None:
    assert not {"ast", "parse", "compile"} & set(vars(call_sites))
    assert "ast." not in Path(call_sites.__file__).read_text().replace("`ast.parse`", "")


def test_the_code_of_pytorch_is_no_user_s_wherever_it_is(tmp_path: Path) -> None:
    code = f"""
import sys
from types import SimpleNamespace
from xpulab.sharing.call_sites import is_users
inside, beside = {str(tmp_path / "torch" / "nn.py")!r}, {str(tmp_path / "train.py")!r}
assert is_users(inside)
sys.modules["torch"] = SimpleNamespace(__path__=[{str(tmp_path / "torch")!r}])
print(is_users(inside), is_users(beside))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False True\n"
