"""Errors: the right family, retriable or not, and always a sentence."""

import pytest

from penstock.client.errors import (
    AuthorizationError,
    BrokerError,
    GroupError,
    InvalidSetting,
    OffsetError,
    ProducerFenced,
    RecordRefused,
    TopicError,
    Unsupported,
    broker_error,
    raise_for,
)
from penstock.model.errors import ErrorCode


@pytest.mark.parametrize(
    ("code", "family", "retriable"),
    [
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, TopicError, True),
        (ErrorCode.TOPIC_ALREADY_EXISTS, TopicError, False),
        (ErrorCode.NON_EMPTY_GROUP, GroupError, False),
        (ErrorCode.NOT_COORDINATOR, GroupError, True),
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, AuthorizationError, False),
        (ErrorCode.INVALID_CONFIG, InvalidSetting, False),
        (ErrorCode.MESSAGE_TOO_LARGE, RecordRefused, False),
        (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ProducerFenced, False),
        (ErrorCode.OFFSET_OUT_OF_RANGE, OffsetError, False),
        (ErrorCode.UNSUPPORTED_VERSION, Unsupported, False),
        (ErrorCode.NOT_ENOUGH_REPLICAS, BrokerError, True),
    ],
)
def test_families(code: ErrorCode, family: type[BrokerError], retriable: bool) -> None:
    error = broker_error(code, what="orders-0")
    assert type(error) is family
    assert error.retriable is retriable
    assert (error.code, error.name) == (code, code.name)
    assert str(error).startswith("orders-0: ")


def test_a_code_of_a_newer_broker_is_told_as_a_number() -> None:
    error = broker_error(9999)
    assert error.name == "ERROR_9999"
    assert "9999" in str(error)
    assert not error.retriable


def test_the_brokers_own_words_are_kept_and_not_doubled() -> None:
    assert str(broker_error(36, "topic 'a' exists", what="topic 'a'")) == "topic 'a' exists"
    assert str(broker_error(36, "no", what="topic 'a'")) == "topic 'a': no"


def test_no_error_is_no_error() -> None:
    raise_for(0)
    with pytest.raises(TopicError):
        raise_for(3)
