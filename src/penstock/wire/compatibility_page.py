"""docs/compatibility.md, written from `served`: every API, its versions, what is not done and why."""

from pathlib import Path

from penstock.wire.apis import API_TABLE
from penstock.wire.served import NOT_SERVED, SERVED

_INTRO = """\
# Compatibility

Penstock speaks the protocol of Apache Kafka 4.4. This page is generated from the tables the broker itself goes by
(`src/penstock/wire/served.py`); `make generate` writes it, and the tests fail when it is stale.

A request for a version that is not served closes the connection, as Kafka does; ApiVersions is answered in version 0
with UNSUPPORTED_VERSION instead, so that every client can find out what is.

## Served

| key | API | versions | notes |
|---|---|---|---|
"""

_MISSING = """
## Not served

These are not advertised; clients that look at ApiVersions do without them.

| key | API | why |
|---|---|---|
"""

_CLIENTS = """
## Clients

The tests run these against a broker: confluent-kafka (librdkafka), kafka-python, aiokafka, kcat, the Java client and
Kafka's own console tools. What they need of a broker beyond single APIs:

- Produce is advertised from version 0 although 0–2 are not served: librdkafka decides by the minimum whether the
  broker knows compression (KAFKA-18659).
- Arrays that the schema allows to be null are sent empty where the Java client does not expect null.
- Offsets of a group that does not exist are answered with success and −1.
- Group metadata is opaque: members of any protocol type (`consumer`, `connect`, `sr`, …) can form a group.

## Differences from Kafka

- `flush.mode=ack` is the default: a produce request is answered when its records are fsynced. Kafka answers from the
  page cache; `flush.mode=os` does the same.
- A topic whose creator names no number gets min(3, number of brokers) replicas, with brokers of one host counted once
  (Kafka's default: 1). One with three replicas or more gets `min.insync.replicas=2` of its own, unless that setting
  was chosen for the brokers (Kafka's default: 1).
- A silent broker is fenced after 2.5 s and reports every 0.5 s (`broker.session.timeout.ms`,
  `broker.heartbeat.interval.ms`; Kafka's defaults are 9 s and 2 s). One whose port refuses connections is fenced at
  once.
- A node that its own `controller.quorum.voters` lists becomes a voter by itself when it is none, also after its disk
  was replaced (`controller.quorum.auto.join.enable`; Kafka's default is off, and there it is for any controller).
- Elections follow KIP-966 with rules of Penstock's own ([decision 2](decisions/0002-who-may-lead.md)). With
  `unclean.leader.election.enable=false` there is one unclean election all the same: where every replica that had
  everything was restarted uncleanly, so that ISR and ELR are empty (only outside `flush.mode=ack`), the last known
  leader leads again once it is back, unless its disk is gone. It is counted
  (`penstock_cluster_unclean_elections_total`, `penstock cluster describe`); no other replica is ever elected unasked.
- Three tagged fields (10000) are Penstock's own, and others skip them: in Fetch, of a follower whose disk is full; in
  AssignReplicasToDirs, at which partition epoch a broker says so; in answers to DescribeCluster, how many unclean
  elections there were.
- A partition's directory and files appear with its first record.
- Index files are written as they grow, not preallocated.
"""


def render() -> str:
    served = "".join(_served_row(key) for key in sorted(SERVED))
    missing = "".join(f"| {key} | {API_TABLE[key].name} | {reason} |\n" for key, reason in sorted(NOT_SERVED.items()))
    return _INTRO + served + _MISSING + missing + _CLIENTS


def _served_row(key: int) -> str:
    entry = SERVED[key]
    versions = _range(entry.min_version, entry.max_version)
    advertised = _range(entry.first_advertised, entry.last_advertised)
    if advertised != versions:
        versions += f" (advertised {advertised})"
    return f"| {key} | {API_TABLE[key].name} | {versions} | {entry.note} |\n"


def _range(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}–{last}"


def main() -> None:
    """Writes the page; `make generate` calls it from the root of the repository."""
    Path("docs/compatibility.md").write_text(render(), encoding="utf-8")


if __name__ == "__main__":
    main()
