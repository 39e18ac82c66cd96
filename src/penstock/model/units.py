"""Sizes and durations as people write them: `512MiB`, `7d`; and as they read them."""

import re

_BYTES = {
    "": 1, "b": 1,
    "kb": 1000, "mb": 1000**2, "gb": 1000**3, "tb": 1000**4,
    "k": 1024, "m": 1024**2, "g": 1024**3, "t": 1024**4,
    "kib": 1024, "mib": 1024**2, "gib": 1024**3, "tib": 1024**4,
}  # fmt: skip
_MILLIS = {"": 1, "ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def _parse(text: str, units: dict[str, int], what: str) -> int:
    match = re.fullmatch(r"\s*(-?\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", text)
    if not match or match[2].lower() not in units:
        known = ", ".join(u for u in units if u)
        raise ValueError(f"{text!r} is not a {what} (a number, optionally with one of {known})")
    return (
        int(float(match[1]) * units[match[2].lower()]) if "." in match[1] else int(match[1]) * units[match[2].lower()]
    )


def parse_bytes(text: str) -> int:
    return _parse(text, _BYTES, "size")


def parse_millis(text: str) -> int:
    return _parse(text, _MILLIS, "duration")


def format_bytes(count: int) -> str:
    amount = float(count)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(amount) < 1024 or unit == "TiB":
            return f"{count} B" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    raise AssertionError("unreachable")
