"""How long the others have been silent, as a node of the quorum sees it: what brokers' sessions are measured by; and
whether it has caught up after that.

A leader speaks for the cluster only as far as a majority follows it; a follower knows the controller only by its
answers. Pure: time is an argument.
"""

from typing import TYPE_CHECKING

from penstock.quorum.leader import Leader
from penstock.quorum.roles import Follower

if TYPE_CHECKING:
    from penstock.quorum.core import Quorum


def silence_ms(quorum: "Quorum", now_ms: float) -> float | None:
    """Since a majority fetched from this leader, or since this follower's leader answered; None in other roles, and
    for a leader that only announced itself: one that is deaf does so too."""
    role = quorum.role
    if isinstance(role, Leader):
        lost_at_ms = role.quorum_lost_at_ms(quorum.local, quorum.voters, quorum.timeouts)
        return max(0.0, now_ms - lost_at_ms + quorum.timeouts.check_quorum_ms)
    if isinstance(role, Follower) and role.has_fetched:
        return max(0.0, now_ms - role.fetch_deadline_ms + quorum.timeouts.fetch_timeout_ms)
    return None


def knows_since(quorum: "Quorum", since_ms: float) -> bool:
    """Whether everything is known here that was committed at that time: the leader has answered since, and what it
    called committed is here. A leader that nobody follows any more is told by its silence."""
    role = quorum.role
    if isinstance(role, Follower):
        known = -1 if quorum.high_watermark is None else quorum.high_watermark
        return role.answered_ms >= since_ms and 0 <= role.leader_high_watermark <= known
    return isinstance(role, Leader)
