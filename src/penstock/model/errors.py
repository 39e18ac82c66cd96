"""Kafka's error codes: refusals are values.

A handler answers with an `ErrorCode`; where more can be said, with a `Refusal` that carries the sentence
shown to the user: what was refused, why, and what to do.
"""

from enum import IntEnum
from typing import NamedTuple


class ErrorCode(IntEnum):
    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    INVALID_FETCH_SIZE = 4
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    BROKER_NOT_AVAILABLE = 8
    REPLICA_NOT_AVAILABLE = 9
    MESSAGE_TOO_LARGE = 10
    STALE_CONTROLLER_EPOCH = 11
    OFFSET_METADATA_TOO_LARGE = 12
    NETWORK_EXCEPTION = 13
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INVALID_TOPIC_EXCEPTION = 17
    RECORD_LIST_TOO_LARGE = 18
    NOT_ENOUGH_REPLICAS = 19
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20
    INVALID_REQUIRED_ACKS = 21
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    INVALID_COMMIT_OFFSET_SIZE = 28
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    INVALID_TIMESTAMP = 32
    UNSUPPORTED_SASL_MECHANISM = 33
    ILLEGAL_SASL_STATE = 34
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_REPLICA_ASSIGNMENT = 39
    INVALID_CONFIG = 40
    NOT_CONTROLLER = 41
    INVALID_REQUEST = 42
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    DUPLICATE_SEQUENCE_NUMBER = 46
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    INVALID_PRODUCER_ID_MAPPING = 49
    INVALID_TRANSACTION_TIMEOUT = 50
    CONCURRENT_TRANSACTIONS = 51
    TRANSACTION_COORDINATOR_FENCED = 52
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    SECURITY_DISABLED = 54
    OPERATION_NOT_ATTEMPTED = 55
    KAFKA_STORAGE_ERROR = 56
    LOG_DIR_NOT_FOUND = 57
    SASL_AUTHENTICATION_FAILED = 58
    UNKNOWN_PRODUCER_ID = 59
    REASSIGNMENT_IN_PROGRESS = 60
    DELEGATION_TOKEN_AUTH_DISABLED = 61
    DELEGATION_TOKEN_NOT_FOUND = 62
    DELEGATION_TOKEN_OWNER_MISMATCH = 63
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = 64
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = 65
    DELEGATION_TOKEN_EXPIRED = 66
    INVALID_PRINCIPAL_TYPE = 67
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    FETCH_SESSION_ID_NOT_FOUND = 70
    INVALID_FETCH_SESSION_EPOCH = 71
    LISTENER_NOT_FOUND = 72
    TOPIC_DELETION_DISABLED = 73
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    UNSUPPORTED_COMPRESSION_TYPE = 76
    STALE_BROKER_EPOCH = 77
    OFFSET_NOT_AVAILABLE = 78
    MEMBER_ID_REQUIRED = 79
    PREFERRED_LEADER_NOT_AVAILABLE = 80
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83
    ELECTION_NOT_NEEDED = 84
    NO_REASSIGNMENT_IN_PROGRESS = 85
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    INVALID_RECORD = 87
    UNSTABLE_OFFSET_COMMIT = 88
    THROTTLING_QUOTA_EXCEEDED = 89
    PRODUCER_FENCED = 90
    RESOURCE_NOT_FOUND = 91
    DUPLICATE_RESOURCE = 92
    UNACCEPTABLE_CREDENTIAL = 93
    INCONSISTENT_VOTER_SET = 94
    INVALID_UPDATE_VERSION = 95
    FEATURE_UPDATE_FAILED = 96
    PRINCIPAL_DESERIALIZATION_FAILURE = 97
    SNAPSHOT_NOT_FOUND = 98
    POSITION_OUT_OF_RANGE = 99
    UNKNOWN_TOPIC_ID = 100
    DUPLICATE_BROKER_REGISTRATION = 101
    BROKER_ID_NOT_REGISTERED = 102
    INCONSISTENT_TOPIC_ID = 103
    INCONSISTENT_CLUSTER_ID = 104
    TRANSACTIONAL_ID_NOT_FOUND = 105
    FETCH_SESSION_TOPIC_ID_ERROR = 106
    INELIGIBLE_REPLICA = 107
    NEW_LEADER_ELECTED = 108
    OFFSET_MOVED_TO_TIERED_STORAGE = 109
    FENCED_MEMBER_EPOCH = 110
    UNRELEASED_INSTANCE_ID = 111
    UNSUPPORTED_ASSIGNOR = 112
    STALE_MEMBER_EPOCH = 113
    MISMATCHED_ENDPOINT_TYPE = 114
    UNSUPPORTED_ENDPOINT_TYPE = 115
    UNKNOWN_CONTROLLER_ID = 116
    UNKNOWN_SUBSCRIPTION_ID = 117
    TELEMETRY_TOO_LARGE = 118
    INVALID_REGISTRATION = 119
    TRANSACTION_ABORTABLE = 120
    INVALID_RECORD_STATE = 121
    SHARE_SESSION_NOT_FOUND = 122
    INVALID_SHARE_SESSION_EPOCH = 123
    FENCED_STATE_EPOCH = 124
    INVALID_VOTER_KEY = 125
    DUPLICATE_VOTER = 126
    VOTER_NOT_FOUND = 127
    INVALID_REGULAR_EXPRESSION = 128
    REBOOTSTRAP_REQUIRED = 129
    STREAMS_INVALID_TOPOLOGY = 130
    STREAMS_INVALID_TOPOLOGY_EPOCH = 131
    STREAMS_TOPOLOGY_FENCED = 132
    SHARE_SESSION_LIMIT_REACHED = 133

    @property
    def message(self) -> str:
        return _MESSAGES[self]

    @property
    def retriable(self) -> bool:
        """Whether a client may simply try again."""
        return self in _RETRIABLE


