"""One Parquet column of one row group in memory, and how its rows become tensors.

Numbers, and lists of numbers at any depth, become tensors. All else (text, bytes,
times, structs) stays what Python has for it, for the user's ``transform`` to decode.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from spotray.errors import ConfigError

Array = npt.NDArray[Any]
ArrowArray: TypeAlias = Any  # what list arrays can do, their stubs do not know


class Column(Protocol):
    """The values of one column in one row group."""

    nbytes: int  # host memory held

    def take(self, rows: Sequence[int]) -> Sequence[Any]:
        """The values of some rows, in the order asked; the caller may change them in place."""
        ...


class Dense:
    """Rows of one shape."""

    def __init__(self, values: Array) -> None:
        self.values = values  # (rows, ...)
        self.nbytes = int(values.nbytes)

    def take(self, rows: Sequence[int]) -> Sequence[torch.Tensor]:
        # Indexing by a list copies, so that no tensor shares memory with the cache.
        return torch.from_numpy(self.values[list(rows)]).unbind(0)


class Ragged:
    """Rows that differ in their first dimension."""

    def __init__(self, values: Array, offsets: Array) -> None:
        self._values = values  # (items of all rows, ...)
        self._offsets = offsets  # (rows + 1,)
        self.nbytes = int(values.nbytes + offsets.nbytes)

    def take(self, rows: Sequence[int]) -> Sequence[torch.Tensor]:
        cuts = [(self._offsets[row], self._offsets[row + 1]) for row in rows]
        return [torch.from_numpy(self._values[start:stop].copy()) for start, stop in cuts]


class Objects:
    """Rows that no tensor can hold; made into Python objects when they are taken."""

    def __init__(self, array: ArrowArray) -> None:
        self._array = array
        self.nbytes = int(array.nbytes)

    def take(self, rows: Sequence[int]) -> Sequence[Any]:
        return [self._array[row].as_py() for row in rows]


def column_of(array: ArrowArray, *, name: str, file: str) -> Column:
    """Decode a column; a missing float is NaN, a missing object None.

    Raises:
        ConfigError: a value is missing where a tensor cannot say so.
    """
    array = _plain(array)
    try:
        values = _dense(array)
        if values is not None:
            return Dense(values)
        if _is_list(array.type):
            items = _dense(_plain(array.flatten()))
            if items is not None:
                lengths = array.value_lengths().to_numpy(zero_copy_only=False)
                return Ragged(items, np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64))
    except _MissingValueError as exc:
        raise ConfigError(
            f"column {name!r} has missing values in {file}, which no tensor can hold: fill them "
            "when the file is written, or leave the column out with columns=[...]"
        ) from exc
    return Objects(array)


class _MissingValueError(Exception):
    pass


def _plain(array: ArrowArray) -> ArrowArray:
    if isinstance(array, pa.DictionaryArray):
        return array.dictionary_decode()
    if isinstance(array, pa.ExtensionArray) and not isinstance(array, pa.FixedShapeTensorArray):
        return array.storage
    return array


def _dense(array: ArrowArray) -> Array | None:
    """``(rows, ...)`` if every row has the same shape of numbers."""
    kind = array.type
    if isinstance(array, pa.FixedShapeTensorArray):
        _require_complete(array)
        return np.asarray(array.to_numpy_ndarray())
    if _is_number(kind):
        if not pa.types.is_floating(kind):  # a missing integer would turn all into floats
            _require_complete(array)
        return np.asarray(array.to_numpy(zero_copy_only=False))
    if pa.types.is_fixed_size_list(kind):
        width = kind.list_size
    elif _is_list(kind):
        lengths = array.value_lengths().drop_null().unique()
        if len(lengths) != 1:
            return None
        width = lengths[0].as_py()
    else:
        return None
    items = _dense(_plain(array.flatten()))
    if items is None:
        return None
    _require_complete(array)
    return items.reshape(len(array), width, *items.shape[1:])


def _require_complete(array: ArrowArray) -> None:
    if array.null_count:
        raise _MissingValueError


def _is_number(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)


def _is_list(kind: pa.DataType) -> bool:
    return pa.types.is_list(kind) or pa.types.is_large_list(kind)
