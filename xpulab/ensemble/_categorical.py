"""Columns of categories of gradient boosting: which they are, and what stands for the categories in rows and in trees.

The engines find the categories of the rows of a fit. Afterwards, the estimator has scikit-learn's encoder of them, as
scikit-learn's estimator does. In the trees, columns of categories come before the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from xpulab._sklearn import _check_categorical_features
from xpulab.data import ShardedArray
from xpulab.deploy.ranks import Ranks
from xpulab.scanning import Scan
from xpulab.sharing.sources import CategoricalColumns
from xpulab.sources.coded import known_codes, labels_of, places_of
from xpulab.sources.source import Column
from xpulab.tables import coded, columns_of_rows

__all__ = [
    "as_fitted",
    "as_trees_have_them",
    "columns_for_fit",
    "keep_encoder",
    "marked",
    "require_same",
    "rows_and_columns",
]

_Mask = npt.NDArray[np.bool_]


class WithCategories(Protocol):
    """What an estimator of gradient boosting has for columns of categories."""

    categorical_features: Any
    is_categorical_: _Mask | None
    feature_names_in_: npt.NDArray[Any]
    _preprocessor: Any
    _is_categorical_remapped: Any

    @classmethod
    def sklearn_class(cls) -> type:
        """Return scikit-learn's class with the same results."""


def marked(estimator: WithCategories, X: Any) -> _Mask | None:
    """Return which columns of the rows of a fit have categories, as `categorical_features` says; None if none has.

    Raises
    ------
    ValueError
        As scikit-learn's estimator raises it.
    """
    lazy = isinstance(X, ShardedArray | Scan)
    if lazy and isinstance(estimator.categorical_features, str):
        described = columns_of_rows(X, X.shape[1]) if X.ndim == 2 else []
        mask = np.array([str(each.dtype).startswith("dictionary") for each in described], bool)
        texts = [each.name for each in described if each.categories is not None or "string" in str(each.dtype)]
        if texts and not mask.any():
            raise ValueError(
                f"columns of X have strings, and none is said to have categories; expected numbers, or type: "
                f"categorical_features={texts}"
            )
        return mask if mask.any() else None
    if lazy or not hasattr(X, "shape"):  # without dtypes, and a list has no names
        X = SimpleNamespace(shape=np.shape(X), columns=getattr(X, "columns", None))
    found: _Mask | None = _check_categorical_features(estimator, X)
    return found


def rows_and_columns(cluster: Ranks, X: Any, mask: _Mask) -> tuple[Any, list[Column]]:
    """Return rows with numbers in place of strings, and what is known of their columns.

    Raises
    ------
    ValueError
        If a column that has no categories has strings.
    """
    X = coded(X, cluster)
    about = columns_of_rows(X, len(mask))
    texts = [each.name for each, chosen in zip(about, mask, strict=False) if each.categories is not None and not chosen]
    if texts:
        raise ValueError(
            f"column {texts[0]!r} has strings, and categorical_features does not name it; expected numbers, or add it, "
            f"as categorical_features=[..., {texts[0]!r}]"
        )
    return X, about


def require_same(mask: _Mask | None, former: _Mask | None) -> None:
    """Raise ValueError if a fit that goes on has other columns of categories than its trees."""
    now, before = (None if each is None else np.flatnonzero(each).tolist() for each in (mask, former))
    if now != before:
        raise ValueError(
            f"warm_start=True goes on with trees for which the columns {before} have categories, and now {now} have; "
            "expected the same columns of categories, or set warm_start=False to begin anew"
        )


def columns_for_fit(
    estimator: WithCategories, mask: _Mask, about: Sequence[Column], goes_on: bool
) -> CategoricalColumns:
    """Return what the engines need for a fit; a fit that goes on has the categories of the first one."""
    chosen = np.flatnonzero(mask)
    names = getattr(estimator, "feature_names_in_", None)
    said = [f"at index {column}" if names is None else repr(str(names[column])) for column in chosen]
    order = [*chosen.tolist(), *np.flatnonzero(~mask).tolist()]
    if not goes_on:
        return CategoricalColumns(order=order, names=said)
    values, places = _known(estimator, mask, about)
    return CategoricalColumns(order=order, names=said, values=values, places=places)


def _known(
    estimator: WithCategories, mask: _Mask, about: Sequence[Column]
) -> tuple[list[npt.NDArray[np.float64]], list[npt.NDArray[np.float64]]]:
    """Return the numbers for the categories of each column in rows, and in the trees."""
    every = estimator._preprocessor.named_transformers_["encoder"].categories_
    known = []
    for column, categories in zip(np.flatnonzero(mask), every, strict=True):
        there = categories[[each is not None and each == each for each in categories.tolist()]]
        if not len(there):  # all values were missing: the rows may have strings now, or numbers
            there = there.astype(np.float64 if about[column].categories is None else object)
        known.append(known_codes(about[column], there, np.append(np.arange(float(len(there))), np.nan)))
    return [values.astype(np.float64) for values, _ in known], [places for _, places in known]


def as_trees_have_them(estimator: WithCategories, cluster: Ranks, X: Any) -> tuple[Any, CategoricalColumns | None]:
    """Return rows with numbers in place of strings, and how the engines find the categories of the trees in them."""
    mask = estimator.is_categorical_
    if mask is None:
        return X, None
    X, about = rows_and_columns(cluster, X, mask)
    if len(about) != len(mask):  # the check of the rows raises scikit-learn's error
        return X, None
    columns = columns_for_fit(estimator, mask, about, goes_on=True)
    return X, columns


def as_fitted(
    rows: npt.NDArray[Any], about: Sequence[Column], fitted: Sequence[Column], mask: _Mask
) -> npt.NDArray[Any]:
    """Return rows in which the numbers of strings are those of the rows of the fit; NaN for strings that it had not."""
    made = np.array(rows, np.float64)
    for column in np.flatnonzero(mask):
        texts = fitted[column].categories
        if texts is None:
            continue
        numbers = np.append(np.arange(float(len(texts))), np.nan)
        known, places = known_codes(about[column], np.array(texts, object), numbers)
        made[:, [column]] = places_of(made[:, [column]], [known], [places])
    return made


def keep_encoder(
    estimator: WithCategories,
    columns: CategoricalColumns,
    about: Sequence[Column],
    values: Sequence[npt.NDArray[np.float64]],
) -> None:
    """Give an estimator scikit-learn's transformer of rows, whose encoder has the categories of a fit.

    Parameters
    ----------
    estimator : WithCategories
    columns : CategoricalColumns
    about : sequence of Column
        What is known of the columns of the rows.
    values : sequence of numpy.ndarray of float64
        The numbers of the categories in the rows, of each such column.
    """
    few, chosen = np.zeros((max(1, *map(len, values)), len(columns.order))), columns.order[: len(values)]
    for column, known in zip(chosen, values, strict=True):
        few[:, column] = np.resize(np.arange(len(known)), len(few)) if len(known) else np.nan
    plain: Any = estimator.sklearn_class()(categorical_features=chosen)
    plain._preprocess_X(few, reset=True)
    encoder = plain._preprocessor.named_transformers_["encoder"]
    for number, (column, known) in enumerate(zip(chosen, values, strict=True)):
        if len(known):
            encoder.categories_[number] = labels_of(about[column], known)
    if hasattr(estimator, "feature_names_in_"):
        plain._preprocessor.feature_names_in_ = estimator.feature_names_in_
        encoder.feature_names_in_ = estimator.feature_names_in_[chosen]
    estimator._preprocessor, estimator._is_categorical_remapped = plain._preprocessor, plain._is_categorical_remapped
