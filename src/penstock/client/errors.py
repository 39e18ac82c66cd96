"""What the client raises: one class per family, each with a code (where a broker gave one) and a hint.

`retriable` says whether trying the same call again may help; the client itself has already tried until its
time limit when such an error reaches the caller.
"""

from penstock.model.errors import ErrorCode, describe_error


class ClientError(Exception):
    """Everything this client raises on purpose."""

    code: int | None = None
    retriable = False
    hint = ""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        if hint is not None:
            self.hint = hint


class ConnectionFailed(ClientError):
    """No broker could be reached, or the connection broke."""

    retriable = True
    hint = "check that the broker runs and that the bootstrap address is right"


class RequestTimedOut(ClientError):
    """A broker did not answer within the time limit."""

    retriable = True
    hint = "the broker is slow or unreachable; raise the timeout or look at the broker's log"


class BufferFull(ClientError):
    """The producer's buffer stayed full for longer than `max_block_ms`."""

    retriable = True
    hint = "records are produced faster than the brokers take them: slow down, or raise buffer_bytes"


class DeliveryTimedOut(ClientError):
    """A record was not acknowledged within `delivery_timeout_ms`; it may or may not be in the log."""

    hint = "look at the broker's health; raise delivery_timeout_ms if outages last longer than it"


class Closed(ClientError):
    """The call came after `stop`, or `stop` cut it short."""

    hint = "call start() first, or use the client in an `async with` block"


class UsageError(ClientError, ValueError):
    """Arguments that contradict each other or the state of the client."""


class CommitFailed(ClientError):
    """The group has moved on: the partitions whose offsets were committed now belong to others."""

    hint = "process faster between polls, raise max_poll_interval_ms, or lower max_poll_records"


class NoOffset(ClientError):
    """A partition has no committed offset, or one out of range, and auto_offset_reset is `none`."""

    hint = "seek to a position, or set auto_offset_reset to earliest or latest"


class CorruptRecords(ClientError):
    """A fetched batch failed its CRC or could not be decoded."""

    hint = "seek past the batch to go on without it; `penstock log dump` shows what is on disk"


class BrokerError(ClientError):
    """A broker refused. `code` is Kafka's error code."""

    def __init__(self, code: int, message: str | None = None, *, what: str = "") -> None:
        sentence = message or describe_error(code)
        super().__init__(f"{what}: {sentence}" if what and what not in sentence else sentence)
        self.code = code
        self.name = ErrorCode(code).name if code in ErrorCode._value2member_map_ else f"ERROR_{code}"
        self.retriable = self.name != f"ERROR_{code}" and ErrorCode(code).retriable
        self.hint = _HINTS.get(code, type(self).hint)


class TopicError(BrokerError):
    """About a topic or partition: unknown, exists already, not a valid name, without a leader."""


class GroupError(BrokerError):
    """About a consumer group: unknown, not empty, rebalancing, fenced."""


class AuthorizationError(BrokerError):
    """Not allowed."""

    hint = "ask for the needed ACL, or use other credentials"


class InvalidSetting(BrokerError):
    """A configuration, partition count, replication factor or assignment that is not valid."""


class RecordRefused(BrokerError):
    """The broker refused a record: too large, wrong timestamp, corrupt, invalid."""


class ProducerFenced(BrokerError):
    """The idempotent producer's state no longer matches the broker's."""


class OffsetError(BrokerError):
    """An offset outside the range that the partition holds, or not available yet."""


class Unsupported(BrokerError):
    """The broker does not serve this API, version or format."""

    hint = "the broker is older or newer than this client; see docs/compatibility.md"


