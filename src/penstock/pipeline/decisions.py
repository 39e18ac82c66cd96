"""Decisions of sinks: which task attempts won a batch. Kept in a compacted topic, one key per query or job.

A decision is on the broker before any of its transactions is committed. From then on the batch has happened, whoever
dies: a restarted driver finds it, finishes it, and does not write the batch again.
"""

from typing import Any, NamedTuple

import msgspec

from penstock.client.admin.admin import Admin
from penstock.client.admin.descriptions import NewTopic
from penstock.client.cluster import Cluster
from penstock.client.errors import ClientError
from penstock.client.raw import RawClient
from penstock.client.transactions import Prepared, end_transaction
from penstock.client.types import EARLIEST, LATEST, TopicPartition
from penstock.model.errors import ErrorCode
from penstock.records.batch import iter_headers
from penstock.records.builder import build_batch
from penstock.records.reader import read_records

DECISIONS_TOPIC = "__penstock_sink_decisions"
_PARTITION = TopicPartition(DECISIONS_TOPIC, 0)


class Decision(NamedTuple):
    """The winners of one batch. `done` once all of them are committed."""

    batch_id: int
    winners: tuple[Prepared, ...]
    done: bool
    at_ms: int
    state: dict[str, Any] | None = None
    """What the writer wants to find again when it is run again, such as how far it is; decided with the batch."""


async def read_decisions(client: RawClient) -> dict[str, Decision]:
    """The last decision of every query."""
    if not await client.has_topic(DECISIONS_TOPIC):
        return {}
    ends = await client.list_offsets({_PARTITION: LATEST}, isolation_level=1)
    starts = await client.list_offsets({_PARTITION: EARLIEST})
    offset, end = starts[_PARTITION].offset, ends[_PARTITION].offset
    found: dict[str, Decision] = {}
    while offset < end:
        batches = await client.fetch_batches(DECISIONS_TOPIC, 0, offset)
        for pos, header in iter_headers(batches.data):
            for record in () if header.is_control else read_records(batches.data, pos):
                _replay(found, record.key, record.value)
            offset = max(offset, header.next_offset)
    return found


def _replay(found: dict[str, Decision], key: bytes | None, value: bytes | None) -> None:
    name = (key or b"").decode()
    if value is None:
        found.pop(name, None)
        return
    said: dict[str, Any] = msgspec.json.decode(value)
    winners = tuple(Prepared(*winner) for winner in said["winners"])
    found[name] = Decision(said["batch"], winners, said["done"], said["at"], said.get("state"))


async def write_decision(client: RawClient, query: str, decision: Decision) -> None:
    value = {
        "batch": decision.batch_id,
        "winners": [list(winner) for winner in decision.winners],
        "done": decision.done,
        "at": decision.at_ms,
        "state": decision.state,
    }
    await _write(client, query, msgspec.json.encode(value), decision.at_ms)


async def forget(client: RawClient, query: str, now_ms: int) -> None:
    await _write(client, query, None, now_ms)


async def _write(client: RawClient, query: str, value: bytes | None, now_ms: int) -> None:
    await client.produce_batch(DECISIONS_TOPIC, 0, build_batch([(query.encode(), value)], timestamp_ms=now_ms))


async def make_topic(admin: Admin) -> None:
    """Makes the topic unless it is there."""
    wanted = NewTopic(DECISIONS_TOPIC, partitions=1, configs={"cleanup.policy": "compact"})
    outcome = (await admin.create_topics([wanted]))[DECISIONS_TOPIC]
    if isinstance(outcome, ClientError) and outcome.code != ErrorCode.TOPIC_ALREADY_EXISTS:
        raise outcome


async def finish(cluster: Cluster, decision: Decision) -> None:
    """Commits the winners; those that are committed already stay so."""
    for winner in decision.winners:
        await end_transaction(cluster, winner, commit=True)
