"""Tables on the engines: their columns by name, strings, and scikit-learn's ColumnTransformer, which moves nothing."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import sklearn.impute
import sklearn.naive_bayes
import sklearn.preprocessing
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.model_selection import KFold, StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.utils.fixes import parse_version

import xpulab
from xpulab.data import ShardedArray
from xpulab.ensemble import RandomForestClassifier
from xpulab.impute import SimpleImputer
from xpulab.linear_model import LinearRegression, LogisticRegression
from xpulab.model_selection import train_test_split
from xpulab.naive_bayes import GaussianNB
from xpulab.preprocessing import (
    Binarizer,
    KBinsDiscretizer,
    LabelEncoder,
    Normalizer,
    OneHotEncoder,
    OrdinalEncoder,
    StandardScaler,
    TargetEncoder,
)
from xpulab.tables import ShardedTable

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.parametrize("cluster", [1, 3], indirect=True, ids=["1-engine", "3-engines"]),
]

N = 500
#: Whether the installed scikit-learn's TargetEncoder takes a splitter as `cv`.
SPLITTERS = parse_version(sklearn.__version__) >= parse_version("1.9")
RNG = np.random.default_rng(0)
FRAME = pd.DataFrame({
    "distance": RNG.normal(size=N),
    "delay": RNG.integers(0, 99, N),
    "late": RNG.random(N) > 0.5,
    "carrier": RNG.choice(["UA", "AA", "DL", "WN"], N, p=[0.5, 0.3, 0.15, 0.05]),
    "month": pd.Categorical(RNG.choice(["jan", "feb"], N), categories=["jan", "feb", "mar"]),
})  # fmt: skip
POLARS: dict[str, Any] = {
    "polars": {},
    "categories": {"carrier": pl.Categorical, "month": pl.Categorical},
    "Enum": {"carrier": pl.Enum(["WN", "XX", "DL", "UA", "AA"]), "month": pl.Enum(["jan", "feb", "mar"])},
}
STRINGS, NUMBERS = ["carrier", "month"], ["distance", "delay"]


def missing(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame with missing strings and numbers."""
    return frame.assign(
        carrier=frame["carrier"].where(frame["delay"] > 20), distance=frame["distance"].where(frame["delay"] > 9)
    )


@pytest.fixture
def table(current: xpulab.XPUCluster) -> Any:
    return current.scatter(FRAME)


def test_columns_have_names_and_types(
    current: xpulab.XPUCluster, table: Any, written: list[int], received: list[int]
) -> None:
    del written[:]
    assert isinstance(table, ShardedTable)
    assert (table.shape, table.dtype, table.columns) == ((N, 5), np.float64, list(FRAME.columns))
    assert list(table.dtypes.values())[:3] == ["float64", "int64", "bool"]
    assert {name: list(texts) for name, texts in table.categories.items()} == {
        "carrier": ["AA", "DL", "UA", "WN"], "month": ["feb", "jan"],
    }  # fmt: skip
    some, one = table[["delay", "distance"]], table["delay"]
    assert (some.columns, some.shape, one.shape) == (["delay", "distance"], (N, 2), (N,))
    head = table.head(3).to_pandas()
    assert sum(received) + sum(written) == 0
    pd.testing.assert_frame_equal(head, FRAME.head(3).astype({"month": head["month"].dtype}))
    assert_array_equal(some.gather(), FRAME[["delay", "distance"]])
    assert_array_equal(one.gather(), FRAME["delay"])
    assert_array_equal(table["carrier"].gather(), np.searchsorted(["AA", "DL", "UA", "WN"], FRAME["carrier"]))
    with pytest.raises(KeyError, match="there is no column 'speed'; the columns are distance, delay"):
        table[["speed"]]
    with pytest.raises(TypeError, match="expected the name of a column, or a list of names"):
        table[5]


def test_the_drawing_says_what_is_where(current: xpulab.XPUCluster, table: Any) -> None:
    drawn = repr(table)
    assert drawn.startswith(f"ShardedTable of 500 rows and 5 columns: float64, 19.5 KiB on {current.size} engine")
    assert re.search(r"\n +rows +0 to \d+", drawn)
    assert re.search(rf"\n  carrier +4 strings( +\d\S+ (KiB|B)){{{current.size}}}\n", drawn)
    uneven = current.scatter(FRAME[["delay"]], counts=[N, *[0] * (current.size - 1)])
    assert ("none" in repr(uneven)) == (current.size > 1)
    assert "and 5 more columns" in repr(current.scatter(pd.DataFrame(np.zeros((2, 17))).add_prefix("x")))


