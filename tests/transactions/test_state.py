import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.ids import TopicPartition
from penstock.transactions.state import (
    LAST_EPOCH,
    NO_EPOCH,
    NO_PRODUCER_ID,
    RECORD_VERSION,
    Identity,
    TransactionState,
    TransactionStatus,
    state_from_value,
    value_from_state,
)
from penstock.transactions.transitions import plan_complete, plan_end, plan_init
from penstock.wire.errors import UnknownRecordError
from penstock.wire.generated.records_transaction import TransactionLogKey, TransactionLogValue
from penstock.wire.records import decode_transaction_record, encode_coordinator_key, encode_coordinator_value

LASTING = [status for status in TransactionStatus if status < TransactionStatus.DEAD]
identities = st.builds(Identity, st.integers(0, 2**62), st.integers(0, LAST_EPOCH + 1))


@st.composite
def states(draw: st.DrawFn) -> TransactionState:
    producer = draw(identities)
    successor = draw(st.one_of(st.just(Identity(NO_PRODUCER_ID, NO_EPOCH)), identities))
    return TransactionState(
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        previous_producer_id=draw(st.integers(-1, 2**62)),
        next_producer_id=successor.producer_id,
        next_producer_epoch=successor.epoch,
        timeout_ms=draw(st.integers(0, 2**31 - 1)),
        status=draw(st.sampled_from(LASTING)),
        partitions=draw(st.frozensets(st.builds(TopicPartition, st.sampled_from("abc"), st.integers(0, 99)))),
        start_ms=draw(st.integers(-1, 2**50)),
        last_update_ms=draw(st.integers(0, 2**50)),
        client_transaction_version=draw(st.sampled_from([0, 2])),
    )


@given(states())
def test_a_state_survives_the_log(state: TransactionState) -> None:
    key = encode_coordinator_key(TransactionLogKey("t"))
    value = encode_coordinator_value(value_from_state(state), RECORD_VERSION)
    _, decoded = decode_transaction_record(key, value)
    assert isinstance(decoded, TransactionLogValue)
    assert state_from_value(decoded) == state


def test_records_of_version_0_are_read() -> None:
    value = TransactionLogValue(producer_id=5, producer_epoch=2, transaction_status=4, transaction_partitions=None)
    raw = encode_coordinator_value(value, 0)
    _, decoded = decode_transaction_record(encode_coordinator_key(TransactionLogKey("t")), raw)
    assert isinstance(decoded, TransactionLogValue)
    state = state_from_value(decoded)
    assert state.identity == state.client_identity == Identity(5, 2)
    assert state.last_identity is None
    assert state.partitions == frozenset()


@pytest.mark.parametrize("status", [6, 7, 8, -1])
def test_a_status_that_is_never_written_is_not_guessed_at(status: int) -> None:
    with pytest.raises(UnknownRecordError):
        state_from_value(TransactionLogValue(transaction_status=status))


def test_labels_are_those_of_kafka() -> None:
    assert [status.label for status in TransactionStatus] == [
        "Empty",
        "Ongoing",
        "PrepareCommit",
        "PrepareAbort",
        "CompleteCommit",
        "CompleteAbort",
        "Dead",
        "PrepareEpochFence",
    ]


@given(identities, identities, st.booleans())
def test_markers_shut_out_what_the_client_leaves_behind(
    producer: Identity, successor: Identity, commit: bool
) -> None:
    open_ = plan_init(producer, NO_PRODUCER_ID, 1_000, 0)._replace(status=TransactionStatus.ONGOING)
    prepared = plan_end(open_, commit, 2, successor, producer.producer_id, 1)
    assert prepared.producer_id == producer.producer_id
    assert prepared.client_identity == successor
    if successor != producer and producer.epoch <= LAST_EPOCH:
        assert prepared.producer_epoch == producer.epoch + 1
    complete = plan_complete(prepared, 2)
    assert complete.identity == complete.client_identity == successor
    assert complete.commits == commit
