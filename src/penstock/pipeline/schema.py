"""The columns of a topic as a table: those of Spark's own Kafka source, and where asked what the batches say besides.

Arrow types equal Spark's exactly (binary, not large_binary; microseconds in UTC): Spark checks only the first batch.
"""

import pyarrow as pa

KEY_AND_VALUE = "key binary, value binary, topic string, partition int, offset bigint"
_HEADERS_DDL = "headers array<struct<key:string,value:binary>>"
_BATCH_DDL = "leaderEpoch int, producerId bigint, producerEpoch int, sequence int"
CORRUPT_COLUMN = "corrupt"

HEADER_TYPE = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])


def ddl(*, headers: bool, batch_info: bool) -> str:
    """The schema in Spark's words."""
    parts = [KEY_AND_VALUE, "timestamp timestamp, timestampType int"]
    if headers:
        parts.append(_HEADERS_DDL)
    if batch_info:
        parts.append(_BATCH_DDL)
    return ", ".join(parts)


def arrow_schema(*, headers: bool, batch_info: bool, corrupt: bool = False) -> pa.Schema:
    """`corrupt` says why a batch cannot be read; such a batch is one row without key and value."""
    fields = [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("timestampType", pa.int32()),
    ]
    if headers:
        fields.append(pa.field("headers", pa.list_(HEADER_TYPE)))
    if batch_info:
        fields += [
            pa.field("leaderEpoch", pa.int32()),
            pa.field("producerId", pa.int64()),
            pa.field("producerEpoch", pa.int32()),
            pa.field("sequence", pa.int32()),
        ]
    if corrupt:
        fields.append(pa.field(CORRUPT_COLUMN, pa.string()))
    return pa.schema(fields)