_FAMILIES: dict[type[BrokerError], tuple[ErrorCode, ...]] = {
    TopicError: (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        ErrorCode.TOPIC_ALREADY_EXISTS,
        ErrorCode.TOPIC_DELETION_DISABLED,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
    ),
    GroupError: (
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
        ErrorCode.INVALID_GROUP_ID,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.INVALID_SESSION_TIMEOUT,
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.NON_EMPTY_GROUP,
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.MEMBER_ID_REQUIRED,
        ErrorCode.GROUP_MAX_SIZE_REACHED,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
        ErrorCode.OFFSET_METADATA_TOO_LARGE,
        ErrorCode.UNSTABLE_OFFSET_COMMIT,
    ),
    AuthorizationError: (
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.SASL_AUTHENTICATION_FAILED,
        ErrorCode.ILLEGAL_SASL_STATE,
        ErrorCode.UNSUPPORTED_SASL_MECHANISM,
    ),
    InvalidSetting: (
        ErrorCode.INVALID_PARTITIONS,
        ErrorCode.INVALID_REPLICATION_FACTOR,
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        ErrorCode.INVALID_CONFIG,
        ErrorCode.POLICY_VIOLATION,
        ErrorCode.INVALID_REQUEST,
    ),
    RecordRefused: (
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.INVALID_TIMESTAMP,
        ErrorCode.INVALID_RECORD,
        ErrorCode.INVALID_REQUIRED_ACKS,
    ),
    ProducerFenced: (
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.DUPLICATE_SEQUENCE_NUMBER,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.PRODUCER_FENCED,
    ),
    OffsetError: (ErrorCode.OFFSET_OUT_OF_RANGE, ErrorCode.OFFSET_NOT_AVAILABLE),
    Unsupported: (
        ErrorCode.UNSUPPORTED_VERSION,
        ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
        ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
    ),
}
_FAMILY_OF = {code: family for family, codes in _FAMILIES.items() for code in codes}

_HINTS: dict[int, str] = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "create it with `penstock topic create`, or check the spelling",
    ErrorCode.INVALID_TOPIC_EXCEPTION: "use 1 to 249 letters, digits, dots, dashes and underscores",
    ErrorCode.TOPIC_ALREADY_EXISTS: "pick another name, or change the existing topic with `penstock topic alter`",
    ErrorCode.INVALID_REPLICATION_FACTOR: "ask for at most as many replicas as there are brokers",
    ErrorCode.INVALID_CONFIG: "docs/settings.md lists every setting with its range",
    ErrorCode.INVALID_PARTITIONS: "partitions can only be added: ask for more than the topic has",
    ErrorCode.NON_EMPTY_GROUP: "stop the group's members first",
    ErrorCode.GROUP_ID_NOT_FOUND: "`penstock group list` shows the groups there are",
    ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC: "stop the members that read this topic first",
    ErrorCode.REBALANCE_IN_PROGRESS: "poll again: the group is handing out partitions anew",
    ErrorCode.UNKNOWN_MEMBER_ID: "stop the group's members first, or try again when it is idle",
    ErrorCode.FENCED_INSTANCE_ID: "give each running member a group_instance_id of its own",
    ErrorCode.MESSAGE_TOO_LARGE: "send smaller records, or raise the topic's max.message.bytes",
    ErrorCode.INVALID_TIMESTAMP: "leave the timestamp out, or see the topic's message.timestamp settings",
    ErrorCode.INVALID_RECORD: "a compacted topic needs a key on every record",
    ErrorCode.OFFSET_OUT_OF_RANGE: "seek within the range that `penstock topic describe` shows",
    ErrorCode.NOT_ENOUGH_REPLICAS: "bring replicas back, or lower the topic's min.insync.replicas",
    ErrorCode.KAFKA_STORAGE_ERROR: "the broker's disk is full or failing; see its log",
}


def broker_error(code: int, message: str | None = None, *, what: str = "") -> BrokerError:
    """The exception for an error code, in the class of its family."""
    family = _FAMILY_OF.get(ErrorCode(code), BrokerError) if code in ErrorCode._value2member_map_ else BrokerError
    return family(code, message, what=what)


def raise_for(code: int, message: str | None = None, *, what: str = "") -> None:
    """Raises unless the code says that all is well."""
    if code != ErrorCode.NONE:
        raise broker_error(code, message, what=what)


def no_partition(topic: str, partition_count: int, partition: int) -> TopicError:
    return TopicError(
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        f"topic {topic!r} has {partition_count} partitions, no partition {partition}",
    )