@pytest.mark.parametrize("of", [*POLARS, "arrow", "dictionaries", "scan", "files", "a file of polars"])
def test_tables_of_each_kind_have_the_same_rows(
    current: xpulab.XPUCluster, table: Any, tmp_path: Path, of: str, written: list[int]
) -> None:
    frame = FRAME.astype({"month": str})
    given: Any = pa.table(frame)
    if of in POLARS:
        given = pl.DataFrame(given).cast(POLARS[of])
    elif of == "a file of polars":
        pl.DataFrame(given).cast(POLARS["Enum"]).write_ipc(tmp_path / "rows.arrow", record_batch_size=90)
        given = xpulab.scan(tmp_path)
    elif of == "dictionaries":
        parts = [pa.table(frame[first : first + 100]) for first in range(0, N, 100)]
        encoded = [part.set_column(3, "carrier", part["carrier"].dictionary_encode()) for part in parts]
        given = pa.concat_tables(encoded)  # each chunk has its own dictionary
    elif of == "scan":
        given = xpulab.scan(lambda: (given_part for given_part in [frame[:200], frame[200:]]))
    elif of == "files":
        frame.to_parquet(tmp_path / "rows.parquet", row_group_size=90)
        given = xpulab.scan(tmp_path)
    del written[:]
    found: Any = current.scatter(given)
    assert (sum(written) == 0) == ("file" in of)
    assert_array_equal(found.gather(), table.gather())
    assert_array_equal(found.categories["carrier"], table.categories["carrier"])


def test_single_numbers_beside_strings_stay_single(current: xpulab.XPUCluster) -> None:
    single = FRAME.astype({"distance": np.float32})
    assert current.scatter(single[["distance", "carrier"]]).dtype == np.float32
    assert current.scatter(single[["distance", "delay"]]).dtype == np.float64


def test_a_column_transformer_moves_nothing(
    current: xpulab.XPUCluster, table: Any, written: list[int], received: list[int]
) -> None:
    made: Any = make_column_transformer(
        (OneHotEncoder(), ["carrier", "month"]),
        (StandardScaler(), make_column_selector(dtype_include=np.number)),
        (OrdinalEncoder(), make_column_selector(pattern="^car")),
    )
    expected: Any = make_column_transformer(
        (sklearn.preprocessing.OneHotEncoder(), ["carrier", "month"]),
        (sklearn.preprocessing.StandardScaler(), make_column_selector(dtype_include=np.number)),
        (sklearn.preprocessing.OrdinalEncoder(), make_column_selector(pattern="^car")),
        sparse_threshold=0,
    )
    right = expected.fit_transform(FRAME)
    del written[:], received[:]
    found, again = made.fit_transform(table), made.transform(table)
    assert (sum(written), sum(received)) == (0, 0)
    assert isinstance(found, ShardedArray)
    assert_allclose(found.gather(), right, atol=1e-12)
    assert_allclose(again.gather(), right, atol=1e-12)
    assert_allclose(made.transform(FRAME), right, atol=1e-12)
    assert list(made.feature_names_in_) == list(FRAME.columns)
    assert list(made.get_feature_names_out()) == list(expected.get_feature_names_out())
    other = current.scatter(FRAME[::-1][["month", "carrier", "delay", "distance", "late"]])  # another order of columns
    assert_allclose(made.transform(other).gather(), right[::-1], atol=1e-12)


