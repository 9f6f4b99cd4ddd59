"""A class of a cell is the same class after a journey, between ranks and between the ranks and the notebook."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

import xpulab
from xpulab.console.cells import run_cell
from xpulab.sharing import classes

pytestmark = pytest.mark.cluster

#: Classes of all kinds that a cell can define, and an object of each.
CLASSES = """
import abc, dataclasses, enum, typing
from collections import namedtuple

class Colour(enum.Enum): RED = 1
class Mode(enum.Flag):
    A = enum.auto()
    B = enum.auto()
class Failed(Exception): ...
class Sub(Failed):
    def __init__(self, code): super().__init__(code)
class Plain:
    count = 0
    class Inner: ...
    def more(self): Plain.count += 1; return super().__init__()
class Shape(abc.ABC):
    @abc.abstractmethod
    def area(self): ...
class Square(Shape):
    __slots__ = ("side",)
    def area(self): return 1
@dataclasses.dataclass(slots=True, eq=False)
class Record: n: int = 0
Point = namedtuple("Point", "x y")
class Typed(typing.NamedTuple): x: int = 1
Made = dataclasses.make_dataclass("Made", ["a"], namespace={"__module__": "__main__"}, eq=False)
Made.__module__ = "__main__"
def made():
    class Local: ...
    return Local
Local = made()
things = [Colour.RED, Mode.A | Mode.B, Failed("x"), Sub(2), Plain(), Plain.Inner(), Square(), Record(),
          Point(1, 2), Typed(), Made(1), Local()]
Plain.count = 5 + rank
"""
SAME = "found = [[type(a) is type(b) for a, b in zip(things, each)] for each in came]"


@pytest.fixture(scope="module", autouse=True)
def _cell(pair: xpulab.XPUCluster) -> None:
    run_cell(pair, CLASSES)


@pytest.mark.parametrize(
    "journey",
    [
        "came = [comm.bcast(things if rank == root else None, root) for root in (0, 1)]",
        "came = comm.allgather(things)",
        "came = [comm.sendrecv(things, 1 - rank)]",
        "request = comm.isend(things, 1 - rank); came = [comm.recv(source=1 - rank)]; request.wait()",
        "import cloudpickle; came = [comm.allreduce([things], lambda a, b: a + b)[1 - rank]]",
    ],
)
@pytest.mark.parametrize("cell", ["a later one", "the same"])
def test_between_ranks(pair: xpulab.XPUCluster, journey: str, cell: str) -> None:
    run_cell(pair, f"{CLASSES if cell == 'the same' else ''}{journey}\n{SAME}")
    for found in pair.pull("found"):
        assert [each for each in found if not all(each)] == []
    run_cell(pair, "kept = Plain.count, came[0][0] is Colour.RED or came[0][0], Plain().more.__globals__ is globals()")
    assert pair.pull("kept") == [(5, True, True), (6, True, True)]


def test_an_exception_that_another_rank_has_sent_is_caught(pair: xpulab.XPUCluster) -> None:
    source = "try:\n    raise comm.bcast(Sub(3) if rank == 0 else None)\nexcept Failed as error: caught = error.args"
    run_cell(pair, source)
    assert pair.pull("caught") == [(3,)] * 2


def test_in_the_notebook_and_back(pair: xpulab.XPUCluster) -> None:
    one, other = pair.pull("things")
    assert [type(a) is type(b) for a, b in zip(one, other, strict=True)] == [True] * len(one)
    assert one[0] is other[0]
    assert [type(a) is type(b) for a, b in zip(one, pair.pull("things")[0], strict=True)] == [True] * len(one)
    pair.push({"came": [one, other]})
    run_cell(pair, SAME)
    assert pair.pull("found") == [[[True] * len(one)] * 2] * 2


def test_a_cell_that_runs_again_defines_new_classes(pair: xpulab.XPUCluster) -> None:
    """An object of the class before keeps it, and its class is not that of the other rank's new cell."""
    run_cell(pair, "old = Plain()\nBefore = Plain\nclass Plain:\n    new = True")
    run_cell(pair, "came = [comm.bcast(each, 0) for each in (old, Plain())]\nfound = type(came[0]) is Before")
    run_cell(pair, "found = found, type(came[1]) is Plain, hasattr(came[0], 'new')")
    assert pair.pull("found") == [(True, True, False)] * 2


def test_a_rank_without_the_class_gets_its_code(pair: xpulab.XPUCluster) -> None:
    """It does not take its own class of the name, which another cell has defined."""
    run_cell(pair, "class Only:\n    def which(self): return 'all ranks'")
    run_cell(pair, "class Only:\n    def which(self): return 'rank 0'", ranks=[0])
    run_cell(pair, "came = comm.bcast(Only() if rank == 0 else None)\nback = comm.bcast(came, 1)")
    run_cell(pair, "found = came.which(), type(came) is Only, type(back) is type(came)")
    assert pair.pull("found") == [("rank 0", True, True), ("rank 0", False, True)]


class OfThisModule:
    """A class that the engines cannot import."""

    there: Any = None

    def which(self) -> object:
        return classes


OfThisModule.__module__ = "__main__"


def test_a_class_of_the_notebook(pair: xpulab.XPUCluster) -> None:
    """It comes back as it is here, and as one class on the ranks, whatever the ranks have made of it."""
    method = OfThisModule.which

    def change(here: Any, thing: Any) -> Any:
        type(thing).there = here.rank
        return here.comm.bcast(thing, 0), here.comm.bcast(type(thing), 0) is type(thing)

    for thing, same in pair.run(change, OfThisModule()):
        assert same
        assert type(thing) is OfThisModule
    assert OfThisModule.there is None
    assert OfThisModule.which is method
    OfThisModule.there = "new"
    try:
        assert pair.run(lambda here, thing: thing.there, OfThisModule()) == ["new"] * 2
    finally:
        OfThisModule.there = None


def test_pickles_of_classes_are_read_by_pickle() -> None:
    class Here: ...

    assert type(pickle.loads(classes.dumps(Here()))) is Here
    assert pickle.loads(classes.dumps(type(None))) is type(None)


def test_what_looks_for_a_class_of_a_cell_by_its_name_finds_it(pair: xpulab.XPUCluster) -> None:
    """As pickle, typing and joblib do, in its cell, in a later one, and in a thread."""
    source = """
import pickle, sys, threading, typing

class Node:
    next: "Node | None"

def twice(x):
    return 2 * x

found = [pickle.loads(pickle.dumps(Colour.RED)) is Colour.RED, pickle.loads(pickle.dumps(twice)) is twice,
         typing.get_type_hints(Node) == {"next": typing.Optional[Node]}, sys.modules["__main__"].Node is Node]
thread = threading.Thread(target=lambda: found.append(pickle.loads(pickle.dumps(Node)) is Node))
thread.start()
thread.join()
"""
    assert run_cell(pair, source, out=["found"]).values["found"] == [[True] * 5] * 2


def test_a_rank_without_a_class_gets_it_by_value(pair: xpulab.XPUCluster) -> None:
    source = """
if rank == 0:
    class OnlyHere:
        value = 7
came = comm.bcast(OnlyHere() if rank == 0 else None)
found = came.value
"""
    assert run_cell(pair, source, out=["found"]).values["found"] == [7, 7]
