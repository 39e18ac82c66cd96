"""What an audit can find, in one place: kinds, how grave each is, and what it says. Pure.

Loss, doubt about order and damage fail an audit. What a topic's own settings explain (retention, compaction) or what
nobody promised (records that a producer was told had failed) is reported, and does not.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

FAIL, WARN, INFO = "fail", "warn", "info"

KINDS: dict[str, tuple[str, str]] = {
    # kind: (severity, what it means)
    "gap": (FAIL, "offsets that were given out are not in the log"),
    "cut_off": (FAIL, "the log ends before the offset that its broker calls its end"),
    "gap_in_batch": (FAIL, "a batch holds fewer records than the offsets it covers"),
    "duplicate_offsets": (FAIL, "offsets are in the log more than once"),
    "disorder": (FAIL, "batches with lower offsets follow batches with higher ones"),
    "leader_epoch_disorder": (FAIL, "a batch of an older leader epoch follows one of a newer"),
    "crc": (FAIL, "a batch does not match its checksum"),
    "unreadable": (FAIL, "bytes in the log are no batch; what is behind them in the segment may be lost"),
    "sequence_gap": (FAIL, "a producer's sequence numbers jump: records it sent are missing"),
    "sequence_start": (FAIL, "a producer's first sequence number here is not 0: its first records are missing"),
    "sequence_duplicate": (FAIL, "a producer's sequence numbers repeat: records are in the log twice"),
    "sequence_disorder": (FAIL, "a producer's sequence numbers go back: records are out of order"),
    "producer_epoch_disorder": (FAIL, "a producer that was shut out wrote after its successor"),
    "counter_loss": (FAIL, "the log has fewer records than were acknowledged to their producer"),
    "counter_surplus": (FAIL, "the log has more records than their producer sent"),
    "archive_missing": (FAIL, "records of the topic are not in the archive"),
    "archive_duplicate": (FAIL, "records are in the archive more than once"),
    "archive_differs": (FAIL, "records in the archive differ from those in the topic"),
    "archive_extra": (FAIL, "the archive has records that the topic does not have"),
    "archive_file_missing": (FAIL, "a file of the archive is gone"),
    "archive_file_damaged": (FAIL, "a file of the archive is not as it was written"),
    "open_transaction": (WARN, "a transaction has been open for long; readers wait for its end"),
    "delivery_failed": (WARN, "records that their producer was told are not delivered"),
    "counters_incomplete": (WARN, "counters of a producer are missing from the audit topic"),
    "sequence_expired": (WARN, "a producer was silent for so long that its place was forgotten; then it went on"),
    "retention_hole": (INFO, "records are gone by retention or were deleted on purpose"),
    "compacted": (INFO, "records are gone by compaction"),
    "sequence_before_range": (INFO, "a producer's first records lie before what was audited"),
    "producer_running": (INFO, "a producer has not ended, or died: its last counters are not told"),
    "archive_behind": (INFO, "the archive does not reach the end of the topic yet"),
    "archive_hole": (
        INFO,
        "offsets are neither in the archive nor, any more, in the topic: markers, aborted, or lost",
    ),
    "archive_older": (INFO, "the archive holds records that are no longer in the topic"),
}


class Finding(NamedTuple):
    """One thing found. Offsets are [first, end); `records` is how many, as far as known."""

    kind: str
    topic: str
    partition: int
    first_offset: int
    end_offset: int
    records: int
    detail: str = ""

    @property
    def severity(self) -> str:
        return KINDS[self.kind][0]

    @property
    def where(self) -> str:
        name = f"{self.topic}-{self.partition}"
        if self.first_offset < 0:
            return name
        if self.end_offset - self.first_offset <= 1:
            return f"{name} at offset {self.first_offset}"
        return f"{name} offsets {self.first_offset} to {self.end_offset - 1}"

    def sentence(self) -> str:
        return f"{self.where}: {KINDS[self.kind][1]}{f' ({self.detail})' if self.detail else ''}"

    def to_json(self) -> dict[str, Any]:
        return {"severity": self.severity, **self._asdict(), "message": self.sentence()}


def passed(findings: Iterable[Finding]) -> bool:
    return all(finding.severity != FAIL for finding in findings)


def count_kinds(findings: Iterable[Finding]) -> dict[str, int]:
    return dict(Counter(finding.kind for finding in findings))


_ORDER = {FAIL: 0, WARN: 1, INFO: 2}


def in_order(findings: Iterable[Finding]) -> list[Finding]:
    """The gravest first, then by place."""
    return sorted(findings, key=lambda f: (_ORDER[f.severity], f.topic, f.partition, f.first_offset, f.kind))