def test_a_pipeline_of_a_table_with_missing_values(
    current: xpulab.XPUCluster, written: list[int], received: list[int]
) -> None:
    frame, label = missing(FRAME), FRAME["month"].astype(str)
    table: Any = current.scatter(frame.assign(label=label), allow_nan=True)

    def model(impute: Any, encode: Any, scale: Any, classify: Any) -> Any:
        numbers, strings = make_pipeline(impute(), scale()), make_pipeline(impute(strategy="most_frequent"), encode())
        columns = make_column_transformer((strings, ["carrier"]), (numbers, NUMBERS), sparse_threshold=0)
        return make_pipeline(columns, classify(tol=1e-10))

    theirs = model(
        sklearn.impute.SimpleImputer, sklearn.preprocessing.OneHotEncoder, sklearn.preprocessing.StandardScaler,
        sklearn.linear_model.LogisticRegression,
    ).fit(frame, label)  # fmt: skip
    del written[:], received[:]
    rows, target = table[["distance", "delay", "carrier"]], train_test_split(table, shuffle=False, test_size=1)[0]
    assert target.categories.keys() == {"carrier", "month", "label"}
    ours = model(SimpleImputer, OneHotEncoder, StandardScaler, LogisticRegression)
    whole: Any = current.scatter(FRAME.assign(label=label))
    complete = whole["label"]
    del written[:]
    ours.fit(rows, complete)
    assert (sum(written), sum(received)) == (0, 0)
    assert_array_equal(ours.predict(rows), theirs.predict(frame))
    assert list(ours.classes_) == ["feb", "jan"]
    assert ours.score(rows, complete) == pytest.approx(theirs.score(frame, label))


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"handle_unknown": "ignore", "max_categories": 3},
        {"drop": "first", "handle_unknown": "ignore"},
        {"categories": [["WN", "UA", "DL", "AA"], ["jan", "feb"]]},
        {"min_frequency": 0.2, "handle_unknown": "infrequent_if_exist"},
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore:Found unknown categories")
def test_one_hot_encoders_have_scikit_learn_s_categories(current: xpulab.XPUCluster, table: Any, how: Any) -> None:
    strings = FRAME[STRINGS].astype({"month": str})
    theirs = sklearn.preprocessing.OneHotEncoder(**how).fit(strings)
    other = strings[::-3].reset_index(drop=True)
    if "handle_unknown" in how:
        other.loc[3, "carrier"] = "??"
        other = other[other["carrier"] != "AA"]  # its strings have other numbers
    expected = theirs.transform(other).toarray()
    for rows in (table[STRINGS], xpulab.scan(strings), strings):
        ours = OneHotEncoder(**how).fit(rows)
        for mine, known in zip(ours.categories_, theirs.categories_, strict=True):
            assert_array_equal(mine, known)
        assert_array_equal(ours.get_feature_names_out(), theirs.get_feature_names_out())
        assert_array_equal(ours.transform(other).toarray(), expected)
        assert_array_equal(ours.transform(current.scatter(other)).gather(), expected)


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"handle_unknown": "use_encoded_value", "unknown_value": -1, "max_categories": 3},
        {"encoded_missing_value": -5, "handle_unknown": "use_encoded_value", "unknown_value": np.nan},
        {"categories": [["WN", "UA", "DL", "AA", np.nan], list(range(99))]},
    ],
    ids=str,
)
def test_ordinal_encoders_have_scikit_learn_s_numbers(current: xpulab.XPUCluster, how: Any) -> None:
    frame = missing(FRAME)[["carrier", "delay"]]
    theirs = sklearn.preprocessing.OrdinalEncoder(**how).fit(frame)
    other = frame[::-2].reset_index(drop=True)
    if "unknown_value" in how:
        other.loc[3] = ["??", 1000]
    expected = theirs.transform(other)
    for rows in (current.scatter(frame, allow_nan=True), frame):
        ours = OrdinalEncoder(**how).fit(rows)
        for mine, known in zip(ours.categories_, theirs.categories_, strict=True):
            assert_array_equal(mine.astype(str), known.astype(str))
        assert_array_equal(ours.transform(other), expected)
        assert_array_equal(ours.transform(current.scatter(other, allow_nan=True)).gather(), expected)
        if "max_categories" not in how:  # of missing values and rare ones, scikit-learn's raises an IndexError
            back, right = (each.inverse_transform(expected[:9].copy()).astype(str) for each in (ours, theirs))
            assert_array_equal(back, right)
    with pytest.raises(ValueError, match=r"Found unknown categories \['\?\?'\] in column 0 during transform"):
        OrdinalEncoder().fit(frame).transform(other.assign(carrier="??"))


