"""What a format is to the rest: an Arrow type, bytes into a column of it, and a column of it into bytes.

Bad records never stop a column: they come back beside it, by row, with the reason.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import pyarrow as pa


class BadRecord(ValueError):
    """Bytes that are not what the schema says; the text says why."""


class Decoded(NamedTuple):
    """A column, null where `errors` has a reason."""

    column: pa.Array
    errors: dict[int, str]


class Codec(ABC):
    """Of one format with one schema."""

    type: pa.DataType

    @abstractmethod
    def decode(self, column: pa.Array) -> Decoded: ...

    @abstractmethod
    def encode(self, column: pa.Array) -> pa.Array:
        """To binary. Raises `BadRecord` for a row that the schema has no place for."""


def decode_rows(column: pa.Array, decode_one: Callable[[bytes], Any], kind: pa.DataType) -> Decoded:
    """For formats whose records only their library can read: one by one, then into Arrow at once."""
    values: list[Any] = []
    errors: dict[int, str] = {}
    for row, raw in enumerate(column.to_pylist()):
        value = None
        if raw is not None:
            try:
                value = decode_one(raw)
            except BadRecord as error:
                errors[row] = str(error)
        values.append(value)
    try:
        return Decoded(pa.array(values, kind), errors)
    except (pa.ArrowException, OverflowError, ValueError, TypeError):
        return _one_by_one(values, errors, kind)


def _one_by_one(values: list[Any], errors: dict[int, str], kind: pa.DataType) -> Decoded:
    """Some value does not fit its column's type; find it."""
    for row, value in enumerate(values):
        try:
            pa.array([value], kind)
        except (pa.ArrowException, OverflowError, ValueError, TypeError) as error:
            errors[row] = f"a value does not fit its type: {error}"
            values[row] = None
    return Decoded(pa.array(values, kind), errors)


def encode_rows(column: pa.Array, encode_one: Callable[[Any], bytes]) -> pa.Array:
    rows = column.to_pylist(maps_as_pydicts="strict")
    return pa.array([None if value is None else encode_one(value) for value in rows], pa.binary())


class BinaryCodec(Codec):
    type = pa.binary()

    def decode(self, column: pa.Array) -> Decoded:
        return Decoded(column, {})

    def encode(self, column: pa.Array) -> pa.Array:
        return column.cast(pa.binary())


class StringCodec(Codec):
    type = pa.string()

    def decode(self, column: pa.Array) -> Decoded:
        try:
            return Decoded(column.cast(pa.string()), {})
        except pa.ArrowInvalid:
            return decode_rows(column, _decode_text, pa.string())

    def encode(self, column: pa.Array) -> pa.Array:
        return column.cast(pa.string()).cast(pa.binary())


def _decode_text(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise BadRecord(f"not UTF-8 text: {error.reason} at byte {error.start}") from None
