"""How long a voter waits for what. All in milliseconds, all settings (`controller.quorum.…`)."""

from typing import NamedTuple

_CHECK_QUORUM_FACTOR = 1.5
_LONGEST_BEGIN_INTERVAL_MS = 250


class QuorumTimeouts(NamedTuple):
    fetch_timeout_ms: int = 1_000
    """A follower that fetched nothing for this long looks for another leader."""
    election_timeout_ms: int = 500
    """Shortest wait for votes; up to as much again is added by chance, so that voters do not stand at once."""
    retry_backoff_ms: int = 20

    @property
    def fetch_wait_ms(self) -> int:
        """How long a leader may hold a fetch that finds nothing new: well within the fetch timeout."""
        return self.fetch_timeout_ms // 2

    @property
    def check_quorum_ms(self) -> int:
        """A leader that a majority has not fetched from for this long is no leader (R14)."""
        return int(self.fetch_timeout_ms * _CHECK_QUORUM_FACTOR)

    @property
    def begin_interval_ms(self) -> int:
        """How often BeginQuorumEpoch is sent again to a voter that does not fetch."""
        return max(self.retry_backoff_ms, min(self.fetch_timeout_ms // 8, _LONGEST_BEGIN_INTERVAL_MS))