@pytest.mark.parametrize("kind", [OneHotEncoder, OrdinalEncoder])
def test_none_nan_and_na_are_one_missing_category(current: xpulab.XPUCluster, kind: Any) -> None:
    frame = missing(FRAME)[["carrier"]].astype(object)  # missing strings are nan
    others = frame.where(frame.notna(), None)
    given = {
        "nan": frame,
        "None": others,
        "NA": frame.astype("string"),
        "category": frame.astype("category"),
        "Arrow": frame.astype(pd.ArrowDtype(pa.string())),
        "polars": pl.DataFrame({"carrier": others["carrier"].tolist()}),
        "polars, Categorical": pl.DataFrame({"carrier": others["carrier"].tolist()}).cast(pl.Categorical),
        "pyarrow": pa.table({"carrier": others["carrier"].tolist()}),
    }
    given |= {f"handle of {name}": current.scatter(given[name], allow_nan=True) for name in ("NA", "polars")}
    dense = {"sparse_output": False} if kind is OneHotEncoder else {}
    theirs = getattr(sklearn.preprocessing, kind.__name__)(**dense).fit(frame)
    expected = theirs.transform(frame)
    fitted = {name: kind(**dense).fit(rows) for name, rows in given.items()}
    for name, encoder in fitted.items():
        assert len(encoder.categories_[0]) == 5, name
        for other in {"nan", "polars", "handle of NA", name}:
            found = encoder.transform(given[other])
            assert_array_equal(found.gather() if "handle" in other else found, expected, err_msg=f"{name}, {other}")


@pytest.mark.parametrize("how", [{}, {"strategy": "constant", "fill_value": "Hawaiian"}], ids=str)
def test_imputers_fill_in_strings(current: xpulab.XPUCluster, how: Any) -> None:
    frame = missing(FRAME)[["carrier"]].astype(object)
    how = {"strategy": "most_frequent", **how}
    theirs = sklearn.impute.SimpleImputer(**how).fit(frame)
    without = frame[frame["carrier"] != "UA"].reset_index(drop=True)
    for rows in (current.scatter(frame, allow_nan=True), frame):
        ours = SimpleImputer(**how).fit(rows)
        assert ours.statistics_.tolist() == theirs.statistics_.tolist()
        for other in (frame, without):
            assert_array_equal(ours.transform(other), theirs.transform(other))
            kept = ours.transform(current.scatter(other, allow_nan=True))
            assert kept.head(len(other)).to_pydict() == {"carrier": theirs.transform(other)[:, 0].tolist()}
    with pytest.raises(ValueError, match="column 'carrier' has strings; expected numbers"):
        SimpleImputer(strategy="most_frequent").fit(FRAME[["delay"]].to_numpy()).transform(without)


def test_labels_are_the_strings_of_a_column(current: xpulab.XPUCluster, table: Any) -> None:
    rows, y = table[NUMBERS], table["carrier"]
    for kind, theirs in (
        (GaussianNB(), sklearn.naive_bayes.GaussianNB()),
        (RandomForestClassifier(5, random_state=0), sklearn.ensemble.RandomForestClassifier(5, random_state=0)),
    ):
        ours, right = kind.fit(rows, y), theirs.fit(FRAME[NUMBERS].to_numpy(np.float64), FRAME["carrier"])
        assert list(ours.classes_) == list(right.classes_)
        assert ours.score(rows, y) == pytest.approx(
            right.score(FRAME[NUMBERS].to_numpy(np.float64), FRAME["carrier"]), abs=0.02
        )
    assert LogisticRegression().fit(rows, table["late"]).classes_.dtype == bool


def test_what_needs_numbers_names_the_columns_of_strings(table: Any) -> None:
    for use in (
        lambda: StandardScaler().fit(table),
        lambda: StandardScaler().fit(table[NUMBERS]).transform(table[STRINGS]),
        lambda: np.hstack([table[NUMBERS], table[STRINGS]]),
    ):
        with pytest.raises(ValueError, match="No numbers in X: 'carrier', 'month' of ShardedTable are strings"):
            use()
    with pytest.raises(ValueError, match="No numbers in y: 'carrier' of ShardedColumn"):
        LinearRegression().fit(table[NUMBERS], table["carrier"])
    with pytest.raises(ValueError, match=r"column 'when' \(timestamp.*\) has neither numbers nor strings"):
        table.cluster.scatter(pd.DataFrame({"when": pd.to_datetime(["2020-01-01"])}))
    with pytest.raises(ValueError, match="X has numbers, and the categories of the fit are strings"):
        OneHotEncoder().fit(table[["carrier"]]).transform(table[["delay"]])