class Refusal(NamedTuple):
    """Why something was not done, in a form that fits every response."""

    code: ErrorCode
    message: str


def error_of(code: int) -> ErrorCode:
    """The error that a peer answered; one of a newer release is unknown here."""
    try:
        return ErrorCode(code)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR


def describe_error(code: int) -> str:
    """A sentence for any code, also for those of a newer broker."""
    try:
        return ErrorCode(code).message
    except ValueError:
        return f"error code {code}, which this version does not know"


_MESSAGES = {
    ErrorCode.UNKNOWN_SERVER_ERROR: "the broker met something it did not expect",
    ErrorCode.NONE: "no error",
    ErrorCode.OFFSET_OUT_OF_RANGE: "the offset is not within the range this partition holds",
    ErrorCode.CORRUPT_MESSAGE: "the batch failed its CRC, exceeds the valid size, or is otherwise malformed",
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "this broker does not host that topic or partition",
    ErrorCode.INVALID_FETCH_SIZE: "the requested fetch size is invalid",
    ErrorCode.LEADER_NOT_AVAILABLE: "there is no leader for this partition at the moment",
    ErrorCode.NOT_LEADER_OR_FOLLOWER: "this broker is not the leader or replica the request needs",
    ErrorCode.REQUEST_TIMED_OUT: "the request did not complete within its time limit",
    ErrorCode.BROKER_NOT_AVAILABLE: "the broker is not available",
    ErrorCode.REPLICA_NOT_AVAILABLE: "the replica is not available on this broker",
    ErrorCode.MESSAGE_TOO_LARGE: "the batch is larger than the topic or broker accepts",
    ErrorCode.STALE_CONTROLLER_EPOCH: "the controller moved to another broker",
    ErrorCode.OFFSET_METADATA_TOO_LARGE: "the metadata of the committed offset is too large",
    ErrorCode.NETWORK_EXCEPTION: "the connection broke before an answer came",
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: "the coordinator is still loading its state",
    ErrorCode.COORDINATOR_NOT_AVAILABLE: "the coordinator is not available",
    ErrorCode.NOT_COORDINATOR: "this broker is not the coordinator for that group or transaction",
    ErrorCode.INVALID_TOPIC_EXCEPTION: "the topic name is not valid",
    ErrorCode.RECORD_LIST_TOO_LARGE: "the request holds a batch larger than a segment",
    ErrorCode.NOT_ENOUGH_REPLICAS: "fewer replicas are in sync than the topic requires",
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: "written, but to fewer in-sync replicas than the topic requires",
    ErrorCode.INVALID_REQUIRED_ACKS: "acks must be 0, 1 or -1 (all)",
    ErrorCode.ILLEGAL_GENERATION: "the generation id is not the group's current one",
    ErrorCode.INCONSISTENT_GROUP_PROTOCOL: "the member's protocols do not match those of the group",
    ErrorCode.INVALID_GROUP_ID: "the group id is not valid",
    ErrorCode.UNKNOWN_MEMBER_ID: "the coordinator does not know this member",
    ErrorCode.INVALID_SESSION_TIMEOUT: "the session timeout is outside the range the broker allows",
    ErrorCode.REBALANCE_IN_PROGRESS: "the group is rebalancing; rejoin",
    ErrorCode.INVALID_COMMIT_OFFSET_SIZE: "the committed offset data is too large",
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "not authorised for this topic",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "not authorised for this group",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "not authorised for this operation on the cluster",
    ErrorCode.INVALID_TIMESTAMP: "the record's timestamp is outside the range the topic accepts",
    ErrorCode.UNSUPPORTED_SASL_MECHANISM: "the broker does not offer this SASL mechanism",
    ErrorCode.ILLEGAL_SASL_STATE: "the request does not fit the state of the SASL exchange",
    ErrorCode.UNSUPPORTED_VERSION: "this version of the API is not served",
    ErrorCode.TOPIC_ALREADY_EXISTS: "a topic of this name exists",
    ErrorCode.INVALID_PARTITIONS: "the number of partitions is not valid",
    ErrorCode.INVALID_REPLICATION_FACTOR: "the replication factor is below 1 or above the number of brokers",
    ErrorCode.INVALID_REPLICA_ASSIGNMENT: "the replica assignment is not valid",
    ErrorCode.INVALID_CONFIG: "the configuration is not valid",
    ErrorCode.NOT_CONTROLLER: "this node is not the active controller",
    ErrorCode.INVALID_REQUEST: "the request is malformed or contradicts itself",
    ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT: "the message format does not support this",
    ErrorCode.POLICY_VIOLATION: "the request violates a policy of this cluster",
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER: "the producer's sequence number is not the expected one",
    ErrorCode.DUPLICATE_SEQUENCE_NUMBER: "the sequence number was already used and its offset is no longer known",
    ErrorCode.INVALID_PRODUCER_EPOCH: "the producer's epoch is older than the one in the log",
    ErrorCode.INVALID_TXN_STATE: "the transaction is not in a state that allows this",
    ErrorCode.INVALID_PRODUCER_ID_MAPPING: "the producer id is not the one of this transactional id",
    ErrorCode.INVALID_TRANSACTION_TIMEOUT: "the transaction timeout is above the broker's maximum",
    ErrorCode.CONCURRENT_TRANSACTIONS: "another operation on this transaction is still in progress",
    ErrorCode.TRANSACTION_COORDINATOR_FENCED: "a newer transaction coordinator took over",
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "not authorised for this transactional id",
    ErrorCode.SECURITY_DISABLED: "security features are switched off",
    ErrorCode.OPERATION_NOT_ATTEMPTED: "the operation was not attempted because another part of the request failed",
    ErrorCode.KAFKA_STORAGE_ERROR: "the log directory failed or refuses writes",
    ErrorCode.LOG_DIR_NOT_FOUND: "no such log directory",
    ErrorCode.SASL_AUTHENTICATION_FAILED: "SASL authentication failed",
    ErrorCode.UNKNOWN_PRODUCER_ID: "the partition holds no state for this producer id",
    ErrorCode.REASSIGNMENT_IN_PROGRESS: "a reassignment is in progress",
    ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED: "delegation tokens are switched off",
    ErrorCode.DELEGATION_TOKEN_NOT_FOUND: "no such delegation token",
    ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH: "the principal is not the owner of the token",
    ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED: "delegation tokens need an authenticated channel",
    ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED: "not authorised for this delegation token",
    ErrorCode.DELEGATION_TOKEN_EXPIRED: "the delegation token has expired",
    ErrorCode.INVALID_PRINCIPAL_TYPE: "the principal type is not supported",
    ErrorCode.NON_EMPTY_GROUP: "the group still has members",
    ErrorCode.GROUP_ID_NOT_FOUND: "no such group",
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND: "no such fetch session",
    ErrorCode.INVALID_FETCH_SESSION_EPOCH: "the fetch session epoch is not the expected one",
    ErrorCode.LISTENER_NOT_FOUND: "no matching listener on the leader",
    ErrorCode.TOPIC_DELETION_DISABLED: "deleting topics is switched off",
    ErrorCode.FENCED_LEADER_EPOCH: "the leader epoch in the request is older than the broker's",
    ErrorCode.UNKNOWN_LEADER_EPOCH: "the leader epoch in the request is newer than the broker's",
    ErrorCode.UNSUPPORTED_COMPRESSION_TYPE: "the codec is not supported by this version",
    ErrorCode.STALE_BROKER_EPOCH: "the broker epoch is stale",
    ErrorCode.OFFSET_NOT_AVAILABLE: "the leader's high watermark has not caught up yet",
    ErrorCode.MEMBER_ID_REQUIRED: "join again with the member id given in this answer",
    ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE: "the preferred leader is not available",
    ErrorCode.GROUP_MAX_SIZE_REACHED: "the group has as many members as the broker allows",
    ErrorCode.FENCED_INSTANCE_ID: "another member registered with the same group instance id",
    ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE: "no eligible leader is available",
    ErrorCode.ELECTION_NOT_NEEDED: "no election is needed",
    ErrorCode.NO_REASSIGNMENT_IN_PROGRESS: "no reassignment is in progress",
    ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC: "the group is subscribed to the topic",
    ErrorCode.INVALID_RECORD: "a record failed the broker's validation",
    ErrorCode.UNSTABLE_OFFSET_COMMIT: "there are offsets whose transaction is not decided yet",
    ErrorCode.THROTTLING_QUOTA_EXCEEDED: "the quota is used up",
    ErrorCode.PRODUCER_FENCED: "a newer producer with the same transactional id took over",
    ErrorCode.RESOURCE_NOT_FOUND: "no such resource",
    ErrorCode.DUPLICATE_RESOURCE: "the resource exists",
    ErrorCode.UNACCEPTABLE_CREDENTIAL: "the credential does not meet the requirements",
    ErrorCode.INCONSISTENT_VOTER_SET: "the voter sets do not match",
    ErrorCode.INVALID_UPDATE_VERSION: "the update version is not the current one",
    ErrorCode.FEATURE_UPDATE_FAILED: "the feature update failed",
    ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE: "the forwarded principal could not be read",
    ErrorCode.SNAPSHOT_NOT_FOUND: "no such snapshot",
    ErrorCode.POSITION_OUT_OF_RANGE: "the position is outside the snapshot",
    ErrorCode.UNKNOWN_TOPIC_ID: "this broker does not know that topic id",
    ErrorCode.DUPLICATE_BROKER_REGISTRATION: "the broker id is in use",
    ErrorCode.BROKER_ID_NOT_REGISTERED: "the broker id is not registered",
    ErrorCode.INCONSISTENT_TOPIC_ID: "the topic id does not match the topic's name",
    ErrorCode.INCONSISTENT_CLUSTER_ID: "the cluster id is not this cluster's",
    ErrorCode.TRANSACTIONAL_ID_NOT_FOUND: "no such transactional id",
    ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR: "the fetch session mixes topic names and ids",
    ErrorCode.INELIGIBLE_REPLICA: "the replica may not join the in-sync set",
    ErrorCode.NEW_LEADER_ELECTED: "the partition has elected another leader",
    ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE: "the offset has moved to tiered storage",
    ErrorCode.FENCED_MEMBER_EPOCH: "the member epoch is older than the coordinator's",
    ErrorCode.UNRELEASED_INSTANCE_ID: "the instance id is still in use by another member",
    ErrorCode.UNSUPPORTED_ASSIGNOR: "the assignor is not offered by this broker",
    ErrorCode.STALE_MEMBER_EPOCH: "the member epoch is stale; fetch the new one and retry",
    ErrorCode.MISMATCHED_ENDPOINT_TYPE: "the request went to an endpoint of the wrong type",
    ErrorCode.UNSUPPORTED_ENDPOINT_TYPE: "this endpoint type is not supported",
    ErrorCode.UNKNOWN_CONTROLLER_ID: "no such controller",
    ErrorCode.UNKNOWN_SUBSCRIPTION_ID: "the telemetry subscription is not current",
    ErrorCode.TELEMETRY_TOO_LARGE: "the telemetry push is too large",
    ErrorCode.INVALID_REGISTRATION: "the registration is not valid",
    ErrorCode.TRANSACTION_ABORTABLE: "the transaction must be aborted",
    ErrorCode.INVALID_RECORD_STATE: "the record is not in a state that allows this acknowledgement",
    ErrorCode.SHARE_SESSION_NOT_FOUND: "no such share session",
    ErrorCode.INVALID_SHARE_SESSION_EPOCH: "the share session epoch is not the expected one",
    ErrorCode.FENCED_STATE_EPOCH: "the share group state epoch is older than the coordinator's",
    ErrorCode.INVALID_VOTER_KEY: "the voter key does not match",
    ErrorCode.DUPLICATE_VOTER: "the voter is already in the set",
    ErrorCode.VOTER_NOT_FOUND: "no such voter",
    ErrorCode.INVALID_REGULAR_EXPRESSION: "the regular expression is not valid",
    ErrorCode.REBOOTSTRAP_REQUIRED: "client metadata is stale; bootstrap again",
    ErrorCode.STREAMS_INVALID_TOPOLOGY: "the streams topology is not valid",
    ErrorCode.STREAMS_INVALID_TOPOLOGY_EPOCH: "the streams topology epoch is not valid",
    ErrorCode.STREAMS_TOPOLOGY_FENCED: "the streams topology epoch is outdated",
    ErrorCode.SHARE_SESSION_LIMIT_REACHED: "the broker holds as many share sessions as it allows",
}

_RETRIABLE = frozenset(
    {
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.LISTENER_NOT_FOUND,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
        ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
        ErrorCode.ELECTION_NOT_NEEDED,
        ErrorCode.UNSTABLE_OFFSET_COMMIT,
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
        ErrorCode.SHARE_SESSION_NOT_FOUND,
        ErrorCode.INVALID_SHARE_SESSION_EPOCH,
        ErrorCode.SHARE_SESSION_LIMIT_REACHED,
    }
)
