"""Which formats keys, values and headers have, by what schemas, and what becomes of records that do not fit.

Files are read here, on the driver, so that executors need none.
"""

import base64
import binascii
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from penstock.pipeline.errors import PipelineError

FORMATS = ("binary", "string", "json", "avro", "protobuf")
_NEEDS_SCHEMA = ("json", "avro", "protobuf")
FORMAT_OPTIONS = (
    "keyFormat", "keySchema", "keySchemaFile", "keyMessage", "keyFraming",
    "valueFormat", "valueSchema", "valueSchemaFile", "valueMessage", "valueFraming",
    "headersFormat", "mode",
)  # fmt: skip


class Format(NamedTuple):
    """Of keys or of values. `schema` is what the file or option held; `framed` as a schema registry frames them."""

    name: str = "binary"
    schema: bytes = b""
    message: str = ""
    framed: bool = False

    @property
    def is_plain(self) -> bool:
        return self.name == "binary" and not self.framed


class Formats(NamedTuple):
    key: Format = Format()
    value: Format = Format()
    headers: str = "binary"
    permissive: bool = False

    @property
    def is_plain(self) -> bool:
        return self.key.is_plain and self.value.is_plain and self.headers == "binary"

    @staticmethod
    def parse(values: Mapping[str, str], *, for_sink: bool = False) -> "Formats":
        """From options by their proper names. A sink writes JSON without a schema: its columns have types."""
        mode = values.get("mode", "FAILFAST").upper()
        if mode not in ("FAILFAST", "PERMISSIVE"):
            raise PipelineError(f"mode is FAILFAST or PERMISSIVE, not {mode!r}")
        headers = _choice(values, "headersFormat", ("binary", "string"))
        key, value = (_parse_one(values, prefix, for_sink) for prefix in ("key", "value"))
        return Formats(key, value, headers, mode == "PERMISSIVE")


def _parse_one(values: Mapping[str, str], prefix: str, for_sink: bool) -> Format:
    name = _choice(values, f"{prefix}Format", FORMATS)
    framed = _choice(values, f"{prefix}Framing", ("none", "registry")) == "registry"
    schema = _schema(values, prefix, name)
    message = values.get(f"{prefix}Message", "")
    if name in _NEEDS_SCHEMA and not schema and not (for_sink and name == "json"):
        raise PipelineError(f"{prefix}Format={name} needs {prefix}Schema or {prefix}SchemaFile")
    if name == "protobuf" and not message:
        raise PipelineError(f"{prefix}Format=protobuf needs {prefix}Message: the full name of the message")
    return Format(name, schema, message, framed)


def _schema(values: Mapping[str, str], prefix: str, name: str) -> bytes:
    inline, file = values.get(f"{prefix}Schema"), values.get(f"{prefix}SchemaFile")
    if inline is not None and file is not None:
        raise PipelineError(f"give {prefix}Schema or {prefix}SchemaFile, not both")
    if file is not None:
        try:
            return Path(file).read_bytes()
        except OSError as error:
            raise PipelineError(f"{prefix}SchemaFile cannot be read: {error}") from None
    if inline is None:
        return b""
    if name != "protobuf":
        return inline.encode()
    try:
        return base64.b64decode(inline, validate=True)
    except binascii.Error:
        raise PipelineError(
            f"{prefix}Schema of protobuf is a descriptor set in base64; or give its file as {prefix}SchemaFile"
        ) from None


def _choice(values: Mapping[str, str], name: str, choices: tuple[str, ...]) -> str:
    value = values.get(name, choices[0]).lower()
    if value not in choices:
        raise PipelineError(f"{name} is one of {', '.join(choices)}, not {value!r}")
    return value