def test_columns_that_were_not_chosen_may_have_other_things(current: xpulab.XPUCluster, tmp_path: Path) -> None:
    frame = FRAME.assign(when=pd.Timestamp("2020-01-01"))
    frame.to_parquet(tmp_path / "rows.parquet")
    for scan in (xpulab.scan(frame), xpulab.scan(tmp_path)):
        assert_array_equal(OneHotEncoder().fit(scan[["carrier"]]).categories_, [["AA", "DL", "UA", "WN"]])
        with pytest.raises(ValueError, match=r"column 'when' .* has neither numbers nor strings"):
            OneHotEncoder().fit(scan[["carrier", "when"]])


def test_a_null_among_strings_is_named(current: xpulab.XPUCluster) -> None:
    row = int(np.argmax(FRAME["delay"] <= 20))
    with pytest.raises(ValueError, match=rf"first such row is row {row}, column 'carrier'"):
        current.scatter(missing(FRAME)[["delay", "carrier"]])


def test_other_transformers_take_tables(current: xpulab.XPUCluster, table: Any) -> None:
    numbers = FRAME[NUMBERS]
    assert_allclose(
        Normalizer().fit_transform(table[NUMBERS]).gather(), sklearn.preprocessing.Normalizer().fit_transform(numbers)
    )
    assert_array_equal(
        Binarizer(threshold=20).fit_transform(table[NUMBERS]).gather(),
        sklearn.preprocessing.Binarizer(threshold=20).fit_transform(numbers),
    )
    how: Any = {"n_bins": 4, "strategy": "uniform"}
    expected = sklearn.preprocessing.KBinsDiscretizer(**how).fit_transform(numbers).toarray()
    assert_array_equal(KBinsDiscretizer(**how).fit_transform(table[NUMBERS]).gather(), expected)


def test_other_notebooks_find_a_table(current: xpulab.XPUCluster) -> None:
    current.scatter(FRAME, name="flights")
    found = current.handles()["flights"]
    assert isinstance(found, ShardedTable)
    assert list(found.categories["carrier"]) == ["AA", "DL", "UA", "WN"]
    assert found.head(2).to_pydict()["carrier"] == FRAME["carrier"][:2].tolist()
    current.release(found)


def test_the_parts_of_a_split_are_tables(current: xpulab.XPUCluster, table: Any) -> None:
    train, test = train_test_split(table, random_state=0)
    right = sklearn.model_selection.train_test_split(FRAME, random_state=0)
    assert test.head(len(test)).to_pydict()["carrier"] == right[1]["carrier"].tolist()
    assert (train.columns, train.shape) == (list(FRAME.columns), right[0].shape)


@pytest.mark.parametrize("name", ["carrier", "delay"])
def test_labels_are_encoded_where_they_are(
    current: xpulab.XPUCluster, table: Any, tmp_path: Path, written: list[int], received: list[int], name: str
) -> None:
    FRAME.to_parquet(tmp_path / "rows.parquet", row_group_size=90)
    theirs = sklearn.preprocessing.LabelEncoder().fit(FRAME[name])
    expected = theirs.transform(FRAME[name])
    del written[:], received[:]
    kept = LabelEncoder().fit_transform(table[name])
    assert (sum(written), sum(received)) == (0, 0)
    assert_array_equal(kept.gather(), expected)
    for labels in (table[name], xpulab.scan(tmp_path)[name], FRAME[name]):
        ours = LabelEncoder().fit(labels)
        assert_array_equal(ours.classes_, theirs.classes_)
        assert ours.classes_.dtype == theirs.classes_.dtype
        assert_array_equal(ours.transform(xpulab.scan(tmp_path)[name]), expected)
        assert_array_equal(ours.inverse_transform(expected[:5]), FRAME[name][:5])
    ours = LabelEncoder().fit(FRAME[name][FRAME[name] != FRAME[name][0]])
    with pytest.raises(ValueError, match=rf"y contains previously unseen labels: \['?{FRAME[name][0]}'?\]"):
        ours.transform(table[name])
    with pytest.raises(ValueError, match="y should be a 1d array"):
        LabelEncoder().fit(table)


