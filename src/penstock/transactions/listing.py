"""ListTransactions and DescribeTransactions: what an operator sees."""

from collections.abc import Callable, Collection, Iterable, Mapping

from penstock.model.errors import ErrorCode
from penstock.transactions.state import TransactionState, TransactionStatus
from penstock.wire.generated.describe_transactions import DescribeTransactionsResponse
from penstock.wire.generated.list_transactions import ListTransactionsResponse

_STATUS_BY_LABEL = {status.label: status for status in TransactionStatus}


def unknown_state_filters(labels: Iterable[str]) -> list[str]:
    return [label for label in labels if label not in _STATUS_BY_LABEL]


def list_transactions(
    states: Mapping[str, TransactionState],
    labels: Collection[str],
    producer_ids: Collection[int],
    running_longer_than_ms: int,
    matches: Callable[[str], bool],
    now_ms: int,
) -> list[ListTransactionsResponse.TransactionState]:
    """An empty filter lets everything through; a negative duration too."""
    wanted = {_STATUS_BY_LABEL[label] for label in labels if label in _STATUS_BY_LABEL}
    listed = []
    for transactional_id, state in states.items():
        if labels and state.status not in wanted:
            continue
        if producer_ids and state.producer_id not in producer_ids:
            continue
        if running_longer_than_ms >= 0 and not _runs_longer(state, running_longer_than_ms, now_ms):
            continue
        if matches(transactional_id):
            listed.append(
                ListTransactionsResponse.TransactionState(transactional_id, state.producer_id, state.status.label)
            )
    return listed


def _runs_longer(state: TransactionState, duration_ms: int, now_ms: int) -> bool:
    runs = state.status is TransactionStatus.ONGOING or state.status.is_prepared
    return runs and now_ms - state.start_ms > duration_ms


def describe_transaction(
    transactional_id: str, state: TransactionState | None
) -> DescribeTransactionsResponse.TransactionState:
    described = DescribeTransactionsResponse.TransactionState(transactional_id=transactional_id)
    if not transactional_id:
        described.error_code = ErrorCode.INVALID_REQUEST
    elif state is None:
        described.error_code = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    else:
        described.transaction_state = state.status.label
        described.transaction_timeout_ms = state.timeout_ms
        described.transaction_start_time_ms = state.start_ms
        described.producer_id = state.producer_id
        described.producer_epoch = state.producer_epoch
        topics: dict[str, DescribeTransactionsResponse.TopicData] = {}
        for topic, partition in sorted(state.partitions):
            topics.setdefault(topic, DescribeTransactionsResponse.TopicData(topic)).partitions.append(partition)
        described.topics = list(topics.values())
    return described
