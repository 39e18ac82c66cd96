"""Points in time as people write them."""

import re
import time
from datetime import UTC, datetime

from penstock.cli.exits import USAGE, Failure
from penstock.model.units import parse_millis

_HINT = "write it as 2026-01-31T12:00:00Z, as -15m (ago), or as milliseconds since 1970"


def parse_time_ms(text: str, now_ms: int | None = None) -> int:
    """ISO 8601 (local time without a zone), a duration ago (`-15m`), or milliseconds since 1970."""
    now = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    text = text.strip()
    if re.fullmatch(r"\d{9,}", text):
        return int(text)
    if text == "now":
        return now
    if text.startswith("-"):
        try:
            return now - parse_millis(text[1:])
        except ValueError:
            raise Failure(f"{text!r} is not a time", hint=_HINT, exit_code=USAGE) from None
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1000)
    except ValueError:
        raise Failure(f"{text!r} is not a time", hint=_HINT, exit_code=USAGE) from None


def format_time(timestamp_ms: int) -> str:
    """UTC, to the millisecond; what is no time is shown as the number it is."""
    try:
        moment = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    except (OverflowError, OSError, ValueError):
        return str(timestamp_ms)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{timestamp_ms % 1000:03d}Z"
