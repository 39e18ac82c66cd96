"""Bootstrap addresses as people write them."""

import pytest

from penstock.client.errors import UsageError
from penstock.client.options import ConnectionOptions, parse_bootstrap


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("localhost", [("localhost", 9092)]),
        ("localhost:19092", [("localhost", 19092)]),
        ("a:1, b:2,", [("a", 1), ("b", 2)]),
        (["a:1", "b"], [("a", 1), ("b", 9092)]),
        ("[::1]:9093", [("::1", 9093)]),
        ("[::1]", [("::1", 9092)]),
        ("::1", [("::1", 9092)]),
    ],
)
def test_addresses_are_understood(text: str | list[str], expected: list[tuple[str, int]]) -> None:
    assert parse_bootstrap(text) == expected


@pytest.mark.parametrize(
    "text", ["", " , ", "host:port", "host:0", "host:70000", ":9092", "[::1", "[::1]9092", "h:-1"]
)
def test_what_is_no_address_is_refused_with_a_hint(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_bootstrap(text)
    assert "host:port" in caught.value.hint


def test_arguments_replace_defaults() -> None:
    options = ConnectionOptions("b:1").with_arguments({"client_id": "me", "retry_backoff_ms": 7})
    assert (options.client_id, options.retry_backoff_ms, options.request_timeout_ms) == ("me", 7, 30_000)
