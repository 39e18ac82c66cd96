"""What lasts of a transactional id: exactly what its last record says, and what follows from it.

Two identities matter. The *transaction's* (`producer_id`, `producer_epoch`) is the one its markers carry. The
*client's* is the one the next request must carry; it differs while an end that changed the producer id waits for its
markers (KIP-890), and while a prepared transaction is kept for a new client (KIP-939).

Kafka's record has no field for the epoch before this one. It follows from `previous_producer_id`, which is written
only where a repeated request of the previous holder must be recognised: with the same id it held the epoch before,
with another id it had used up all epochs.
"""

from enum import IntEnum
from typing import NamedTuple

from penstock.model.ids import TopicPartition
from penstock.wire.errors import UnknownRecordError
from penstock.wire.generated.records_transaction import TransactionLogValue

NO_PRODUCER_ID = -1
NO_EPOCH = -1
# The last epoch that a client is given. One more exists, so that a client that holds the last can be fenced.
LAST_EPOCH = 32_766
FENCE_EPOCH = 32_767
# A two-phase commit transaction has no timeout; the record says so with this one. (KIP-939)
NO_TIMEOUT_MS = 2_147_483_647
NO_TIME_MS = -1

# The transaction versions that make a difference here: before KIP-890's epoch bump, and with it.
CLIENT_VERSION_1 = 0
CLIENT_VERSION_2 = 2

# 1 is the first version that can carry tagged fields; a cluster of transaction.version 0 is not offered.
RECORD_VERSION = 1


class TransactionStatus(IntEnum):
    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    # These two exist only in flight: a record with one of them is never written.
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def label(self) -> str:
        """As ListTransactions and DescribeTransactions show it."""
        return self.name.title().replace("_", "")

    @property
    def is_prepared(self) -> bool:
        """Decided, and the markers are not all written."""
        return self in (TransactionStatus.PREPARE_COMMIT, TransactionStatus.PREPARE_ABORT)

    @property
    def is_complete(self) -> bool:
        return self in (TransactionStatus.COMPLETE_COMMIT, TransactionStatus.COMPLETE_ABORT)


class Identity(NamedTuple):
    producer_id: int
    epoch: int


NO_IDENTITY = Identity(NO_PRODUCER_ID, NO_EPOCH)


class TransactionState(NamedTuple):
    producer_id: int
    producer_epoch: int
    previous_producer_id: int
    next_producer_id: int
    next_producer_epoch: int
    timeout_ms: int
    status: TransactionStatus
    partitions: frozenset[TopicPartition]
    start_ms: int
    last_update_ms: int
    client_transaction_version: int

    @property
    def identity(self) -> Identity:
        """The transaction's: what its markers carry."""
        return Identity(self.producer_id, self.producer_epoch)

    @property
    def client_identity(self) -> Identity:
        """What the next request must carry."""
        if self.next_producer_id == NO_PRODUCER_ID:
            return self.identity
        return Identity(self.next_producer_id, self.next_producer_epoch)

    @property
    def last_identity(self) -> Identity | None:
        """What the client held before; a request with it repeats the one that was answered last."""
        if self.previous_producer_id == NO_PRODUCER_ID:
            return None
        client = self.client_identity
        if self.previous_producer_id == client.producer_id:
            return Identity(client.producer_id, client.epoch - 1)
        return Identity(self.previous_producer_id, LAST_EPOCH)

    @property
    def is_two_phase(self) -> bool:
        return self.timeout_ms == NO_TIMEOUT_MS

    @property
    def is_kept(self) -> bool:
        """A prepared transaction taken over by a new client: it may be ended and nothing else."""
        return self.status is TransactionStatus.ONGOING and self.next_producer_id != NO_PRODUCER_ID

    @property
    def commits(self) -> bool:
        return self.status in (TransactionStatus.PREPARE_COMMIT, TransactionStatus.COMPLETE_COMMIT)


def state_from_value(value: TransactionLogValue) -> TransactionState:
    try:
        status = TransactionStatus(value.transaction_status)
    except ValueError:
        raise UnknownRecordError(f"transaction status {value.transaction_status} is not known") from None
    if status in (TransactionStatus.DEAD, TransactionStatus.PREPARE_EPOCH_FENCE):
        raise UnknownRecordError(f"transaction status {status.label} is never written")
    next_epoch = value.next_producer_epoch
    if value.next_producer_id != NO_PRODUCER_ID and next_epoch == NO_EPOCH:
        next_epoch = 0  # Kafka writes the next id alone: it always begins with epoch 0 there
    return TransactionState(
        producer_id=value.producer_id,
        producer_epoch=value.producer_epoch,
        previous_producer_id=value.previous_producer_id,
        next_producer_id=value.next_producer_id,
        next_producer_epoch=next_epoch,
        timeout_ms=value.transaction_timeout_ms,
        status=status,
        partitions=frozenset(
            TopicPartition(topic.topic, partition)
            for topic in value.transaction_partitions or ()
            for partition in topic.partition_ids
        ),
        start_ms=value.transaction_start_timestamp_ms,
        last_update_ms=value.transaction_last_update_timestamp_ms,
        client_transaction_version=value.client_transaction_version,
    )


def value_from_state(state: TransactionState) -> TransactionLogValue:
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(state.partitions):
        topics.setdefault(topic, []).append(partition)
    return TransactionLogValue(
        producer_id=state.producer_id,
        previous_producer_id=state.previous_producer_id,
        next_producer_id=state.next_producer_id,
        producer_epoch=state.producer_epoch,
        next_producer_epoch=state.next_producer_epoch,
        transaction_timeout_ms=state.timeout_ms,
        transaction_status=state.status,
        transaction_partitions=[TransactionLogValue.PartitionsSchema(*topic) for topic in topics.items()],
        transaction_last_update_timestamp_ms=state.last_update_ms,
        transaction_start_timestamp_ms=state.start_ms,
        client_transaction_version=state.client_transaction_version,
    )
