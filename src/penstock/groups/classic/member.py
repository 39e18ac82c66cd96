"""A member of a classic group."""

from penstock.groups.decision import Waiter
from penstock.groups.timers import Timer, TimerKind


class ClassicMember:
    """`protocols` maps names to opaque metadata, in the member's order of preference.

    At most one of `join_waiter` and `sync_waiter` is set. `is_new` until the first generation it is part of.
    """

    __slots__ = (
        "assignment",
        "client_host",
        "client_id",
        "group_instance_id",
        "is_new",
        "join_waiter",
        "member_id",
        "protocols",
        "rebalance_timeout_ms",
        "session",
        "session_timeout_ms",
        "sync_waiter",
    )

    def __init__(
        self,
        group_id: str,
        member_id: str,
        group_instance_id: str | None,
        client_id: str,
        client_host: str,
        session_timeout_ms: int,
        rebalance_timeout_ms: int,
        protocols: dict[str, bytes],
    ) -> None:
        self.member_id = member_id
        self.group_instance_id = group_instance_id
        self.client_id = client_id
        self.client_host = client_host
        self.session_timeout_ms = session_timeout_ms
        self.rebalance_timeout_ms = rebalance_timeout_ms
        self.protocols = protocols
        self.assignment = b""
        self.join_waiter: Waiter | None = None
        self.sync_waiter: Waiter | None = None
        self.is_new = False
        self.session = Timer(TimerKind.SESSION, group_id, member_id)

    @property
    def is_static(self) -> bool:
        return self.group_instance_id is not None

    @property
    def keeps_session(self) -> bool:
        """Whether it need not heartbeat: it waits for us. Not so for a new member, whose client may be long gone."""
        return not self.is_new and (self.join_waiter is not None or self.sync_waiter is not None)

    def vote(self, candidates: set[str]) -> str:
        """Its most preferred protocol among those that every member supports."""
        for name in self.protocols:
            if name in candidates:
                return name
        raise AssertionError(f"member {self.member_id} supports none of {sorted(candidates)}")

    def has_protocols(self, protocols: dict[str, bytes]) -> bool:
        """Also the order counts: it is the member's preference."""
        return list(self.protocols.items()) == list(protocols.items())
