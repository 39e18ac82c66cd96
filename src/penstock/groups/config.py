"""What the group coordinator goes by: the settings it reads, in the units it thinks in."""

from dataclasses import dataclass
from enum import StrEnum


class MigrationPolicy(StrEnum):
    """Whether a group with members may change its protocol. One without always may."""

    BIDIRECTIONAL = "bidirectional"
    UPGRADE = "upgrade"
    DOWNGRADE = "downgrade"
    DISABLED = "disabled"

    @property
    def allows_upgrade(self) -> bool:
        return self in (MigrationPolicy.BIDIRECTIONAL, MigrationPolicy.UPGRADE)

    @property
    def allows_downgrade(self) -> bool:
        return self in (MigrationPolicy.BIDIRECTIONAL, MigrationPolicy.DOWNGRADE)


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
    consumer_session_timeout_ms: int
    consumer_heartbeat_interval_ms: int
    consumer_max_size: int
    consumer_assignors: tuple[str, ...]  # the first is the default
    consumer_migration_policy: MigrationPolicy
    consumer_assignment_interval_ms: int
    consumer_regex_refresh_interval_ms: int
    # A JoinGroup of a new member is parked no longer than this: its client may be gone, and a parked socket does
    # not tell. Kafka has it as a constant too.
    new_member_join_timeout_ms: int = 300_000
    # Member ids handed out (MEMBER_ID_REQUIRED) and not used yet, per shard: clients that never come back cost
    # memory until their session ends, so there is an end to it.
    max_pending_members: int = 50_000
    # Members and partitions up to which a target assignment is computed on the loop: about a millisecond's work.
    # Larger ones go to the pool, and all that happens to the group meanwhile is covered by the next one.
    inline_assignment_size: int = 2_000
    # Topics come in bursts: the expressions of a group are not resolved again more often than this.
    consumer_regex_refresh_min_ms: int = 1_000
