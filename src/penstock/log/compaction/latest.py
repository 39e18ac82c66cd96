"""Which record of each key is the last one, in bounded memory.

A dictionary of ten million keys takes more than a gigabyte, so keys are kept as 12 bytes each: a 64-bit hash and the
number of the record, in buckets chosen by another, independent hash (74 bits tell keys apart). A bucket is only
something to append to; once in a while each is turned into a small dictionary for a moment, and what is not the last
record of its key is marked as superseded. All of this runs in loops of the interpreter's own C code, several times
faster than an open-addressing table probed from Python.

The hash is Python's own for bytes (SipHash with a random key of the process), so nobody can make keys that collide.
"""

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import compress, repeat
from operator import and_, ne
from zlib import crc32

from penstock.log.compaction.record_scan import ScannedKeys

SUPERSEDED = 0
VALUE = 1
TOMBSTONE = 2

ENTRY_BYTES = 12.3
"""A hash, a number, and their share of the chunk they are in."""
SEALED_ENTRY_BYTES = 8.2
_MIN_BUCKETS = 64
_MAX_BUCKETS = 1024
_KEYS_PER_BUCKET = 1024
_PACK_EVERY_KEYS = 1 << 16
_JOIN_PACKED = 8
_JOINED = 512


class KeySpool:
    """Hashes of keys with the numbers of their records, in buckets, in the order in which they came.

    The newest are in arrays, which are kept short: now and then they are packed away, and what was packed is joined
    into larger pieces. Long arrays that grow side by side would leave a quarter of the memory in holes between them.
    """

    __slots__ = ("_append_hash", "_append_number", "_hashes", "_mask", "_numbers", "_unpacked", "count")

    def __init__(self, buckets: int) -> None:
        self._mask = buckets - 1
        self.count = 0
        self._unpacked = 0
        self._hashes = [_Bucket("q") for _ in range(buckets)]
        self._numbers = [_Bucket("I") for _ in range(buckets)]
        self._append_hash = [bucket.newest.append for bucket in self._hashes]
        self._append_number = [bucket.newest.append for bucket in self._numbers]

    def __len__(self) -> int:
        """How many buckets there are."""
        return self._mask + 1

    def add(self, keys: Sequence[bytes], numbers: Iterable[int]) -> None:
        append_hash, append_number = self._append_hash, self._append_number
        buckets = map(and_, map(crc32, keys), repeat(self._mask))
        for bucket, key_hash, number in zip(buckets, map(hash, keys), numbers, strict=True):
            append_hash[bucket](key_hash)
            append_number[bucket](number)
        self.count += len(keys)
        self._unpacked += len(keys)
        if self._unpacked > _PACK_EVERY_KEYS:
            self._unpacked = 0
            for each in (*self._hashes, *self._numbers):
                each.pack()

    def hashes(self, bucket: int) -> "array[int]":
        return self._hashes[bucket].unpack()

    def numbers(self, bucket: int) -> "array[int]":
        return self._numbers[bucket].unpack()

    def replace(self, bucket: int, old_size: int, latest: dict[int, int]) -> None:
        """The bucket now holds just these."""
        self.count += len(latest) - old_size
        self._hashes[bucket].replace(latest)
        self._numbers[bucket].replace(latest.values())

    def forget_numbers(self, bucket: int) -> None:
        """Only hashes are asked for from now on; nothing more is added."""
        self._numbers[bucket].replace(())


class _Bucket:
    """Integers of one kind, packed but for the newest."""

    __slots__ = ("_joined", "_kind", "_packed", "newest")

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._joined: list[bytes] = []
        self._packed: list[bytes] = []
        self.newest = array(kind)

    def pack(self) -> None:
        self._packed.append(self.newest.tobytes())
        del self.newest[:]
        if len(self._packed) == _JOIN_PACKED:
            self._joined.append(b"".join(self._packed))
            self._packed.clear()

    def unpack(self) -> "array[int]":
        whole = array(self._kind)
        whole.frombytes(b"".join((*self._joined, *self._packed)))
        whole.extend(self.newest)
        return whole

    def replace(self, values: Iterable[int]) -> None:
        self._packed.clear()
        del self.newest[:]
        packed = array(self._kind, values)
        self._joined = [packed[at : at + _JOINED].tobytes() for at in range(0, len(packed), _JOINED)]


