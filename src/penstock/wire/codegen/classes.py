"""The class of a message and, nested in it, of every struct it uses."""

from penstock.wire.codegen.spec import LAST, Field, MessageSpec
from penstock.wire.codegen.text import Lines, class_path, default_literal, is_fresh, python_type

_BASES = {"request": "ApiMessage", "response": "ApiMessage"}


def base_class(message: MessageSpec) -> str:
    if message.key is None:
        return "Message"
    return _BASES.get(message.kind, "RecordMessage")


def emit_class(lines: Lines, message: MessageSpec) -> None:
    with lines.indented(f"class {message.name}({base_class(message)}):"):
        _emit_constants(lines, message)
        _emit_body(lines, message, message.fields)
        for struct in message.structs.values():
            lines.add("")
            with lines.indented(f"class {struct.name}(Struct):"):
                _emit_body(lines, message, struct.fields)
        _emit_methods(lines, message)


def _emit_constants(lines: Lines, message: MessageSpec) -> None:
    if message.key is not None:
        name = "API_KEY" if message.kind in _BASES else "RECORD_KEY"
        lines.add(f"{name} = {message.key}")
    lines.add(f"MIN_VERSION = {message.versions.first}", f"MAX_VERSION = {message.versions.last}")
    lines.add(f"FLEXIBLE_FROM = {message.flexible.first if message.flexible else LAST}")


def _emit_body(lines: Lines, message: MessageSpec, fields: list[Field]) -> None:
    names = "".join(f'"{field.snake}", ' for field in fields).rstrip()
    lines.add(f"__slots__ = ({names})")
    if not fields:
        return
    lines.add("")
    lines.add("def __init__(")
    lines.add("    self,")
    for field in fields:
        default = "UNSET" if is_fresh(field) else default_literal(message, field)
        lines.add(f"    {field.snake}: {python_type(message, field)} = {default},")
    with lines.indented(") -> None:"):
        for field in fields:
            lines.add(f"self.{field.snake} = {_initial(message, field)}")


def _initial(message: MessageSpec, field: Field) -> str:
    if not is_fresh(field):
        return field.snake
    fresh = "[]" if field.is_array else f"{class_path(message, field.element)}()"
    return f"{fresh} if {field.snake} is UNSET else {field.snake}"


def _emit_methods(lines: Lines, message: MessageSpec) -> None:
    lines.add("", "@staticmethod")
    with lines.indented(f"def decode(buf: Buffer, pos: int, version: int) -> tuple[{message.name}, int]:"):
        lines.add(f"return decode_{message.snake}(buf, pos, version)")
    lines.add("")
    with lines.indented("def encode(self, version: int, out: bytearray) -> None:"):
        lines.add(f"encode_{message.snake}(self, version, out)")
