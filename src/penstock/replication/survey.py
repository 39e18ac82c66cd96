"""How replication stands at the moment, from the partitions of one broker: plain numbers."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from penstock.replication.partition import Partition


class FollowerLag(NamedTuple):
    """One follower of a partition that is led here, as its fetches tell."""

    topic: str
    partition: int
    replica: int
    is_in_sync: bool
    records: int
    seconds: float  # since it last had all there was; if it never had, since this leader knows it


class ReplicationSurvey(NamedTuple):
    led: int
    followed: int
    under_replicated: int  # led here, with replicas that are not in sync
    under_min_isr: int
    at_min_isr: int
    largest_lag_records: int
    largest_lag_seconds: float


def lags(partitions: Iterable[Partition], now_ms: int) -> Iterator[FollowerLag]:
    """Every follower of every partition that is led here."""
    for partition in partitions:
        state = partition.leader_state
        if state is None:
            continue
        end_offset = partition.log.end_offset
        for replica, progress in state.progress.items():
            records = max(0, end_offset - max(progress.end_offset, partition.log.log_start_offset))
            behind_ms = progress.behind_ms(now_ms) if records else 0
            in_sync = replica in state.isr
            yield FollowerLag(partition.topic, partition.index, replica, in_sync, records, behind_ms / 1000)


def survey(partitions: Iterable[Partition], now_ms: int) -> ReplicationSurvey:
    known = list(partitions)
    states = [partition.leader_state for partition in known if partition.leader_state is not None]
    behind = list(lags(known, now_ms))
    return ReplicationSurvey(
        led=sum(partition.is_leader for partition in known),
        followed=sum(not partition.is_leader for partition in known),
        under_replicated=sum(len(state.isr) < len(state.replicas) for state in states),
        under_min_isr=sum(state.is_under_min_isr for state in states),
        at_min_isr=sum(len(state.isr) == state.effective_min_isr for state in states),
        largest_lag_records=max((lag.records for lag in behind), default=0),
        largest_lag_seconds=max((lag.seconds for lag in behind), default=0.0),
    )