class DirtyKeys:
    """Takes the records of the dirty section in order; afterwards `fates` says of each whether it stays."""

    __slots__ = ("_buffer_bytes", "_spool", "fates", "unique_keys")

    def __init__(self, buffer_bytes: int, expected_keys: int) -> None:
        self._buffer_bytes = buffer_bytes
        self._spool = KeySpool(_bucket_count(min(expected_keys, int(buffer_bytes / ENTRY_BYTES))))
        self.fates = bytearray()
        """By record, in the order in which they were added: `SUPERSEDED`, `VALUE` or `TOMBSTONE`."""
        self.unique_keys = 0

    @property
    def used_bytes(self) -> int:
        return int(self._spool.count * ENTRY_BYTES) + len(self.fates)

    def has_room(self, records: int) -> bool:
        return self.used_bytes + records * (ENTRY_BYTES + 1) <= self._buffer_bytes

    def add(self, scanned: ScannedKeys) -> None:
        add_keys(self._spool, self.fates, scanned)

    def skip(self, count: int, fate: int) -> None:
        """Records that are not looked at: aborted ones go, those of an unreadable batch stay."""
        self.fates += bytes([fate]) * count

    def dedupe(self) -> Iterator[int]:
        """Marks what is superseded and makes room. A generator: each turn takes one bucket; yields its entries."""
        spool, fates = self._spool, self.fates
        for bucket in range(len(spool)):
            hashes, numbers = spool.hashes(bucket), spool.numbers(bucket)
            latest = dict(zip(hashes, numbers, strict=True))
            if len(latest) < len(hashes):
                superseded = map(ne, map(latest.__getitem__, hashes), numbers)
                for number in compress(numbers, superseded):
                    fates[number] = SUPERSEDED
                spool.replace(bucket, len(hashes), latest)
            yield len(hashes)

    def seal(self) -> Iterator[int]:
        """Nothing more is added: keeps only the hashes, for the clean section. A generator as `dedupe`."""
        spool = self._spool
        for bucket, entries in enumerate(self.dedupe()):
            spool.forget_numbers(bucket)
            yield entries
        self.unique_keys = spool.count

    @property
    def sealed_bytes(self) -> int:
        return int(self.unique_keys * SEALED_ENTRY_BYTES) + len(self.fates)

    def new_spool(self) -> KeySpool:
        """A spool with the same buckets, for `supersede`."""
        return KeySpool(len(self._spool))

    def supersede(self, older: KeySpool, fates: bytearray) -> Iterator[int]:
        """Marks those of the older records whose key is in the dirty section. A generator as `dedupe`."""
        for bucket in range(len(older)):
            newer, hashes = self._spool.hashes(bucket), older.hashes(bucket)
            if hashes and newer:
                is_superseded: Callable[[int], bool] = set(newer).__contains__
                for number in compress(older.numbers(bucket), map(is_superseded, hashes)):
                    fates[number] = SUPERSEDED
            yield len(newer) + len(hashes)


def add_keys(spool: KeySpool, fates: bytearray, scanned: ScannedKeys) -> None:
    """Notes the records of one batch. A record without key can never be superseded by key: it goes, as in Kafka."""
    keys = scanned.keys
    first = len(fates)
    fates += b"\x01" * len(keys)
    for number in scanned.tombstones:
        fates[first + number] = TOMBSTONE
    if not scanned.keyless:
        spool.add(keys, range(first, first + len(keys)))
        return
    for number in scanned.keyless:
        fates[first + number] = SUPERSEDED
    keyed = [number for number in range(len(keys)) if fates[first + number] != SUPERSEDED]
    spool.add([keys[number] for number in keyed], [first + number for number in keyed])


def _bucket_count(expected_keys: int) -> int:
    buckets = _MIN_BUCKETS
    while buckets < _MAX_BUCKETS and buckets * _KEYS_PER_BUCKET < expected_keys:
        buckets *= 2
    return buckets
