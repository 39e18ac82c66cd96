"""Levels of the program's own loggers, by Kafka's words for them. They last until the process ends."""

import logging

from penstock.model.errors import ErrorCode, Refusal

ROOT = "penstock"
_LEVELS = {
    "FATAL": logging.CRITICAL,
    "ERROR": logging.ERROR,
    "WARN": logging.WARNING,
    "INFO": logging.INFO,
    "DEBUG": logging.DEBUG,
    "TRACE": logging.DEBUG,
}
_NAMES = {level: name for name, level in reversed(_LEVELS.items())} | {logging.DEBUG: "DEBUG"}
_SET, _DELETE = 0, 1


def levels() -> dict[str, str]:
    """The effective level of every logger of this program."""
    known = [name for name in logging.root.manager.loggerDict if name == ROOT or name.startswith(f"{ROOT}.")]
    return {name: _word(logging.getLogger(name).getEffectiveLevel()) for name in {ROOT, *known}}


def change_level(name: str, op: int, value: str | None, *, validate_only: bool) -> Refusal | None:
    """Sets a logger's level, or lets it follow its parent again."""
    if name not in levels():
        return Refusal(
            ErrorCode.INVALID_CONFIG, f"there is no logger {name!r}; known are {', '.join(sorted(levels()))}"
        )
    if op not in (_SET, _DELETE):
        return Refusal(ErrorCode.INVALID_REQUEST, f"logger {name}: a level can be set or deleted, nothing else")
    if op == _DELETE and name == ROOT:
        return Refusal(ErrorCode.INVALID_REQUEST, f"logger {name}: the first of all loggers needs a level")
    if op == _SET and (value or "").upper() not in _LEVELS:
        return Refusal(ErrorCode.INVALID_CONFIG, f"logger {name}: {value!r} is not one of {', '.join(_LEVELS)}")
    if not validate_only:
        level = logging.NOTSET if op == _DELETE else _LEVELS[(value or "").upper()]
        logging.getLogger(name).setLevel(level)
    return None


def _word(level: int) -> str:
    return _NAMES.get(level) or next((word for word, number in _LEVELS.items() if number <= level), "DEBUG")
