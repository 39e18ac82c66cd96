"""Schemas as Spark writes them, into Arrow: DDL such as `id bigint, tags array<string>`, or the JSON of a StructType.

Spark's own parser lives in its JVM, which executors' Python and the planner's cannot reach.
"""

import json
import re
from typing import Any

import pyarrow as pa

from penstock.pipeline.errors import PipelineError

_TOKEN = re.compile(r"\s*(`(?:[^`]|``)+`|[A-Za-z_][\w]*|\d+|[<>(),:])")
_SIMPLE = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "byte": pa.int8(),
    "smallint": pa.int16(),
    "short": pa.int16(),
    "int": pa.int32(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "long": pa.int64(),
    "float": pa.float32(),
    "real": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}


def parse_spark_schema(text: str, option: str) -> pa.DataType:
    """A struct. Raises `PipelineError` that names the option."""
    try:
        if text.lstrip().startswith("{"):
            return _from_json(json.loads(text))
        return _Ddl(text).schema()
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise PipelineError(f"{option} is no schema that Spark would write ({error}): {text[:200]!r}") from None


class _Ddl:
    def __init__(self, text: str) -> None:
        self._tokens: list[str] = []
        pos = 0
        while pos < len(text.rstrip()):
            found = _TOKEN.match(text, pos)
            if found is None:
                raise ValueError(f"unexpected {text[pos : pos + 10]!r}")
            self._tokens.append(found[1])
            pos = found.end()
        self._at = 0

    def schema(self) -> pa.DataType:
        fields = self._fields(end=None)
        if self._at != len(self._tokens):
            raise ValueError(f"unexpected {self._tokens[self._at]!r}")
        return pa.struct(fields)

    def _peek(self) -> str | None:
        return self._tokens[self._at] if self._at < len(self._tokens) else None

    def _take(self, wanted: str | None = None) -> str:
        token = self._peek()
        if token is None or (wanted is not None and token != wanted):
            raise ValueError(f"expected {wanted or 'more'}, found {token or 'the end'}")
        self._at += 1
        return token

    def _fields(self, end: str | None) -> list[pa.Field]:
        fields = []
        while True:
            name = self._take()
            if name.startswith("`"):
                name = name[1:-1].replace("``", "`")
            if self._peek() == ":":
                self._take()
            fields.append(pa.field(name, self._type()))
            if (self._peek() or "").lower() == "not":
                self._take()
                self._take()
            if self._peek() != ",":
                break
            self._take(",")
        if end is not None:
            self._take(end)
        return fields

    def _type(self) -> pa.DataType:
        name = self._take().lower()
        if name == "array":
            self._take("<")
            inner = self._type()
            self._take(">")
            return pa.list_(inner)
        if name == "map":
            self._take("<")
            key = self._type()
            self._take(",")
            value = self._type()
            self._take(">")
            return pa.map_(key, value)
        if name == "struct":
            self._take("<")
            return pa.struct(self._fields(end=">"))
        if name in ("decimal", "dec", "numeric"):
            return pa.decimal128(*self._numbers(10, 0))
        if name in ("varchar", "char"):
            self._numbers(0)
            return pa.string()
        if name not in _SIMPLE:
            raise ValueError(f"unknown type {name}")
        return _SIMPLE[name]

    def _numbers(self, *defaults: int) -> list[int]:
        numbers = list(defaults)
        if self._peek() == "(":
            self._take()
            for i in range(len(numbers)):
                numbers[i] = int(self._take())
                if self._peek() != ",":
                    break
                self._take()
            self._take(")")
        return numbers


def _from_json(said: Any) -> pa.DataType:
    if isinstance(said, str):
        if said.startswith("decimal("):
            precision, scale = said[8:-1].split(",")
            return pa.decimal128(int(precision), int(scale))
        return _SIMPLE[said]
    if said["type"] == "struct":
        return pa.struct([pa.field(field["name"], _from_json(field["type"])) for field in said["fields"]])
    if said["type"] == "array":
        return pa.list_(_from_json(said["elementType"]))
    if said["type"] == "map":
        return pa.map_(_from_json(said["keyType"]), _from_json(said["valueType"]))
    raise ValueError(f"unknown type {said['type']}")
