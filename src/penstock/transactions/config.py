"""What the transaction coordinator goes by: the settings it reads, in the units it thinks in."""

from dataclasses import dataclass


@dataclass(slots=True, frozen=True)
class TransactionConfig:
    max_timeout_ms: int = 900_000
    transactional_id_expiration_ms: int = 7 * 86_400_000
    expiration_check_interval_ms: int = 3_600_000
    # Transactions that never time out (KIP-939) can hold up readers for ever, so they are off until asked for.
    two_phase_commit_enable: bool = False
    # Refuse what begins or ends a transaction of version 1 over a connection that its client gave up. Behind a proxy
    # that spreads one client's requests over several connections at random it may have to be switched off.
    refuse_late_requests: bool = True
    # What could not be written now (a completion, an abort after the timeout) is tried again after this.
    retry_ms: int = 100
