"""Files as sources of rows: any cut of their blocks gives the same rows, and what is wrong with a file is said."""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from xpulab.report.rendering import format_size
from xpulab.scanning import Scan
from xpulab.sources import kinds
from xpulab.sources.csv import Csv
from xpulab.sources.files import FileSource
from xpulab.sources.kinds import opened
from xpulab.sources.needed import needed
from xpulab.sources.source import Column, RowSource

Write = Callable[[pa.Table, Path, int], Any]


def write_parquet(table: pa.Table, path: Path, block: int) -> None:
    pa.parquet.write_table(table, path, row_group_size=block)


def write_arrow(table: pa.Table, path: Path, block: int) -> None:
    pa.feather.write_feather(table, path, chunksize=block, compression="uncompressed")


def write_compressed(table: pa.Table, path: Path, block: int) -> None:
    pa.feather.write_feather(table, path, chunksize=block, compression="lz4")


def write_csv(table: pa.Table, path: Path, block: int) -> None:
    pa.csv.write_csv(table, path)


WRITERS: dict[str, tuple[str, Write]] = {
    "parquet": (".parquet", write_parquet),
    "arrow": (".arrow", write_arrow),
    "feather, compressed": (".feather", write_compressed),
    "csv": (".csv", write_csv),
}
DTYPES = ["float64", "float32", "int64", "int8", "uint16", "bool"]


def table_of(n: int, dtypes: list[str], seed: int = 0) -> pa.Table:
    rng = np.random.default_rng(seed)
    columns = (rng.integers(0, 2 if dtype == "bool" else 100, n).astype(dtype) for dtype in dtypes)
    return pa.table({f"c{number}": column for number, column in enumerate(columns)})


def as_array(table: pa.Table, columns: list[int]) -> np.ndarray:
    return np.column_stack([table.column(number).to_numpy().astype("f8") for number in columns])


def read(source: RowSource, start: int, stop: int, columns: list[int], piece: int) -> np.ndarray:
    found = np.empty((stop - start, len(columns)))
    with source.reading(start, stop, columns) as fill:
        for first in range(0, stop - start, piece):
            fill(first, found[first : first + piece])
    return found


@pytest.mark.parametrize("kind", WRITERS)
@given(
    sizes=st.lists(st.integers(0, 60), min_size=1, max_size=4),
    block=st.integers(1, 70),
    dtypes=st.lists(st.sampled_from(DTYPES), min_size=1, max_size=3),
    cut=st.tuples(st.floats(0, 1), st.floats(0, 1)),
    piece=st.integers(1, 40),
    least=st.sampled_from([1, 200, 1 << 22]),
    data=st.data(),
)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_cut_of_any_blocks_and_files_gives_the_same_rows(
    tmp_path_factory: pytest.TempPathFactory, kind: str, sizes: list[int], block: int,
    dtypes: list[str], cut: tuple[float, float], piece: int, least: int, data: st.DataObject,
) -> None:  # fmt: skip
    suffix, write = WRITERS[kind]
    if suffix == ".csv":  # a file without rows has no dtypes there
        sizes = [size + 1 for size in sizes]
    folder = tmp_path_factory.mktemp("files")
    tables = [table_of(size, dtypes, seed) for seed, size in enumerate(sizes)]
    for number, table in enumerate(tables):
        write(table, folder / f"{number}{suffix}", block)
    found = pickle.loads(pickle.dumps(opened(folder)))
    limits = {"together_bytes": least, "kept_bytes": least}
    source = type("Limited", (type(found),), limits)(**vars(found))
    assert source.n_rows == sum(sizes) == source.blocks[-1]
    start, stop = sorted(int(share * source.n_rows) for share in cut)
    columns = data.draw(st.lists(st.integers(0, len(dtypes) - 1), min_size=1, max_size=4))
    expected = as_array(pa.concat_tables(tables), columns)[start:stop]
    np.testing.assert_array_equal(read(source, start, stop, columns, piece), expected)
    shutil.rmtree(folder)


