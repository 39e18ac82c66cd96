"""The consumer: group membership, positions, fetching ahead, records out.

`consumer` is the face, `assignment` follows the group (`membership`, `assignors`, `sticky`, `protocol`), `fetcher`
fills the buffers of `partitions`, `positioning` finds where to begin, `decoding` turns batches into records.
"""

from penstock.client.consumer.consumer import Consumer

__all__ = ["Consumer"]
