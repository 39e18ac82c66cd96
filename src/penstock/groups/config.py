"""What the group coordinator goes by: the settings it reads, in the units it thinks in."""

from dataclasses import dataclass


@dataclass(slots=True, frozen=True, kw_only=True)
class GroupConfig:
    """Fields with a default are not settings."""

    min_session_timeout_ms: int
    max_session_timeout_ms: int
    initial_rebalance_delay_ms: int
    max_size: int
    offset_metadata_max_bytes: int
    offsets_retention_ms: int
    offsets_retention_check_interval_ms: int
    # A JoinGroup of a new member is parked no longer than this: its client may be gone, and a parked socket does
    # not tell. Kafka has it as a constant too.
    new_member_join_timeout_ms: int = 300_000
    # Member ids handed out (MEMBER_ID_REQUIRED) and not used yet, per shard: clients that never come back cost
    # memory until their session ends, so there is an end to it.
    max_pending_members: int = 50_000