def test_rows_are_written_by_columns_and_in_blocks(tmp_path: Path) -> None:
    table = table_of(1000, ["float64", "float32"])
    write_parquet(table, tmp_path / "x.parquet", 130)
    expected = as_array(table, [0, 1])
    with opened(tmp_path / "x.parquet").reading(100, 900, [0, 1]) as fill:
        fill(16, by_columns := np.empty((2, 200)).T)
        fill(16, (blocks := np.empty((3, 2, 64))).transpose(0, 2, 1))
    np.testing.assert_array_equal(by_columns, expected[116:316])
    np.testing.assert_array_equal(blocks.transpose(0, 2, 1).reshape(-1, 2), expected[116:308])


def test_several_npy_files_are_one_source(tmp_path: Path) -> None:
    X = np.random.default_rng(0).normal(size=(900, 3))
    for number, part in enumerate((X[:400], X[400:400], X[400:])):
        np.save(tmp_path / f"{number}.npy", part)
    np.testing.assert_array_equal(read(opened(tmp_path), 200, 700, [2, 0], 99), X[200:700, [2, 0]])
    one = opened(tmp_path / "0.npy")
    np.testing.assert_array_equal(read(one, 7, 399, [0, 1, 2], 50), X[7:399])


@pytest.mark.parametrize("kind", ["npy", "h5"])
def test_numbers_in_the_other_byte_order_are_numbers_in_their_dtype(tmp_path: Path, kind: str) -> None:
    X = np.random.default_rng(0).normal(size=(90, 3)).astype(">f4")
    if kind == "npy":
        np.save(tmp_path / "x.npy", X)
    else:
        with pytest.importorskip("h5py").File(tmp_path / "x.h5", "w") as file:
            file["x"] = X
    scan = Scan(opened(tmp_path))
    assert (scan.dtype, scan.dtypes["0"]) == (np.float32, ">f4")
    assert scan.read().dtype.isnative
    np.testing.assert_array_equal(scan[7:80].read(), X[7:80])


