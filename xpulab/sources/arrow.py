"""What sources of Arrow's formats share: its columns as NumPy arrays."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from xpulab.sources.needed import needed
from xpulab.sources.source import NO_VALUES, Column

__all__ = ["codes_of_texts", "columns_of", "values_of"]


def columns_of(schema: Any) -> tuple[Column, ...]:
    """Return the columns of an Arrow schema.

    Raises
    ------
    ValueError
        If two columns have the same name.
    """
    twice = [name for name, n in Counter(schema.names).items() if n > 1]
    if twice:
        raise ValueError(f"two columns have the name {twice[0]!r}; rename one of them")
    return tuple(_column(field) for field in schema)


def _column(field: Any) -> Column:
    pa = needed("pyarrow", "Arrow data")
    kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
    numeric: Any = None
    if pa.types.is_null(kind):
        return Column(field.name, NO_VALUES, np.dtype(np.float64))
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind):
        numeric = np.dtype(kind.to_pandas_dtype())
    elif pa.types.is_decimal(kind):
        numeric = np.dtype(np.float64)
    return Column(field.name, str(numeric) if field.type == kind and numeric is not None else str(field.type), numeric)


def values_of(column: Any) -> npt.NDArray[Any]:
    """Return a column of an Arrow table as an array: nulls are NaN, and what are not numbers are Python's objects.

    An array without nulls is not copied, if its type is one of NumPy's.
    """
    pa = needed("pyarrow", "Arrow data")
    chunks: Sequence[Any] = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    arrays = [_values(pa, chunk) for chunk in chunks]
    if len(arrays) == 1:
        return arrays[0]
    return np.concatenate(arrays) if arrays else np.empty(0)


def _values(pa: Any, chunk: Any) -> npt.NDArray[Any]:
    if pa.types.is_null(chunk.type):
        return np.full(len(chunk), np.nan)
    if pa.types.is_dictionary(chunk.type):
        chunk = _of_strings(pa, chunk).dictionary_decode()
    if pa.types.is_decimal(chunk.type) or (
        chunk.null_count and (pa.types.is_boolean(chunk.type) or pa.types.is_integer(chunk.type))
    ):
        chunk = chunk.cast(pa.float64(), safe=False)
    found: npt.NDArray[Any] = chunk.to_numpy(zero_copy_only=False)
    return found


def _of_strings(pa: Any, chunk: Any) -> Any:
    """Return a dictionary-encoded chunk; string views in its dictionary, which Arrow does not take from, are strings.

    Categorical and Enum of polars are such.
    """
    if not pa.types.is_string_view(chunk.type.value_type):
        return chunk
    return pa.DictionaryArray.from_arrays(chunk.indices, chunk.dictionary.cast(pa.large_string()))


def codes_of_texts(column: Any, about: Column) -> tuple[tuple[str, ...], Any]:
    """Return the distinct strings of a column of an Arrow table in ascending order, and their places in its rows.

    Raises
    ------
    ValueError
        If the column has other things than strings.
    """
    pa = needed("pyarrow", "Arrow data")
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)):
        raise ValueError(
            f"column {about.name!r} ({about.dtype}) has neither numbers nor strings; leave it out, or convert it first"
        )
    if pa.types.is_string_view(column.type):
        column = column.cast(pa.large_string())
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    chunks = [_of_strings(pa, chunk) for chunk in column.chunks]
    chunks = pa.chunked_array(chunks).unify_dictionaries().chunks if chunks else []
    every = chunks[0].dictionary.to_pylist() if chunks else []
    used = {every[place] for chunk in chunks for place in chunk.indices.unique().to_pylist() if place is not None}
    texts = tuple(sorted(text for text in used if text is not None))
    places = {text: place for place, text in enumerate(texts)}
    codes = np.array([places.get(text, -1) for text in every], np.int32)
    made = []
    for chunk in chunks:
        indices = chunk.indices.fill_null(0).to_numpy(zero_copy_only=False)
        own = codes[indices] if len(codes) else np.full(len(indices), -1, np.int32)
        missing = chunk.indices.is_null().to_numpy(zero_copy_only=False) | (own < 0)
        made.append(pa.array(own, mask=missing if missing.any() else None))
    return texts, pa.chunked_array(made, pa.int32())
