"""Every message of the protocol with its spec, its class, and a strategy that makes it at a version."""

from functools import cache
from importlib import import_module
from typing import NamedTuple

from hypothesis import strategies as st

from penstock.wire.codegen.spec import Field, MessageSpec
from penstock.wire.generate import load_specs
from penstock.wire.struct import Message

_INTEGERS = {
    "int8": (-(2**7), 2**7 - 1),
    "int16": (-(2**15), 2**15 - 1),
    "uint16": (0, 2**16 - 1),
    "int32": (-(2**31), 2**31 - 1),
    "uint32": (0, 2**32 - 1),
    "int64": (-(2**63), 2**63 - 1),
}
_SCALARS: dict[str, st.SearchStrategy[object]] = {
    "bool": st.booleans(),
    "float64": st.floats(allow_nan=False),
    "uuid": st.binary(min_size=16, max_size=16),
    # Long enough to need a varint of two bytes now and then.
    "string": st.text(max_size=8) | st.just("é" * 100),
    "bytes": st.binary(max_size=8) | st.just(b"\0" * 300),
    "records": st.binary(max_size=8) | st.just(b"\1" * 20_000),
    **{name: st.integers(*bounds) for name, bounds in _INTEGERS.items()},
}


class Case(NamedTuple):
    module: str
    spec: MessageSpec

    @property
    def cls(self) -> type[Message]:
        return getattr(import_module(f"penstock.wire.generated.{self.module}"), self.spec.name)

    @property
    def versions(self) -> range:
        return range(self.spec.versions.first, self.spec.versions.last + 1)


ALL_CASES = [Case(module, spec) for module, messages in load_specs().items() for spec in messages]
CASES_BY_NAME = {case.spec.name: case for case in ALL_CASES}


@cache
def messages(name: str, version: int) -> st.SearchStrategy[Message]:
    """Messages that can be encoded at `version` without loss."""
    case = CASES_BY_NAME[name]
    return _structs(case, None, version)


def _structs(case: Case, struct: str | None, version: int) -> st.SearchStrategy[Message]:
    fields = case.spec.fields if struct is None else case.spec.structs[struct].fields
    cls = case.cls if struct is None else getattr(case.cls, struct)
    present = [field for field in fields if version in field.versions]
    return st.builds(cls, **{field.snake: _values(case, field, version) for field in present})


def _values(case: Case, field: Field, version: int) -> st.SearchStrategy[object]:
    if field.is_struct:
        values: st.SearchStrategy[object] = _structs(case, field.element, version)
    else:
        values = _SCALARS[field.element]
    if field.is_array:
        values = st.lists(values, max_size=2)
    return st.none() | values if version in field.nullable else values
