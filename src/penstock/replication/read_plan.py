"""What a fetch of one partition yields, and who waits for more."""

from typing import NamedTuple, Protocol

from penstock.model.errors import ErrorCode
from penstock.net.file_threads import FileRange


class FetchPlan(NamedTuple):
    """What a fetch of one partition yields now. `data` is None where there is nothing to read."""

    error: ErrorCode
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    data: FileRange | None
    # Producer id and first offset of transactions to skip; None where the reader takes everything.
    aborted: list[tuple[int, int]] | None = None
    # Epoch and end offset where the reader's log parts ways with this one; only followers are told.
    diverging: tuple[int, int] | None = None
    # The broker that this consumer had better read from.
    preferred_read_replica: int = -1


class Watcher(Protocol):
    """Waits for a partition to move on. `wake` is called on the append path: it only takes note."""

    def wake(self) -> None: ...
