"""What a message looks like in a window of versions, worked out before any code is written.

Each struct is written once for the flexible and once for the plain versions of its message, so the window of
versions that one function serves is known; conditions that hold in the whole window disappear.
"""

from dataclasses import dataclass

from penstock.wire.codegen.spec import FIXED_WIDTH, Field, MessageSpec, Versions

TypeName = str


@dataclass(frozen=True, slots=True)
class Window:
    """One function's versions, all flexible or all plain."""

    versions: Versions
    flexible: bool


def windows_of(message: MessageSpec) -> list[Window]:
    flexible = message.versions & message.flexible
    if not flexible:
        return [Window(message.versions, False)]
    plain = message.versions & Versions(0, flexible.first - 1)
    windows = [Window(plain, False)] if plain else []
    return [*windows, Window(flexible, True)]


def struct_versions(message: MessageSpec, window: Window) -> dict[str, Versions]:
    """Versions in which each struct can be met inside `window`, in the order of first use."""
    met: dict[str, Versions] = {}
    pending = [(message.fields, window.versions)]
    while pending:
        fields, versions = pending.pop(0)
        for field in fields:
            reach = field.versions & versions
            if field.is_struct and reach:
                known = met.get(field.element)
                hull = known.hull(reach) if known else reach
                if hull != known:
                    met[field.element] = hull
                    pending.append((message.structs[field.element].fields, hull))
    return met


def condition(versions: Versions, window: Versions) -> str | None:
    """The test for `versions` inside `window`: "" when always true, None when never."""
    inside = versions & window
    if not inside:
        return None
    if versions.covers(window):
        return ""
    if inside.last == window.last:
        return f"version >= {inside.first}"
    if inside.first == window.first:
        return f"version <= {inside.last}"
    if inside.first == inside.last:
        return f"version == {inside.first}"
    return f"{inside.first} <= version <= {inside.last}"


@dataclass(slots=True)
class Block:
    """Consecutive untagged fields under one condition."""

    condition: str
    versions: Versions
    runs: list[list[Field]]

    @property
    def fields(self) -> list[Field]:
        return [field for run in self.runs for field in run]


def blocks_of(fields: list[Field], window: Versions) -> list[Block]:
    """Untagged fields present in `window`; fixed-width neighbours are joined into runs of one struct call."""
    blocks: list[Block] = []
    for field in fields:
        test = condition(field.versions, window)
        if test is None or field.tag is not None:
            continue
        if not blocks or blocks[-1].condition != test:
            blocks.append(Block(test, field.versions & window, []))
        runs = blocks[-1].runs
        if field.is_fixed and runs and runs[-1][-1].is_fixed:
            runs[-1].append(field)
        else:
            runs.append([field])
    return blocks


def absent_fields(fields: list[Field], window: Versions) -> list[Field]:
    return [field for field in fields if condition(field.versions, window) is None]


def tagged_fields(fields: list[Field], window: Versions) -> list[Field]:
    present = [f for f in fields if f.tag is not None and condition(f.versions, window) is not None]
    return sorted(present, key=lambda f: f.tag or 0)


def run_format(run: list[Field]) -> tuple[str, int]:
    codes = [FIXED_WIDTH[field.type] for field in run]
    return "".join(code for code, _ in codes), sum(width for _, width in codes)


def nullable_test(field: Field, window: Versions) -> str | None:
    """Where in `window` the field may be null: "" always, None never, else the test."""
    return condition(field.nullable, field.versions & window)
