"""Lines of Python with indentation, and the names and literals that generated code uses."""

from collections.abc import Iterator
from contextlib import contextmanager

from penstock.wire.codegen.layout import Window
from penstock.wire.codegen.spec import Field, MessageSpec, snake_case

_PYTHON_TYPES = {
    "bool": "bool",
    "float64": "float",
    "uuid": "bytes",
    "string": "str",
    "bytes": "bytes",
    "records": "Buffer",
}


class Lines:
    def __init__(self) -> None:
        self._lines: list[str] = []
        self._depth = 0

    def add(self, *lines: str) -> None:
        for line in lines:
            self._lines.append("    " * self._depth + line if line else "")

    @contextmanager
    def indented(self, opening: str) -> Iterator[None]:
        self.add(opening)
        self._depth += 1
        yield
        self._depth -= 1

    def text(self) -> str:
        return "\n".join(self._lines) + "\n"


def class_path(message: MessageSpec, struct: str | None) -> str:
    return message.name if struct is None else f"{message.name}.{struct}"


def alias(message: MessageSpec, struct: str | None) -> str:
    """The module-level name by which functions reach a class: one lookup instead of two."""
    return message.name if struct is None else f"_{message.name}{struct}"


def function_name(verb: str, message: MessageSpec, struct: str | None, window: Window) -> str:
    tail = f"_{snake_case(struct)}" if struct is not None else ""
    return f"_{verb}_{message.snake}{tail}_{'flexible' if window.flexible else 'plain'}"


def packer_suffix(codes: str) -> str:
    """`hiq` for ">hiq"; signs that cannot stand in a name are spelled out."""
    return codes.replace("16s", "u").replace("?", "o")


def python_type(message: MessageSpec, field: Field) -> str:
    if field.is_struct:
        element = class_path(message, field.element)
    else:
        element = _PYTHON_TYPES.get(field.element, "int")
    name = f"list[{element}]" if field.is_array else element
    return f"{name} | None" if field.nullable or field.defaults_to_null else name


def default_literal(message: MessageSpec, field: Field) -> str:
    """An expression that makes the field's default afresh."""
    if field.defaults_to_null:
        return "None"
    if field.is_array:
        return "[]"
    if field.is_struct:
        return f"{alias(message, field.element)}()"
    return _scalar_default(field)


def _scalar_default(field: Field) -> str:
    if field.type in {"bytes", "records"}:
        return 'b""'
    if field.type == "uuid":
        return "ZERO_UUID"
    if field.type == "string":
        return repr((field.default or "").strip("'\"")).replace("'", '"')
    if field.type == "bool":
        return "True" if (field.default or "").lower() == "true" else "False"
    if field.type == "float64":
        return repr(float(field.default or 0))
    return str(int(field.default or "0", 0))


def is_fresh(field: Field) -> bool:
    """Whether the default is made anew for each instance."""
    return not field.defaults_to_null and (field.is_array or field.is_struct)
