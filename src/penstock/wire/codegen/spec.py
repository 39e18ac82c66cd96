"""The spec grammar, read into plain objects.

    request NameRequest key=3 versions=0-13 flexible=9+ [listeners=…] [latestVersionUnstable]
      Field: type @versions [nullable 1+, tag 0 12+, default -1, ignorable, key, zerocopy, flexible none]
        Inner: …                fields of the struct that the field's type names
      struct Name @versions     a struct used by more than one field
        Inner: …

Types: bool int8 int16 uint16 int32 uint32 int64 float64 uuid string bytes records, a struct's name, `[]` before
any of them. `#` starts a comment line. A field without versions has those of its tag.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path

LAST = 32767  # the `+` of a version range
FIXED_WIDTH = {
    "bool": ("?", 1),
    "int8": ("b", 1),
    "int16": ("h", 2),
    "uint16": ("H", 2),
    "int32": ("i", 4),
    "uint32": ("I", 4),
    "int64": ("q", 8),
    "float64": ("d", 8),
    "uuid": ("16s", 16),
}
VARIABLE_WIDTH = frozenset({"string", "bytes", "records"})

_HEADER = re.compile(
    r"(?P<kind>[\w-]+) (?P<name>\w+)(?: key=(?P<key>\d+))?"
    r" versions=(?P<versions>\S+) flexible=(?P<flexible>\S+)(?P<rest>.*)"
)
_FIELD = re.compile(r"(?P<name>\w+): (?P<type>\S+) @(?P<versions>\S*)(?: \[(?P<attributes>.*)\])?")
_STRUCT = re.compile(r"struct (?P<name>\w+) @(?P<versions>\S+)")


class SpecError(ValueError):
    """A spec file that does not follow the grammar."""


@dataclass(frozen=True, slots=True)
class Versions:
    """A closed range of versions; empty when `first > last`."""

    first: int
    last: int

    @staticmethod
    def parse(text: str) -> "Versions":
        if text in {"", "none"}:
            return NO_VERSIONS
        if text.endswith("+"):
            return Versions(int(text[:-1]), LAST)
        first, _, last = text.partition("-")
        return Versions(int(first), int(last or first))

    def __and__(self, other: "Versions") -> "Versions":
        both = Versions(max(self.first, other.first), min(self.last, other.last))
        return both if both else NO_VERSIONS

    def hull(self, other: "Versions") -> "Versions":
        if not self or not other:
            return self or other
        return Versions(min(self.first, other.first), max(self.last, other.last))

    def __bool__(self) -> bool:
        return self.first <= self.last

    def __contains__(self, version: int) -> bool:
        return self.first <= version <= self.last

    def covers(self, other: "Versions") -> bool:
        return not other or (self.first <= other.first and other.last <= self.last)


NO_VERSIONS = Versions(0, -1)


@dataclass(slots=True)
class Field:
    name: str
    type: str
    versions: Versions
    nullable: Versions = NO_VERSIONS
    tag: int | None = None
    default: str | None = None  # as written; None when the spec gives none
    ignorable: bool = False
    flexible: bool = True

    @property
    def snake(self) -> str:
        return snake_case(self.name)

    @property
    def is_array(self) -> bool:
        return self.type.startswith("[]")

    @property
    def element(self) -> str:
        return self.type.removeprefix("[]")

    @property
    def is_struct(self) -> bool:
        return self.element not in FIXED_WIDTH and self.element not in VARIABLE_WIDTH

    @property
    def is_fixed(self) -> bool:
        return self.type in FIXED_WIDTH and self.tag is None

    @property
    def defaults_to_null(self) -> bool:
        return self.default in {"null", "None"}


@dataclass(slots=True)
class StructSpec:
    name: str
    fields: list[Field] = field(default_factory=list)


@dataclass(slots=True)
class MessageSpec:
    kind: str
    name: str
    key: int | None
    versions: Versions
    flexible: Versions
    listeners: tuple[str, ...] = ()
    latest_version_unstable: bool = False
    fields: list[Field] = field(default_factory=list)
    structs: dict[str, StructSpec] = field(default_factory=dict)

    @property
    def snake(self) -> str:
        return snake_case(self.name)

    @property
    def api_name(self) -> str:
        return re.sub(r"(Request|Response)$", "", self.name)


def snake_case(name: str) -> str:
    name = re.sub(r"([A-Z]+)([A-Z][a-z])", r"\1_\2", name)
    return re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name).lower()


def load_spec(path: Path) -> list[MessageSpec]:
    return parse_spec(path.read_text(encoding="utf-8"))


def parse_spec(text: str) -> list[MessageSpec]:
    messages: list[MessageSpec] = []
    # Field lists by indentation: the list that a line indented so far belongs to.
    open_lists: list[list[Field]] = []
    for line in text.splitlines():
        content = line.strip()
        if not content or content.startswith("#"):
            continue
        depth = (len(line) - len(line.lstrip())) // 2
        if depth == 0:
            messages.append(_parse_header(content))
            open_lists = [messages[-1].fields]
            continue
        if not messages or depth > len(open_lists):
            raise SpecError(f"wrong indentation: {line!r}")
        del open_lists[depth:]
        _parse_member(content, messages[-1], open_lists)
    for message in messages:
        _check(message)
    return messages


def _parse_header(content: str) -> MessageSpec:
    match = _HEADER.fullmatch(content)
    if match is None:
        raise SpecError(f"not a message header: {content!r}")
    listeners = re.search(r"listeners=(\S+)", match["rest"])
    return MessageSpec(
        kind=match["kind"],
        name=match["name"],
        key=int(match["key"]) if match["key"] else None,
        versions=Versions.parse(match["versions"]),
        flexible=Versions.parse(match["flexible"]),
        listeners=tuple(listeners[1].split(",")) if listeners else (),
        latest_version_unstable="latestVersionUnstable" in match["rest"],
    )


def _parse_member(content: str, message: MessageSpec, open_lists: list[list[Field]]) -> None:
    common = _STRUCT.fullmatch(content)
    if common is not None:
        struct = StructSpec(common["name"])
        message.structs[struct.name] = struct
        open_lists.append(struct.fields)
        return
    member = _parse_field(content)
    open_lists[-1].append(member)
    if member.is_struct:
        # An inline struct's fields follow, indented; a common struct's are elsewhere and this list stays unused.
        struct = message.structs.get(member.element) or StructSpec(member.element)
        message.structs[struct.name] = struct
        open_lists.append([] if struct.fields else struct.fields)


def _parse_field(content: str) -> Field:
    match = _FIELD.fullmatch(content)
    if match is None:
        raise SpecError(f"not a field: {content!r}")
    parsed = Field(match["name"], match["type"], Versions.parse(match["versions"]))
    for attribute in filter(None, (match["attributes"] or "").split(", ")):
        word, _, rest = attribute.partition(" ")
        if word == "nullable":
            parsed.nullable = Versions.parse(rest)
        elif word == "tag":
            tag, _, tag_versions = rest.partition(" ")
            parsed.tag = int(tag)
            parsed.versions = parsed.versions or Versions.parse(tag_versions)
            if parsed.versions != Versions.parse(tag_versions):
                raise SpecError(f"tagged in some of its versions only: {content!r}")
        elif word == "default":
            parsed.default = rest
        elif word == "ignorable":
            parsed.ignorable = True
        elif attribute == "flexible none":
            parsed.flexible = False
        elif word not in {"key", "zerocopy"}:
            raise SpecError(f"unknown attribute {attribute!r} in {content!r}")
    return parsed


def _check(message: MessageSpec) -> None:
    for struct in message.structs.values():
        if not struct.fields:
            raise SpecError(f"{message.name}: struct {struct.name} has no fields")