def test_datasets_of_hdf5_are_read_by_their_name(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    X = np.random.default_rng(0).normal(size=(900, 3)).astype("f4")
    for name, part in (("a", X[:500]), ("b", X[500:])):
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            file.create_dataset("rows/x", data=part, chunks=(70, 2), compression="gzip")
            file["y"] = part[:, 0]
    source = pickle.loads(pickle.dumps(opened(f"{tmp_path}/*.h5:/rows/x")))
    np.testing.assert_array_equal(read(source, 300, 700, [2, 0], 33), X[300:700, [2, 0]])
    np.testing.assert_array_equal(read(opened(f"{tmp_path}/a.h5:/y"), 3, 500, [0], 100)[:, 0], X[3:500, 0])
    with pytest.raises(ValueError, match=r"a\.h5 cannot be read as Hdf5: it has 2 datasets; name one: .*h5:/rows/x"):
        opened(tmp_path / "a.h5")
    with pytest.raises(ValueError, match="it has no dataset /z; it has /rows/x, /y"):
        opened(f"{tmp_path}/a.h5:/z")


def test_records_of_several_fields_are_refused_with_what_to_type(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    records = np.zeros(5, [("length", "f4"), ("name", "S3")])
    np.save(tmp_path / "r.npy", records)
    with h5py.File(tmp_path / "r.h5", "w") as file:
        file["records"] = records
    says = r"records with the fields length, name; .* xpulab\.scan\(pandas\.DataFrame"
    for rows in (tmp_path / "r.npy", tmp_path / "r.h5", records):
        with pytest.raises(ValueError, match=says):
            Scan(opened(rows))


def test_an_array_that_is_read_only_is_scanned() -> None:
    rows = np.arange(6.0).reshape(3, 2)
    rows.flags.writeable = False
    np.testing.assert_array_equal(Scan(opened(rows)).read(), rows)


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_arrays_of_zarr_are_read_by_their_name(tmp_path: Path, zarr_format: int) -> None:
    zarr = pytest.importorskip("zarr")
    if zarr_format == 3 and int(zarr.__version__.split(".")[0]) < 3:
        pytest.skip("zarr 2 reads format 2")
    X = np.random.default_rng(0).normal(size=(900, 3)).astype("f4")
    which = {"zarr_format": zarr_format} if int(zarr.__version__.split(".")[0]) > 2 else {}
    for name, part in (("a", X[:500]), ("b", X[500:])):
        for group in ("", "/rows"):
            zarr.open_group(f"{tmp_path}/{name}.zarr{group}", mode="w", **which)
        for array, values in (("rows/x", part), ("y", np.full(len(part), 7))):
            about = {"shape": values.shape, "chunks": (70, 2)[: values.ndim], "dtype": values.dtype, **which}
            zarr.open_array(f"{tmp_path}/{name}.zarr/{array}", mode="w", **about)[:] = values
    source = pickle.loads(pickle.dumps(opened(f"{tmp_path}/*.zarr:/rows/x")))
    np.testing.assert_array_equal(read(source, 300, 700, [2, 0], 33), X[300:700, [2, 0]])
    np.testing.assert_array_equal(read(opened(f"{tmp_path}/a.zarr:/y"), 3, 500, [0], 100), np.full((497, 1), 7))
    with pytest.raises(ValueError, match=r"a\.zarr cannot be read as Zarr: it has 2 arrays; name one: .*zarr:/y"):
        opened(tmp_path / "a.zarr")
    with pytest.raises(ValueError, match="it has no array /z; it has"):
        opened(f"{tmp_path}/a.zarr:/z")
    one = tmp_path / "several" / "c.zarr"
    zarr.open_array(str(one), mode="w", shape=(8, 2), chunks=(4, 2), dtype="f8", **which)[:] = 1
    source = opened(one.parent)  # a folder of folders
    assert (source.n_rows, list(source.blocks), list(source.files)) == (8, [0, 4, 8], [str(one)])
    size = sum(path.stat().st_size for path in one.rglob("*") if path.is_file())
    assert f"1 file of {format_size(size)}: c.zarr" in repr(Scan(source))
    chunk = next(path for path in one.rglob("*") if path.is_file() and path.name in ("0.0", "0"))
    content = chunk.read_bytes()
    chunk.write_bytes(b"\xff" + content[1 : len(content) // 2])  # the first byte as well: Blosc may read beyond the end
    with pytest.raises(ValueError, match=r"c\.zarr has changed since it was scanned"):
        read(source, 0, 8, [0], 8)
    with pytest.raises(ValueError, match=r"c\.zarr: chunks 0 to 1 cannot be read"):
        read(opened(one), 0, 8, [0], 8)


def bytes_read() -> int:
    """How much this process has read from files."""
    return int(Path("/proc/self/io").read_text().split("rchar: ")[1].split()[0])


@pytest.mark.parametrize("kind", ["zarr", "h5"])
def test_a_pass_reads_every_chunk_once_and_none_of_other_columns(tmp_path: Path, kind: str) -> None:
    X = np.random.default_rng(0).normal(size=(50_000, 14)).astype("f4")
    if kind == "zarr":
        stored = pytest.importorskip("zarr").open_array(
            str(tmp_path / "x.zarr"), mode="w", shape=X.shape, chunks=(6250, 2), dtype="f4"
        )
        stored[:] = X
    else:
        with pytest.importorskip("h5py").File(tmp_path / "x.h5", "w") as file:
            file.create_dataset("x", data=X, chunks=(6250, 2), compression="gzip", shuffle=True)
    size = sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file())
    assert size > 2_000_000
    source = opened(tmp_path)
    for columns, share in (
        (list(range(14)), 1), ([3], 1 / 7), ([3, 2, 3], 1 / 7), ([12, 1, 3], 3 / 7), ([13], 1 / 7),
    ):  # fmt: skip
        before = bytes_read()
        found = read(source, 0, len(X), columns, 5000)
        assert bytes_read() - before < share * size + 200_000
        np.testing.assert_array_equal(found, X[:, columns])


def test_a_package_that_is_missing_is_named_with_what_to_type() -> None:
    with pytest.raises(ImportError, match=r"HDF5 needs the package h6py .*pip install 'xpulab\[h6py\]'"):
        needed("h6py.files", "HDF5")


def test_nulls_are_nan_and_decimals_and_dictionaries_are_numbers(tmp_path: Path) -> None:
    table = pa.table({
        "i": pa.array([1, None, 3]), "b": pa.array([True, None, False]), "f": pa.array([None, 2.0, 3.0], pa.float32()),
        "d": pa.array([1.5, 2.5, 3.5]).cast(pa.decimal128(10, 2)), "k": pa.array([5, 7, 5]).dictionary_encode(),
        "s": ["x", None, "z"],
    })  # fmt: skip
    nan = np.nan
    for name, (suffix, write) in WRITERS.items():
        if name == "csv":
            continue
        write(table, tmp_path / f"t{suffix}", 2)
        source = opened(tmp_path / f"t{suffix}")
        expected = [[1, 1, nan, 1.5, 5], [nan, nan, 2, 2.5, 7], [3, 0, 3, 3.5, 5]]
        np.testing.assert_array_equal(read(source, 0, 3, [0, 1, 2, 3, 4], 3), expected, err_msg=name)
        assert [column.numeric is None for column in source.columns] == [False] * 5 + [True]


@pytest.mark.parametrize("kind", WRITERS)
def test_other_columns_in_one_of_the_files_are_named(tmp_path: Path, kind: str) -> None:
    suffix, write = WRITERS[kind]
    for number in range(3):
        write(table_of(9, ["float64", "float64"]), tmp_path / f"{number}{suffix}", 5)
    others = {
        "has no column 'c1', which": {"c0": [0.5]},
        "has a column 'x', which": {"c0": [0.5], "c1": [0.5], "x": [1]},
        "column 'c1' is string in": {"c0": [0.5], "c1": ["a"]},
    }
    for said, columns in others.items():
        write(pa.table(columns), tmp_path / f"1{suffix}", 5)
        with pytest.raises(ValueError, match=rf"1\{suffix}.*") as raised:
            opened(tmp_path)
        assert said in str(raised.value)


@pytest.mark.parametrize("kind", ["parquet", "arrow", "feather, compressed"])
@pytest.mark.parametrize("later", [0, 1])
def test_files_of_other_types_and_orders_keep_all_values(tmp_path: Path, kind: str, later: int) -> None:
    suffix, write = WRITERS[kind]
    narrow = {
        "f": pa.array([0.5, 1.5], pa.float32()),
        "i": pa.array([1, None], pa.int32()),
        "n": pa.array([1, 2], pa.uint8()),
        "s": pa.array(["a", None]),
        "d": pa.array(["x", "y"]),
        "w": pa.array([7, 8], pa.int16()),
    }
    wide = {
        "w": pa.array([0.25], pa.float32()),
        "d": pa.array(["w"]).dictionary_encode(),
        "s": pa.array(["b"], pa.large_string()),
        "n": pa.array([-1], pa.int8()),
        "i": pa.array([2**40]),
        "f": pa.array([1e300]),
    }
    write(pa.table(narrow), tmp_path / f"{1 - later}{suffix}", 5)
    write(pa.table(wide), tmp_path / f"{later}{suffix}", 5)
    scan = Scan(pickle.loads(pickle.dumps(opened(tmp_path))))
    assert {name: scan.dtypes[name] for name in "finsdw"} == {
        "f": "float64", "i": "int64", "n": "int16", "s": "string", "d": "string", "w": "float32",
    }  # fmt: skip
    order = [0, 1, 2] if later else [2, 0, 1]
    expected = np.array([[0.5, 1, 1, 7], [1.5, np.nan, 2, 8], [1e300, 2**40, -1, 0.25]])[order]
    np.testing.assert_array_equal(scan[["f", "i", "n", "w"]].read(), expected)
    np.testing.assert_array_equal(scan[["w"]][1:].read(), expected[1:, 3:].astype("f4"))
    assert scan["s"].read().tolist() == [["a", None, "b"][at] for at in order]
    assert scan["d"].read().tolist() == [["x", "y", "w"][at] for at in order]


@pytest.mark.parametrize("other", [pa.float32(), pa.float64(), pa.uint64(), pa.bool_(), pa.string()], ids=str)
def test_types_that_no_dtype_joins_are_refused_in_each_order(tmp_path: Path, other: pa.DataType) -> None:
    for whole, rest in ((0, 2), (2, 0)):
        write_parquet(pa.table({"x": pa.array([2**53 + 1])}), tmp_path / f"{whole}.parquet", 5)
        write_parquet(pa.table({"x": pa.array([1], pa.int8())}), tmp_path / "1.parquet", 5)
        write_parquet(pa.table({"x": pa.array([1]).cast(other)}), tmp_path / f"{rest}.parquet", 5)
        with pytest.raises(
            ValueError, match=r"column 'x' is .* in .*\d\.parquet, and .*; no dtype has the values of both"
        ):
            opened(tmp_path)


def test_files_that_are_not_there_or_of_no_known_kind_are_named(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for files, said in (
        (tmp_path / "no.parquet", "there is no file .*no.parquet"),
        (tmp_path / "*.parquet", r"no file matches .*\*.parquet"),
        (tmp_path / "empty", "the folder .*empty has no files of rows"),
        ([], "an empty list"),
    ):
        with pytest.raises(FileNotFoundError, match=said):
            opened(files)
    (tmp_path / "x.xlsx").touch()
    with pytest.raises(ValueError, match=r"x\.xlsx is of no known kind; known are \.arrow"):
        opened(tmp_path / "x.xlsx")


@pytest.mark.parametrize("kind", ["parquet", "arrow", "feather, compressed"])
def test_a_truncated_file_and_a_damaged_block_are_named(tmp_path: Path, kind: str) -> None:
    suffix, write = WRITERS[kind]
    path = tmp_path / f"x{suffix}"
    write(table_of(4000, ["float64", "float64"]), path, 1000)
    whole = path.read_bytes()
    path.write_bytes(whole[:-40])
    with pytest.raises(ValueError, match=rf"x\{suffix} cannot be read as"):
        opened(path)
    if kind != "parquet":
        return  # record batches have no checksums
    damaged = bytearray(whole)
    damaged[len(whole) // 2 : len(whole) // 2 + 2000] = b"\xff" * 2000
    path.write_bytes(damaged)
    with pytest.raises(ValueError, match=r"x\.parquet: row groups 0 to 3 cannot be read"):
        read(opened(path), 0, 4000, [0, 1], 4000)


def test_a_file_that_has_changed_since_is_told_with_size_and_time(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    write_parquet(table_of(50, ["float64"]), path, 20)
    source = opened(path)
    write_parquet(table_of(70, ["float64"]), path, 20)
    with pytest.raises(ValueError, match=r"x\.parquet has changed since .*bytes of 20.*, and is .*bytes of 20"):
        read(source, 0, 50, [0], 50)
    np.testing.assert_array_equal(
        read(source.on_this_host(), 0, 9, [0], 9), as_array(table_of(70, ["float64"]), [0])[:9]
    )
    os.unlink(path)
    with pytest.raises(ValueError, match="was removed since it was scanned"):
        read(source, 0, 50, [0], 50)


class SmallParts(Csv):
    part_bytes = 100


def test_lines_of_csv_are_counted_with_empty_ones_and_without_a_last_break(tmp_path: Path) -> None:
    path, lines = tmp_path / "x.csv", [f"{i},{i / 2}" for i in range(1000)]
    for text in ("\n".join(lines), "\r\n".join(lines) + "\r\n", "\n" + "\n\n".join(lines) + "\n\n"):
        path.write_bytes(b"a,b\n" + text.encode())
        source = SmallParts.open(str(path))
        assert source.n_rows == 1000, text[:20]
        np.testing.assert_array_equal(read(source, 3, 1000, [1], 77)[:, 0], np.arange(3, 1000) / 2)
    path.write_text('a,b\n1,"x\ny"\n')
    with pytest.raises(ValueError, match="line breaks inside of quotes"):
        read(opened(path), 0, 2, [0], 2)
    path.write_text("a\n" + "1\n" * 600_000 + "x\n")  # pyarrow looks at the first megabyte for the types
    with pytest.raises(ValueError, match=r"x\.csv: .* cannot be read: .*x"):
        read(opened(path), 0, 600_001, [0], 600_001)


def test_columns_of_csv_that_are_empty_at_first_or_have_fractions_later_are_numbers(tmp_path: Path) -> None:
    path, n = tmp_path / "x.csv", 600_000  # pyarrow looks at the first megabyte for the types
    path.write_text("whole,late,word,never\n" + "1,,,\n" * n + "1.5,2.5,x,\n" + "2,,7,\n")
    source = opened(path)
    assert [(each.name, each.dtype) for each in source.columns] == [
        ("whole", "float64"), ("late", "float64"), ("word", "string"), ("never", "null"),
    ]  # fmt: skip
    nan = np.nan
    last = [[1, nan, nan], [1.5, 2.5, nan], [2, nan, nan]]
    np.testing.assert_array_equal(read(source, n - 1, n + 2, [0, 1, 3], 2), last)
    assert Scan(source)["word"][n - 1 :].read().tolist() == ["", "x", "7"]
    np.testing.assert_array_equal(Scan(source)[["whole", "late"]][n:].read(), [[1.5, 2.5], [2, nan]])


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("empty", [0, 1])
def test_a_column_without_values_goes_with_any_in_other_files(tmp_path: Path, kind: str, empty: int) -> None:
    suffix, write = WRITERS[kind]
    without = pa.table({"f": pa.nulls(2), "s": pa.nulls(2), "n": pa.nulls(2), "k": [3, 4]})
    write(without, tmp_path / f"{empty}{suffix}", 5)
    full = pa.table({"f": pa.array([0.5, 1.5], pa.float32()), "s": ["a", "b"], "n": pa.nulls(2), "k": [1, 2]})
    write(full, tmp_path / f"{1 - empty}{suffix}", 5)
    source = pickle.loads(pickle.dumps(opened(tmp_path)))
    number = "float64" if suffix == ".csv" else "float32"
    assert [each.dtype for each in source.columns][:3] == [number, "string", "null"]
    numbers, strings = [[0.5, 1], [1.5, 2], [np.nan, 3], [np.nan, 4]], ["a", "b", None, None]
    order = [0, 1, 2, 3] if empty else [2, 3, 0, 1]
    np.testing.assert_array_equal(read(source, 0, 4, [0, 3], 3), np.array(numbers)[order])
    assert np.isnan(read(source, 0, 4, [2], 3)).all()
    assert Scan(source)["s"].read().tolist() == [strings[at] for at in order]


class Words(FileSource):
    """A kind that a third party registers: each line is a row, whose only column is the length of the line."""

    @classmethod
    def look(cls, path: str) -> tuple[list[Column], list[int]]:
        return [Column("length", "int64", np.dtype(np.int64))], [1] * len(Path(path).read_text().splitlines())

    def decoder(self, columns: Any) -> Any:
        lines = Path(self.path).read_text().splitlines()
        return lambda first, last: [np.array([len(line) for line in lines[first:last]]) for _ in columns]


def test_a_third_party_registers_a_kind(tmp_path: Path) -> None:
    kinds.register(".words", Words)
    (tmp_path / "a.words").write_text("one\nthree\n")
    (tmp_path / "b.words").write_text("eleven\n")
    np.testing.assert_array_equal(read(opened(tmp_path), 0, 3, [0], 2), [[3], [5], [6]])


def test_importing_the_interface_imports_no_package_of_a_format() -> None:
    code = "import sys; import xpulab.sources.kinds, xpulab.sharing.sources; print('pyarrow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