@pytest.mark.parametrize("target", ["delay", "late", "carrier"])
@pytest.mark.parametrize("smooth", ["auto", 3.0])
def test_target_encoders_have_scikit_learn_s_numbers(
    current: xpulab.XPUCluster, table: Any, target: str, smooth: Any
) -> None:
    columns = ["month", "carrier", "delay"] if target != "carrier" else ["month", "delay"]
    frame, y = missing(FRAME)[columns], FRAME[target].astype(float) * 1.5 if target == "delay" else FRAME[target]
    splitter = (KFold if target == "delay" else StratifiedKFold)(4, shuffle=True, random_state=1)
    how = {"smooth": smooth, "cv": splitter} if SPLITTERS else {"smooth": smooth, "cv": 4, "random_state": 1}
    theirs = sklearn.preprocessing.TargetEncoder(**how)
    crossed = theirs.fit_transform(frame, y)
    handle = current.scatter(frame, allow_nan=True)
    there = current.scatter(pd.DataFrame({"y": y}))["y"] if target != "late" else table["late"]
    other = frame[::-3].reset_index(drop=True)
    other.loc[2, "delay"] = 1000
    for rows, right in ((handle, y), (frame, y), (handle, there)):
        ours: Any = TargetEncoder(**how)
        found = ours.fit_transform(rows, right)
        assert_allclose(found.gather() if rows is handle else found, crossed, rtol=1e-9, atol=1e-9)
        assert_allclose(np.hstack(ours.encodings_), np.hstack(theirs.encodings_), rtol=1e-9, atol=1e-9)
        assert_allclose(ours.target_mean_, theirs.target_mean_)
        assert_allclose(ours.transform(other), theirs.transform(other), rtol=1e-9, atol=1e-9)
        assert_allclose(
            ours.transform(current.scatter(other, allow_nan=True)).gather(), theirs.transform(other), atol=1e-9
        )
    assert list(ours.get_feature_names_out()) == list(theirs.get_feature_names_out())
    assert_allclose(
        TargetEncoder(**how).fit(handle, y).transform(frame), theirs.fit(frame, y).transform(frame), atol=1e-9
    )
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        TargetEncoder().fit(handle, y[1:])


def test_target_encoders_take_categories(current: xpulab.XPUCluster, tmp_path: Path) -> None:
    how: Any = {"categories": [["AA", "UA", "XX"], np.arange(90)], "cv": KFold(3)}
    how |= {} if SPLITTERS else {"cv": 3, "shuffle": False}
    frame, y = FRAME[["carrier", "delay"]], FRAME["distance"]  # DL, WN and 90 to 98 are unknown
    frame.to_parquet(tmp_path / "rows.parquet", row_group_size=90)
    theirs = sklearn.preprocessing.TargetEncoder(**how)
    crossed, again = theirs.fit_transform(frame, y), theirs.transform(frame)
    for rows in (frame, xpulab.scan(tmp_path)):
        ours = TargetEncoder(**how)
        assert_allclose(ours.fit_transform(rows, y), crossed, atol=1e-9)
        assert_allclose(np.hstack(ours.encodings_), np.hstack(theirs.encodings_), atol=1e-9)
        assert_allclose(ours.transform(rows), again, atol=1e-9)


def test_numbers_that_the_engines_do_not_tell_apart_are_refused(current: xpulab.XPUCluster) -> None:
    for kind in (OneHotEncoder, OrdinalEncoder):
        with pytest.raises(ValueError, match=rf"for greater ones use sklearn\.preprocessing\.{kind.__name__}$"):
            kind().fit(np.array([[2**53], [1]]))
        with pytest.raises(ValueError, match=rf"for other objects use sklearn\.preprocessing\.{kind.__name__}$"):
            kind().fit(np.array([["a"], ["b"]], object))


def test_a_column_without_a_name_keeps_its_place(current: xpulab.XPUCluster) -> None:
    frame = pl.DataFrame({"": [1.0, 2.0, 4.0], "b": [3.0, 4.0, 8.0]})
    table = current.scatter(frame)
    assert table.columns == ["", "b"]
    assert_array_equal(table[""].gather(), frame[""].to_numpy())
    for rows in (frame, table):
        fitted = StandardScaler().fit(rows)
        assert fitted.feature_names_in_.tolist() == fitted.get_feature_names_out().tolist() == ["", "b"]
    assert_allclose(StandardScaler().fit_transform(frame), sklearn.preprocessing.StandardScaler().fit_transform(frame))


def test_the_rows_come_back_as_they_were_sent(current: xpulab.XPUCluster) -> None:
    sent = pa.table({"a": [1.5, 2.5, 3.5, 4.5], "n": [1, 2, 3, 4], "s": ["u", None, "v", "u"]})
    table: Any = current.scatter(sent, allow_nan=True)
    assert table.to_arrow().equals(sent)
