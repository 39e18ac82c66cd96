"""Which replica a consumer had better read from: one in its rack that is in sync and has the offset. (KIP-392)"""

from collections.abc import Callable

from penstock.replication.leader_state import LeaderState

LEADER = -1


def select_read_replica(
    state: LeaderState, offset: int, rack: str, leader_rack: str | None, rack_of: Callable[[int], str | None]
) -> int:
    """The broker to read from; `LEADER` when it is the one that was asked. `rack_of` is None for one that is down."""
    if leader_rack == rack:
        return LEADER
    best, best_end = LEADER, -1
    for replica, progress in state.progress.items():
        if replica not in state.isr or not progress.log_start_offset <= offset <= progress.end_offset:
            continue
        if rack_of(replica) == rack and progress.end_offset > best_end:
            best, best_end = replica, progress.end_offset
    return best
