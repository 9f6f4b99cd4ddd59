"""What a rank tells of its variables: types, shapes and bytes, and whether values are the same."""

from __future__ import annotations

import sys

import numpy as np
import pandas as pd

from xpulab.engine.cells.cell import names
from xpulab.engine.cells.names import described
from xpulab.engine.engine import Engine
from xpulab.sharing.variables import GIVEN


class Hostile:
    """An object of a user whose attributes raise exceptions."""

    @property
    def shape(self) -> tuple[int, ...]:
        raise RuntimeError("no shape")


class Rows(np.ndarray):
    """A class of a user."""


def test_names_that_a_cell_has_without_making_them_are_left_out() -> None:
    namespace = {"b": 1, "a": 2, "_": 3, "__name__": "__main__", "np": np, **dict.fromkeys(GIVEN)}
    assert [each.name for each in described(namespace)] == ["a", "b"]


def test_every_cell_has_the_names_that_the_notebook_offers_before_rank_0_answers(engine: Engine) -> None:
    found = names(engine, "") or {}
    assert {name: kind for name, kind in found.items() if name in GIVEN or name not in engine.namespace} == GIVEN


def test_arrays_and_tables_have_their_shape_and_the_bytes_of_their_values() -> None:
    frame = pd.DataFrame({"a": np.arange(5), "b": np.arange(5.0)})
    array, table, view = described(
        {"array": np.zeros((3, 4), np.float32), "table": frame, "view": np.zeros(3).view(Rows)}
    )
    assert (array.type, array.shape, array.nbytes) == ("numpy.ndarray of float32", (3, 4), 48)
    assert (table.shape, table.nbytes) == ((5, 2), int(frame.memory_usage().sum()))
    assert table.type.endswith("DataFrame")
    assert view.type == f"{__name__}.Rows of float64"


def test_other_objects_have_a_type_and_the_size_of_the_object() -> None:
    number, text, function, hostile, kind = described(
        {"a": 3.5, "b": "grün", "c": lambda: 1, "d": Hostile(), "e": Hostile}
    )
    assert (number.type, number.shape, number.nbytes) == ("float", (), sys.getsizeof(3.5))
    assert text.type == "str"
    assert "function" in function.type
    assert hostile.type == f"{__name__}.Hostile"
    assert kind.type == "type"


def test_the_digest_tells_values_apart_where_it_can() -> None:
    def digest(value: object) -> str:
        (variable,) = described({"value": value})
        return variable.digest

    assert digest(np.arange(6)) == digest(np.arange(12)[::2] // 2) != digest(np.arange(1, 7))
    assert digest(1) != digest(2)
    assert digest(1) == digest(1)
    assert digest([1]) == digest(np.array([object()])) == digest(np.zeros(3 << 20)) == ""
