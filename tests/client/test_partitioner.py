"""Which partition: Java's choice for keys, one at a time without."""

from penstock.client.partitioner import StickyPartitioner, partition_for_key


class CountingRng:
    """Walks through the range instead of jumping."""

    def __init__(self) -> None:
        self.calls = 0

    def random_bytes(self, count: int) -> bytes:
        return bytes(count)

    def uniform(self, low: float, high: float) -> float:
        self.calls += 1
        return low + self.calls % int(high - low)


def test_keys_go_where_java_sends_them() -> None:
    """Utils.toPositive(Utils.murmur2(key)) % 1000, with Java's published hashes."""
    assert partition_for_key(b"21", 1000) == (-973932308 & 0x7FFFFFFF) % 1000
    assert partition_for_key(b"foobar", 1000) == (-790332482 & 0x7FFFFFFF) % 1000
    assert partition_for_key(b"abc", 7) == 479470107 % 7


def test_without_a_key_the_partition_stays_until_a_batch_is_full() -> None:
    sticky = StickyPartitioner(CountingRng())
    available = [0, 1, 2]
    first = sticky.choose("t", available)
    assert {sticky.choose("t", available) for _ in range(20)} == {first}
    sticky.move_on("t", first)
    second = sticky.choose("t", available)
    assert second != first
    sticky.move_on("t", first)  # a late word about a partition left long ago
    assert sticky.choose("t", available) == second


def test_a_partition_without_a_leader_is_left() -> None:
    sticky = StickyPartitioner(CountingRng())
    first = sticky.choose("t", [0, 1, 2])
    others = [p for p in (0, 1, 2) if p != first]
    assert sticky.choose("t", others) in others
    assert sticky.choose("t", [7]) == 7


def test_a_single_partition_is_always_the_one() -> None:
    sticky = StickyPartitioner(CountingRng())
    sticky.choose("t", [0])
    sticky.move_on("t", 0)
    assert sticky.choose("t", [0]) == 0
