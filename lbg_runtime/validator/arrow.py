"""One column of an Arrow table as a NumPy array."""

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lbg_runtime.validator.segments import Flags, Ints


def ints(table: pa.Table, name: str, missing: int = 0) -> Ints:
    """A column as 64-bit integers."""
    column = table.column(name)
    if column.null_count:
        column = pc.fill_null(column, missing)
    values: npt.NDArray[np.int64] = column.to_numpy().astype(np.int64, copy=False)
    return values


def present(table: pa.Table, name: str) -> Flags:
    """Where a column is not null."""
    values: npt.NDArray[np.bool_] = table.column(name).is_valid().to_numpy()
    return values


def flags(table: pa.Table, name: str) -> Flags:
    """A boolean column; null is false."""
    column = table.column(name)
    values: npt.NDArray[np.bool_] = pc.fill_null(column, False).to_numpy()
    return values


def texts(table: pa.Table, name: str) -> list[str | None]:
    """A column of a small table as Python strings."""
    values: list[str | None] = table.column(name).to_pylist()
    return values


def is_one_of(table: pa.Table, name: str, *values: str) -> Flags:
    """Where a text column has one of the values."""
    found: npt.NDArray[np.bool_] = pc.is_in(table.column(name), value_set=pa.array(values, pa.string())).to_numpy()
    return found
