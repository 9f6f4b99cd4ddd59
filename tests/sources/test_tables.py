"""Tables and tensors of this process as sources, and how the engines get their rows."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import xpulab
from xpulab.cluster import KMeans
from xpulab.impute import SimpleImputer
from xpulab.linear_model import LogisticRegression
from xpulab.preprocessing import StandardScaler
from xpulab.scanning import Scan
from xpulab.sources.chosen import ChosenRows
from xpulab.sources.tables import ArrowTable

FRAME = pd.DataFrame({"a": np.arange(500.0) % 17, "b": np.arange(500) % 5, "s": ["x", "y"] * 250})
POLARS = pl.DataFrame(FRAME.to_dict("list"))
TABLES: dict[str, Any] = {
    "pandas": FRAME,
    "pandas, with an index": FRAME.set_index(np.arange(500)[::-1]),
    "pandas, of the other byte order": FRAME.astype({"a": ">f8", "b": ">i4"}),
    "pandas, nullable": FRAME.astype({"a": "Float64", "b": "Int64"}),
    "pandas, categorical": FRAME.astype({"b": "category", "s": "category"}),
    "polars": POLARS,
    "polars, categorical": POLARS.with_columns(pl.col("s").cast(pl.Categorical)),
    "polars, Enum": POLARS.with_columns(pl.col("s").cast(pl.Enum(["z", "y", "x"]))),
    "polars, Decimal": POLARS.with_columns(pl.col("a").cast(pl.Decimal(38, 2))),
    "pyarrow": pa.concat_tables([pa.table(FRAME[:123]), pa.table(FRAME[123:])]),
    "record batch": pa.record_batch(FRAME),
}


@pytest.mark.parametrize("kind", TABLES)
def test_a_table_is_scanned_as_its_files_would_be(kind: str) -> None:
    scan = xpulab.scan(TABLES[kind])
    assert (scan.shape, scan.columns, scan.files) == ((500, 3), ["a", "b", "s"], [])
    np.testing.assert_array_equal(scan[["b", "a"]][100:200].read(), FRAME[["b", "a"]][100:200])
    np.testing.assert_array_equal(scan["s"].read(), FRAME["s"])
    assert "in this process" in repr(scan)


def test_a_tensor_is_scanned_by_dlpack_and_other_things_are_refused() -> None:
    class Tensor:
        def __init__(self, array: np.ndarray, requires_grad: bool = True) -> None:
            self.array, self.requires_grad = array, requires_grad

        def detach(self) -> Tensor:
            return Tensor(self.array, requires_grad=False)

        def __dlpack__(self, **kwargs: Any) -> Any:
            if self.requires_grad:
                raise BufferError("Can't export tensors that require gradient, use tensor.detach()")
            return self.array.__dlpack__()

        def __dlpack_device__(self) -> Any:
            return self.array.__dlpack_device__()

    rows = np.arange(12.0, dtype="f4").reshape(4, 3)
    scan = xpulab.scan(Tensor(rows))
    assert (scan.shape, scan.dtype, scan.columns) == ((4, 3), np.float32, None)
    np.testing.assert_array_equal(scan[1:].read(), rows[1:])
    with pytest.raises(TypeError, match=r"a dict was given; expected files, an object that has .*__arrow_c_stream__"):
        xpulab.scan({})
    with pytest.raises(ValueError, match="expected rows, of 2 dimensions"):
        xpulab.scan(np.zeros((2, 2, 2)))
    for column in (FRAME["a"], POLARS["a"], pa.array([1.0]), pa.chunked_array([[1.0]])):
        with pytest.raises(
            TypeError, match=r"which is a column; expected a table: pass (X\.to_frame|pyarrow\.table)\("
        ):
            xpulab.scan(column)


def test_half_floats_and_large_whole_numbers_have_their_values() -> None:
    halves, large = [0.5, None, -65504.0], [2**53 + 1, 2**64 - 1, 0]
    table = pa.table({"h": pa.array(halves, pa.float16()), "u": pa.array(large, pa.uint64())})
    scan = xpulab.scan(table)
    assert scan.dtypes == {"h": "float16", "u": "uint64"}
    assert (scan.dtype, scan[["h"]].dtype) == (np.float64, np.float64)
    np.testing.assert_array_equal(scan["h"].read(), [0.5, np.nan, -65504])
    assert scan["u"].read().tolist() == large  # alone, not by way of float64
    assert scan[["u"]].read()[:, 0].tolist() == [2.0**53, 2.0**64, 0]  # as a column of X


@pytest.mark.cluster
@pytest.mark.parametrize("kind", ["polars", "pandas, nullable", "pyarrow"])
def test_the_engines_get_the_rows_of_a_table(on_pair: xpulab.XPUCluster, kind: str) -> None:
    scan, frame = xpulab.scan(TABLES[kind]), FRAME[["a", "b"]]
    found, right = (KMeans(3, random_state=0, n_init=1).fit(rows) for rows in (scan[["a", "b"]], frame))
    np.testing.assert_array_equal(found.labels_, right.labels_)
    assert list(found.feature_names_in_) == ["a", "b"]
    found, right = (StandardScaler().fit_transform(rows) for rows in (scan[["a", "b"]], frame))
    np.testing.assert_allclose(found, right)
    assert LogisticRegression().fit(scan[["a"]], scan["s"]).classes_.tolist() == ["x", "y"]
    if kind == "pandas, nullable":  # which scikit-learn takes as it is
        np.testing.assert_allclose(StandardScaler().fit_transform(TABLES[kind][["a", "b"]]), right)
    handle = on_pair.scatter(scan[["b", "a"]])
    assert handle.columns == ["b", "a"]
    np.testing.assert_array_equal(handle.gather(), FRAME[["b", "a"]])


@pytest.mark.cluster
def test_a_null_of_a_table_is_named_or_filled_in(on_pair: xpulab.XPUCluster) -> None:
    scan = xpulab.scan(pl.DataFrame({"a": [1, 2, 3, None], "b": [1.0, 2, 3, 4]}))
    for use in (KMeans(2).fit, on_pair.scatter):
        with pytest.raises(ValueError, match="contains null, NaN or infinity; the first such row is row 3, column 'a'"):
            use(scan[["b", "a"]])
    for rows in (scan, scan.read(), pl.DataFrame({"a": [1.0, None]}), scan["a"]):
        with pytest.raises(
            ValueError, match=r"\nTo send missing values, .*, type: cluster\.scatter\(X, allow_nan=True\)"
        ):
            on_pair.scatter(rows)
    np.testing.assert_array_equal(SimpleImputer().fit_transform(scan), [[1, 1], [2, 2], [3, 3], [2, 4]])
    assert on_pair.scatter(scan, allow_nan=True).nan


class Counted(ArrowTable):
    """A table that counts the passes over its rows."""

    n_passes = 0

    def reading(self, *which: Any) -> Any:
        self.n_passes += 1
        return super().reading(*which)


class PartAtATime(ChosenRows):
    """Rows of which a pass over the source picks a part."""

    kept_bytes = 12 << 20


@pytest.mark.cluster
def test_a_pass_over_a_table_picks_as_many_rows_as_are_kept(on_pair: xpulab.XPUCluster) -> None:
    numbers = np.random.default_rng(0).permutation(5_000_000)
    table = Counted(pa.table({"a": numbers.astype(float)}))
    handle = on_pair.scatter(Scan(PartAtATime.of(table, numbers)))
    assert table.n_passes == 4  # for 40 MB
    np.testing.assert_array_equal(handle.gather()[:, 0], numbers[numbers])


class FewAtATime(ChosenRows):
    """Rows of which a pass over the source picks few."""

    kept_bytes = 2 * 8 * 30


@pytest.mark.parametrize("kind", [ChosenRows, FewAtATime])
def test_rows_are_chosen_in_any_order(kind: type[ChosenRows]) -> None:
    source = xpulab.scan(TABLES["pyarrow"]).source
    numbers = np.random.default_rng(0).permutation(500)[:333]
    chosen = kind.of(source, numbers)
    assert (chosen.n_rows, chosen.columns) == (333, source.columns)
    expected = FRAME[["b", "a"]].to_numpy()[numbers]
    with chosen.reading(40, 320, [1, 0]) as fill:
        fill(100, some := np.empty((60, 2), np.float32))
        np.testing.assert_array_equal(some, expected[140:200])
        fill(8, by_columns := np.empty((3, 20, 2), np.float64)[:, ::2])
        np.testing.assert_array_equal(by_columns.reshape(-1, 2), expected[48:78])
        fill(279, last := np.empty((1, 2)))
        np.testing.assert_array_equal(last, expected[319:320])
    again = kind.of(chosen, np.array([5, 0]))
    with again.reading(0, 2, [2]) as fill:
        fill(0, words := np.empty((2, 1), object))
    assert words[:, 0].tolist() == FRAME["s"].to_numpy()[numbers[[5, 0]]].tolist()


def test_arrays_of_devices_are_copied_to_the_host() -> None:
    """Real arrays of dpnp, in a process of their own: that of a notebook does not import it."""
    script = (
        "import numpy as np, xpulab, dpnp\nrows = dpnp.arange(12, dtype='f4').reshape(4, 3)\n"
        "scan = xpulab.scan(rows)\nassert (scan.shape, scan.dtype) == ((4, 3), np.float32)\n"
        "np.testing.assert_array_equal(scan.read(), np.arange(12).reshape(4, 3))"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=240)
    assert (run.returncode, run.stderr) == (0, "")
