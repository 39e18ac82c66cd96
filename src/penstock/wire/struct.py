"""What every generated class is: a bag of slots that compares and prints by value."""

from typing import TYPE_CHECKING, Any, ClassVar

# Stands for "not given" where the default must be made afresh (an empty list, a nested struct).
UNSET: Any = object()
# `FLEXIBLE_FROM` of messages that have no flexible version, so that `version >= FLEXIBLE_FROM` always works.
NEVER_FLEXIBLE = 32767


class Struct:
    __slots__: tuple[str, ...] = ()
    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.__slots__)

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__slots__)
        return f"{type(self).__qualname__}({fields})"


class Message(Struct):
    """A top-level struct: it has versions and can be encoded by itself."""

    __slots__ = ()
    MIN_VERSION: ClassVar[int]
    MAX_VERSION: ClassVar[int]
    FLEXIBLE_FROM: ClassVar[int]

    if TYPE_CHECKING:

        @staticmethod
        def decode(buf: bytes | bytearray | memoryview, pos: int, version: int) -> tuple[Any, int]: ...

        def encode(self, version: int, out: bytearray) -> None: ...


class ApiMessage(Message):
    __slots__ = ()
    API_KEY: ClassVar[int]


class RecordMessage(Message):
    """A persisted record; `RECORD_KEY` is its type in the log it lives in."""

    __slots__ = ()
    RECORD_KEY: ClassVar[int]
