"""Walking a segment batch by batch, trusting nothing: what recovery and rebuilding stand on."""

from collections.abc import Iterator

from penstock.model.ports import DiskFile
from penstock.records.batch import HEADER, HEADER_BYTES, MAGIC, NO_LEADER_EPOCH, BatchHeader, crc_is_valid

_CHUNK_BYTES = 1 << 20


class ScannedBatch:
    """One valid batch of a segment; `data` and `pos` lie in a shared buffer that lives until the next one."""

    __slots__ = ("data", "header", "pos", "position")

    def __init__(self, position: int, header: BatchHeader, data: bytes, pos: int) -> None:
        self.position = position
        self.header = header
        self.data = data
        self.pos = pos


class SegmentScan:
    """Blocking. Iterates over valid batches; afterwards `end_position` and `fault` say where and why it stopped."""

    __slots__ = ("_dense", "_epoch", "_file", "_next_offset", "_size", "end_position", "fault", "has_gaps")

    def __init__(
        self,
        file: DiskFile,
        size_bytes: int,
        next_offset: int,
        position: int = 0,
        *,
        epoch: int = NO_LEADER_EPOCH,
        dense: bool = False,
    ) -> None:
        self._file = file
        self._size = size_bytes
        self._next_offset = next_offset
        self._epoch = epoch
        """Leader epochs never go back within a log: a batch that does is left over from before a truncation."""
        self._dense = dense
        """Only compaction leaves gaps between offsets; without it a gap before the last batch is damage."""
        self.end_position = position
        """Everything before it is valid."""
        self.fault: str | None = None
        """None when the file ends exactly behind a batch."""
        self.has_gaps = False
        """Between the offsets of what was valid, or before it."""

    @property
    def next_offset(self) -> int:
        return self._next_offset

    def __iter__(self) -> Iterator[ScannedBatch]:
        chunk = b""
        start = self.end_position
        while self.end_position < self._size:
            pos = self.end_position - start
            if pos + HEADER_BYTES > len(chunk):
                start, pos = self.end_position, 0
                chunk = self._file.read_at(start, _CHUNK_BYTES)
            header = self._check_header(chunk, pos)
            if header is None:
                return
            if pos + header.size_bytes > len(chunk):
                start, pos = self.end_position, 0
                chunk = self._file.read_at(start, max(_CHUNK_BYTES, header.size_bytes))
            if not crc_is_valid(chunk, pos, header):
                self.fault = "the CRC does not match"
                return
            if header.base_offset > self._next_offset:
                if not self._gap_is_plausible(header):
                    self.fault = f"offset {header.base_offset} follows {self._next_offset - 1}"
                    return
                self.has_gaps = True
            batch = ScannedBatch(self.end_position, header, chunk, pos)
            self.end_position += header.size_bytes
            self._next_offset = header.next_offset
            self._epoch = max(self._epoch, header.partition_leader_epoch)
            yield batch

    def _check_header(self, chunk: bytes, pos: int) -> BatchHeader | None:
        if pos + HEADER_BYTES > len(chunk):
            self.fault = "the file ends within a batch header"
            return None
        header = BatchHeader._make(HEADER.unpack_from(chunk, pos))
        if header.magic != MAGIC:
            self.fault = f"format version {header.magic} is not a record batch"
        elif header.size_bytes < HEADER_BYTES or header.last_offset_delta < 0:
            self.fault = "the batch header is impossible"
        elif self.end_position + header.size_bytes > self._size:
            self.fault = "the file ends within a batch"
        elif header.base_offset < self._next_offset:
            self.fault = f"offset {header.base_offset} follows {self._next_offset - 1}"
        elif NO_LEADER_EPOCH < header.partition_leader_epoch < self._epoch:
            self.fault = f"leader epoch {header.partition_leader_epoch} follows {self._epoch}"
        return header if self.fault is None else None

    def _gap_is_plausible(self, header: BatchHeader) -> bool:
        """The base offset is not under the CRC: a flipped bit shows only in what follows, if that is whole. What is
        torn there would be behind any batch, and this one may have been synced."""
        position = self.end_position + header.size_bytes
        following = self._file.read_at(position, HEADER_BYTES)
        if len(following) < HEADER_BYTES:
            return not self._dense
        after = BatchHeader._make(HEADER.unpack(following))
        if after.base_offset >= header.next_offset:
            return True
        return not self._dense and not self._is_whole(position, after)

    def _is_whole(self, position: int, header: BatchHeader) -> bool:
        if header.magic != MAGIC or not HEADER_BYTES <= header.size_bytes <= self._size - position:
            return False
        return crc_is_valid(self._file.read_at(position, header.size_bytes), 0, header)
