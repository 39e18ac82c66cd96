"""What a broker counts and how things stand, as metrics with names, for whoever shows them.

Every metric is in `CATALOGUE`, from which docs/metrics.md is written. Numbers are read when they are asked for:
nothing on the way of a record is slower for being counted. Metrics of the whole cluster come from committed metadata
and are told by every node; add them up over one node, not over all.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, NamedTuple

from penstock.controller import counters as cluster_counters

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.replication.survey import FollowerLag

_PARTITIONS_PER_TURN = 500
GAUGE, COUNTER = "gauge", "counter"


class Metric(NamedTuple):
    name: str
    kind: str
    help: str
    labels: tuple[str, ...] = ()


class Sample(NamedTuple):
    metric: str
    value: float
    labels: tuple[str, ...] = ()


_PARTITION = ("topic", "partition")
_FOLLOWER = ("topic", "partition", "replica")

BROKER_METRICS = (
    Metric("penstock_partitions_led", GAUGE, "Partitions that this broker leads and has opened."),
    Metric("penstock_partitions_followed", GAUGE, "Partitions that this broker follows."),
    Metric("penstock_partitions_offline", GAUGE, "Partitions of this broker whose log cannot be used."),
    Metric("penstock_partitions_under_replicated", GAUGE, "Led here, with replicas that are not in sync."),
    Metric("penstock_partitions_under_min_isr", GAUGE, "Led here, with fewer in sync than min.insync.replicas."),
    Metric("penstock_partitions_at_min_isr", GAUGE, "Led here, with just as many in sync as min.insync.replicas."),
    Metric("penstock_partition_isr_size", GAUGE, "Replicas in sync, of a replicated partition led here.", _PARTITION),
    Metric("penstock_replica_lag_records", GAUGE, "Records that a follower does not have yet.", _FOLLOWER),
    Metric(
        "penstock_replica_lag_seconds",
        GAUGE,
        "Time since a follower last had all there was; if it never had, since its leader knows it.",
        _FOLLOWER,
    ),
    Metric("penstock_isr_shrinks_total", COUNTER, "Followers that left an in-sync set led here."),
    Metric("penstock_isr_expands_total", COUNTER, "Followers that came into an in-sync set led here."),
    Metric("penstock_replicated_bytes_total", COUNTER, "Bytes fetched from leaders."),
    Metric(
        "penstock_replica_fetch_errors_total", COUNTER, "Fetches from leaders, or partitions in them, that failed."
    ),
    Metric("penstock_replica_corrupt_batches_total", COUNTER, "Batches from leaders that were damaged on the way."),
    Metric("penstock_truncations_total", COUNTER, "Logs that were cut back to what their leader has."),
    Metric(
        "penstock_truncations_below_watermark_total",
        COUNTER,
        "Of these, cut below what was committed: only after an unclean election.",
    ),
)

CLUSTER_METRICS = (
    Metric("penstock_active_controller", GAUGE, "1 on the active controller, 0 elsewhere."),
    Metric("penstock_cluster_elections_total", COUNTER, "Partitions that got another leader."),
    Metric("penstock_cluster_unclean_elections_total", COUNTER, "Elections of a leader that may lack records."),
    Metric("penstock_cluster_leaderless_total", COUNTER, "Partitions that lost their leader and had no other."),
    Metric("penstock_cluster_isr_shrinks_total", COUNTER, "In-sync sets that somebody left."),
    Metric("penstock_cluster_isr_expands_total", COUNTER, "In-sync sets that somebody came into."),
    Metric("penstock_cluster_reassignments_started_total", COUNTER, "Partitions that began to move."),
    Metric("penstock_cluster_reassignments_completed_total", COUNTER, "Partitions that have moved, or were stopped."),
    Metric("penstock_cluster_fencings_total", COUNTER, "Brokers that were fenced."),
    Metric("penstock_cluster_unfencings_total", COUNTER, "Brokers that were let in."),
)

CONTROLLER_METRICS = (
    Metric("penstock_cluster_partitions", GAUGE, "Partitions of the cluster."),
    Metric("penstock_cluster_partitions_leaderless", GAUGE, "Partitions without a leader."),
    Metric("penstock_cluster_partitions_under_replicated", GAUGE, "Partitions with replicas that are not in sync."),
    Metric("penstock_cluster_partitions_reassigning", GAUGE, "Partitions on the move."),
    Metric("penstock_cluster_partitions_not_preferred", GAUGE, "Partitions led by another than their first replica."),
    Metric("penstock_cluster_brokers_fenced", GAUGE, "Brokers that are registered and not there."),
)
"""Told by the active controller alone."""

CATALOGUE = {metric.name: metric for metric in (*BROKER_METRICS, *CLUSTER_METRICS, *CONTROLLER_METRICS)}


async def collect(broker: "Broker") -> AsyncIterator[Sample]:
    """All samples, those of one metric in a row. Leaves the loop free on the way."""
    for sample in (*_replication(broker), *_cluster(broker)):
        yield sample
    if broker.driver.is_active:
        loop = asyncio.get_running_loop()
        health = await loop.run_in_executor(broker.pool, cluster_counters.survey, broker.image)
        for metric, value in zip(CONTROLLER_METRICS, health, strict=True):
            yield Sample(metric.name, value)
    # Partitions may change while the loop is free: what is told is what was there at the beginning.
    lags = list(broker.replicas.lags())
    samples = [
        *_in_sync(broker),
        *(Sample("penstock_replica_lag_records", lag.records, _place(lag)) for lag in lags),
        *(Sample("penstock_replica_lag_seconds", lag.seconds, _place(lag)) for lag in lags),
    ]
    for number, sample in enumerate(samples, 1):
        yield sample
        if number % _PARTITIONS_PER_TURN == 0:
            await asyncio.sleep(0)


def _replication(broker: "Broker") -> Iterator[Sample]:
    now, since = broker.replicas.survey(), broker.replicas.counters
    yield Sample("penstock_partitions_led", now.led)
    yield Sample("penstock_partitions_followed", now.followed)
    yield Sample("penstock_partitions_offline", broker.partitions.offline_count)
    yield Sample("penstock_partitions_under_replicated", now.under_replicated)
    yield Sample("penstock_partitions_under_min_isr", now.under_min_isr)
    yield Sample("penstock_partitions_at_min_isr", now.at_min_isr)
    yield Sample("penstock_isr_shrinks_total", since.isr_shrinks)
    yield Sample("penstock_isr_expands_total", since.isr_expands)
    yield Sample("penstock_replicated_bytes_total", since.replicated_bytes)
    yield Sample("penstock_replica_fetch_errors_total", since.fetch_errors)
    yield Sample("penstock_replica_corrupt_batches_total", since.corrupt_batches)
    yield Sample("penstock_truncations_total", since.truncations)
    yield Sample("penstock_truncations_below_watermark_total", since.truncations_below_watermark)


def _cluster(broker: "Broker") -> Iterator[Sample]:
    since = broker.controller_clock.counters
    yield Sample("penstock_active_controller", int(broker.driver.is_active))
    yield Sample("penstock_cluster_elections_total", since.elections)
    yield Sample("penstock_cluster_unclean_elections_total", since.unclean_elections)
    yield Sample("penstock_cluster_leaderless_total", since.leaderless_changes)
    yield Sample("penstock_cluster_isr_shrinks_total", since.isr_shrinks)
    yield Sample("penstock_cluster_isr_expands_total", since.isr_expansions)
    yield Sample("penstock_cluster_reassignments_started_total", since.reassignments_started)
    yield Sample("penstock_cluster_reassignments_completed_total", since.reassignments_completed)
    yield Sample("penstock_cluster_fencings_total", since.fencings)
    yield Sample("penstock_cluster_unfencings_total", since.unfencings)


def _in_sync(broker: "Broker") -> Iterator[Sample]:
    for partition in broker.partitions:
        if partition.leader_state is not None:
            place = (partition.topic, str(partition.index))
            yield Sample("penstock_partition_isr_size", len(partition.leader_state.isr), place)


def _place(lag: "FollowerLag") -> tuple[str, ...]:
    return lag.topic, str(lag.partition), str(lag.replica)
