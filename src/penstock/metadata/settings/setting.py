"""One setting: its name, type, bounds and meaning; how its text is read and written; how a wrong one is refused.

Settings are declared as annotated fields of a frozen struct, so that name, type, default and documentation stand in
one line and code reads them as plain attributes:

    message_max_bytes: Annotated[int, Int("Largest batch …", at_least=0)] = 1_048_588

The field `message_max_bytes` is Kafka's `message.max.bytes`: `_` and `.` map one to one, no name holds both.
Hard rules: a name is declared once; a setting without effect says why (`no_effect`); every refusal names the setting,
the value and the reason.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from typing import Any, get_type_hints

from msgspec import Struct

from penstock.model.units import parse_bytes, parse_millis

LONG_MAX = (1 << 63) - 1
INT_MAX = (1 << 31) - 1
DOUBLE_MAX = 1.7976931348623157e308

Value = bool | int | float | str | tuple[str, ...] | None
Raw = Value | list[Any]

# How a broker setting may change: at start only, or while running, for one broker or the whole cluster.
READ_ONLY = "read-only"
CLUSTER_WIDE = "cluster-wide"


class SettingError(ValueError):
    """A setting that cannot be taken; the text is fit for a user."""

    def __init__(self, name: str, value: object, reason: str) -> None:
        self.name = name
        self.value = value
        self.reason = reason
        shown = "" if value is None else f" = {value!r}"
        super().__init__(f"setting {name}{shown}: {reason}")


class UnknownSetting(SettingError):
    """No setting has this name; `nearest` is the one that was probably meant."""

    def __init__(self, name: str, reason: str, nearest: str | None) -> None:
        super().__init__(name, None, reason)
        self.nearest = nearest


class About:
    """What a declaration says about its setting. One subclass per type that Kafka's DescribeConfigs knows."""

    type_code = 0
    type_name = ""

    def __init__(
        self,
        doc: str,
        *,
        at_least: float | None = None,
        at_most: float | None = None,
        choices: tuple[str, ...] = (),
        update: str = READ_ONLY,
        no_effect: str = "",
        synonyms: tuple[str, ...] = (),
        kafka_default: str | None = None,
    ) -> None:
        self.doc = doc
        self.at_least = at_least
        self.at_most = at_most
        self.choices = choices
        self.update = update
        self.no_effect = no_effect
        self.synonyms = synonyms
        self.kafka_default = kafka_default

    def read(self, name: str, raw: Raw) -> Value:
        raise AssertionError("only the typed declarations below are used")

    def limits(self) -> str:
        """The valid values, for the settings page and for refusals."""
        if self.choices:
            return ", ".join(self.choices)
        if self.at_least is not None and self.at_most is not None:
            return f"{self.at_least} to {self.at_most}"
        if self.at_least is not None:
            return f"at least {self.at_least}"
        return f"at most {self.at_most}" if self.at_most is not None else ""


class Bool(About):
    type_code, type_name = 1, "boolean"

    def read(self, name: str, raw: Raw) -> bool:
        text = str(raw).strip().lower()
        if text not in ("true", "false"):
            raise SettingError(name, raw, "it must be true or false")
        return text == "true"


class Text(About):
    type_code, type_name = 2, "string"

    def read(self, name: str, raw: Raw) -> str:
        text = str(raw).strip()
        if self.choices and text not in self.choices:
            raise SettingError(name, raw, f"it must be one of {', '.join(self.choices)}{_hint(text, self.choices)}")
        return text


class Int(About):
    type_code, type_name = 3, "int"
    low, high = -(1 << 31), INT_MAX

    def read(self, name: str, raw: Raw) -> int:
        value = _whole_number(name, raw)
        low = self.low if self.at_least is None else max(self.low, int(self.at_least))
        high = self.high if self.at_most is None else min(self.high, int(self.at_most))
        if value < low:
            raise SettingError(name, raw, f"it must be at least {low}")
        if value > high:
            raise SettingError(name, raw, f"it must be at most {high}")
        return value


class Short(Int):
    type_code, type_name = 4, "short"
    low, high = -(1 << 15), (1 << 15) - 1


class Long(Int):
    type_code, type_name = 5, "long"
    low, high = -(1 << 63), LONG_MAX


class Double(About):
    type_code, type_name = 6, "double"

    def read(self, name: str, raw: Raw) -> float:
        try:
            value = float(str(raw))
        except ValueError:
            raise SettingError(name, raw, "it must be a number") from None
        below = self.at_least is not None and value < self.at_least
        above = self.at_most is not None and value > self.at_most
        if below or above or value != value:
            raise SettingError(name, raw, f"it must be {self.limits()}")
        return value


