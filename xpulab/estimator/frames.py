"""`set_output` for handles: the rows stay on the engines, as a table whose columns have names.

scikit-learn makes the data frame from what `transform` has returned, by the adapter that is registered for "pandas" or
"polars". The adapters that are registered here give the columns of a handle names, and leave the rest to
scikit-learn's. So its own transformers, such as `ColumnTransformer`, make tables of handles, too.
"""

from __future__ import annotations

from typing import Any

from xpulab._sklearn import ADAPTERS_MANAGER, get_columns
from xpulab.csr import ShardedCSR
from xpulab.data import ShardedArray
from xpulab.tables import named

__all__ = ["name_columns_of_handles"]


class _NamesColumns:
    """Goes before the class of an adapter of scikit-learn, and takes handles, which are no data frames."""

    container_lib: str

    def create_container(self, X_output: Any, X_original: Any, columns: Any, inplace: bool = True) -> Any:
        """Return a table for a handle, and a data frame for an array."""
        if not isinstance(X_output, ShardedArray):
            return super().create_container(X_output, X_original, columns, inplace)  # type: ignore[misc]
        if isinstance(X_output, ShardedCSR):
            raise ValueError(
                f"set_output(transform={self.container_lib!r}) was given, and the rows of the result are sparse: "
                f"{X_output!r}; type: set_output(transform='default')"
            )
        names = get_columns(columns)
        table = X_output if names is None else named(X_output, names)
        if table is not X_output and X_output is not X_original:
            table.cluster.call("describe_rows", {"handle": table.handle})  # for the handles that other clients see
        return table


def name_columns_of_handles() -> None:
    """Register the adapters. Repeated calls do nothing."""
    for adapter in list(ADAPTERS_MANAGER.adapters.values()):
        kind = type(adapter)
        if not issubclass(kind, _NamesColumns):
            ADAPTERS_MANAGER.register(type(kind.__name__, (_NamesColumns, kind), {})())
