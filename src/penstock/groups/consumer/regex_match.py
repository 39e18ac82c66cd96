"""Topic names against regular expressions, with the syntax and the guarantees of RE2.

Clients are promised RE2 (KIP-848, as Kafka uses RE2/J): no backreferences, no look-around, time linear in the name.
So this is RE2 itself, by its Python binding, which is imported when the first group subscribes by an expression: it
costs 30 ms and 4 MB, and most brokers never need it. Called in the pool.
"""

from collections.abc import Iterable
from typing import Any


class InvalidRegex(ValueError):
    """Not a regular expression as RE2 understands it; the message says why."""


def compile_regex(regex: str) -> Any:
    import re2

    options = re2.Options()
    options.log_errors = False
    options.never_capture = True
    try:
        return re2.compile(regex, options)
    except re2.error as error:
        reason = error.args[0] if error.args else ""
        text = reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)
        raise InvalidRegex(text) from None


def matching_topics(regex: str, names: Iterable[str]) -> frozenset[str]:
    """The names that the expression matches as a whole. Raises `InvalidRegex`."""
    match = compile_regex(regex).fullmatch
    # As bytes: the binding spends most of its time on translating positions in text.
    return frozenset(name for name in names if match(name.encode()) is not None)