class List(About):
    type_code, type_name = 7, "list"

    def read(self, name: str, raw: Raw) -> tuple[str, ...]:
        parts = [str(p) for p in raw] if isinstance(raw, list | tuple) else str(raw).split(",")
        items = tuple(p.strip() for p in parts if p.strip())
        for item in items if self.choices else ():
            if item not in self.choices:
                raise SettingError(name, raw, f"{item!r} is not one of {', '.join(self.choices)}")
        return items


class BrokerIds(List):
    def read(self, name: str, raw: Raw) -> tuple[str, ...]:
        items = super().read(name, raw)
        for item in items:
            if not (item.isascii() and item.isdigit()):
                raise SettingError(name, raw, f"{item!r} is not the id of a broker")
        return items


class Setting:
    """A declaration joined with its name, field, default and nullability."""

    __slots__ = ("about", "default", "field", "name", "nullable")

    def __init__(self, field: str, about: About, default: Value, nullable: bool) -> None:
        self.field = field
        self.name = field.replace("_", ".")
        self.about = about
        self.default = default
        self.nullable = nullable

    def parse(self, raw: Raw) -> Value:
        """The typed value of what a user, a file or a record says. Raises `SettingError`."""
        if raw is None or (raw == "" and self.nullable):
            if self.nullable:
                return None
            raise SettingError(self.name, None, "it needs a value")
        return self.about.read(self.name, raw)

    def format(self, value: Value) -> str | None:
        """Kafka's text form, as DescribeConfigs shows it and ConfigRecord stores it."""
        if value is None:
            return None
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, tuple):
            return ",".join(value)
        return str(value)


class Catalogue:
    """All settings of one scope, by name; the only place that knows which names exist."""

    def __init__(self, scope: str, settings: Iterable[Setting], hints: Mapping[str, str] | None = None) -> None:
        self.scope = scope
        self.by_name = {setting.name: setting for setting in settings}
        self._hints = hints or {}

    def find(self, name: str) -> Setting:
        setting = self.by_name.get(name)
        if setting is None:
            raise self.unknown(name)
        return setting

    def unknown(self, name: str) -> UnknownSetting:
        if name in self._hints:
            return UnknownSetting(name, self._hints[name], None)
        nearest = nearest_of(name, self.by_name)
        hint = f"; did you mean {nearest}?" if nearest else ""
        return UnknownSetting(name, f"there is no {self.scope} setting of this name{hint}", nearest)

    def __iter__(self) -> Iterator[Setting]:
        return iter(self.by_name.values())


def declared(struct: type[Struct]) -> list[Setting]:
    """The settings that a struct's annotated fields declare, in order of declaration."""
    found = []
    fields: tuple[str, ...] = struct.__struct_fields__
    values: tuple[Any, ...] = struct.__struct_defaults__  # of the last fields
    defaults = dict(zip(fields[len(fields) - len(values) :], values, strict=True))
    for field, hint in get_type_hints(struct, include_extras=True).items():
        about = next((m for m in getattr(hint, "__metadata__", ()) if isinstance(m, About)), None)
        if about is not None:
            nullable = type(None) in getattr(hint.__origin__, "__args__", ())
            found.append(Setting(field, about, defaults.get(field), nullable))
    return found


def nearest_of(name: str, names: Iterable[str]) -> str | None:
    """The known name that a wrong one most resembles, or None."""
    from difflib import get_close_matches  # only when somebody mistyped

    matches = get_close_matches(name, list(names), n=1, cutoff=0.6)
    return matches[0] if matches else None


def _hint(text: str, choices: Iterable[str]) -> str:
    nearest = nearest_of(text.lower(), choices)
    return f"; did you mean {nearest}?" if nearest else ""


@cache
def _unit_parser(name: str) -> Callable[[str], int] | None:
    """`512MiB` is welcome where a setting counts bytes and `7d` where it counts milliseconds."""
    if name.endswith(("bytes", "bytes.per.second", ".bytes.per.connection")):
        return parse_bytes
    return parse_millis if name.endswith(".ms") else None


def _whole_number(name: str, raw: Raw) -> int:
    if isinstance(raw, int) and not isinstance(raw, bool):
        return raw
    text = str(raw).strip()
    parse = _unit_parser(name)
    try:
        return int(text) if parse is None else parse(text)
    except ValueError as error:
        raise SettingError(name, raw, "it must be a whole number" if parse is None else str(error)) from None
