"""Changing settings: one at a time and as a whole."""

import pytest

from penstock.controller.configs import (
    Change,
    Op,
    Resource,
    decide_alter_configs,
    decide_incremental_alter_configs,
)
from penstock.controller.topics import NewTopic
from penstock.metadata.image import BROKER_RESOURCE, GROUP_RESOURCE, TOPIC_RESOURCE
from penstock.model.errors import ErrorCode, Refusal
from tests.controller.cluster import Cluster
from tests.controller.test_topics import create

TOPIC = Resource(TOPIC_RESOURCE, "a")
BROKER = Resource(BROKER_RESOURCE, "1")
ALL_BROKERS = Resource(BROKER_RESOURCE, "")


def cluster_with_topic() -> Cluster:
    cluster = Cluster()
    create(cluster, NewTopic("a", configs={"retention.ms": "5"}))
    return cluster


def change(cluster: Cluster, resource: Resource, *changes: Change, validate_only: bool = False) -> Refusal | None:
    (answer,) = cluster.run(
        lambda view: decide_incremental_alter_configs(
            view.image, [(resource, changes)], cluster.settings, validate_only=validate_only
        )
    )
    return answer


def replace(cluster: Cluster, resource: Resource, **values: str | None) -> Refusal | None:
    named = {name.replace("_", "."): value for name, value in values.items()}
    (answer,) = cluster.run(lambda view: decide_alter_configs(view.image, [(resource, named)], cluster.settings))
    return answer


def test_set_and_delete() -> None:
    cluster = cluster_with_topic()
    assert (
        change(cluster, TOPIC, Change("segment.bytes", Op.SET, "1MiB"), Change("retention.ms", Op.DELETE, None))
        is None
    )
    assert cluster.image.topic_config("a") == {"segment.bytes": "1048576"}


def test_append_and_subtract_work_on_what_counts() -> None:
    cluster = cluster_with_topic()
    assert change(cluster, TOPIC, Change("cleanup.policy", Op.APPEND, "compact")) is None
    assert cluster.image.topic_config("a")["cleanup.policy"] == "delete,compact", "delete is inherited"
    assert change(cluster, TOPIC, Change("cleanup.policy", Op.APPEND, "compact")) is None
    assert change(cluster, TOPIC, Change("cleanup.policy", Op.SUBTRACT, "delete,nothing")) is None
    assert cluster.image.topic_config("a")["cleanup.policy"] == "compact"
    throttled = "leader.replication.throttled.replicas"
    assert change(cluster, TOPIC, Change(throttled, Op.APPEND, "0:1, 1:1")) is None
    assert cluster.image.topic_config("a")[throttled] == "0:1,1:1"


def test_no_change_writes_nothing() -> None:
    cluster = cluster_with_topic()
    end = cluster.image.end_offset
    assert change(cluster, TOPIC, Change("retention.ms", Op.SET, "5ms")) is None
    assert change(cluster, TOPIC, Change("segment.bytes", Op.SET, "100"), validate_only=True) is None
    assert cluster.image.end_offset == end


def test_dynamic_broker_settings() -> None:
    cluster = cluster_with_topic()
    assert change(cluster, ALL_BROKERS, Change("num.partitions", Op.SET, "3")) is None
    assert change(cluster, BROKER, Change("num.partitions", Op.SET, "4")) is None
    assert cluster.image.cluster_config == {"num.partitions": "3"}
    assert cluster.image.broker_config(1) == {"num.partitions": "4"}


@pytest.mark.parametrize(
    ("resource", "changes", "code", "part"),
    [
        (
            Resource(TOPIC_RESOURCE, "x"),
            [Change("retention.ms", 0, "1")],
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            "'x'",
        ),
        (Resource(BROKER_RESOURCE, "7"), [], ErrorCode.BROKER_ID_NOT_REGISTERED, "known are 1"),
        (Resource(BROKER_RESOURCE, "01"), [], ErrorCode.BROKER_ID_NOT_REGISTERED, "known are 1"),
        (Resource(BROKER_RESOURCE, "9" * 5_000), [], ErrorCode.BROKER_ID_NOT_REGISTERED, "known are 1"),
        (Resource(BROKER_RESOURCE, "\u00b2"), [], ErrorCode.INVALID_REQUEST, "by its id"),
        (Resource(BROKER_RESOURCE, "me"), [], ErrorCode.INVALID_REQUEST, "'me'"),
        (Resource(GROUP_RESOURCE, "g"), [], ErrorCode.INVALID_REQUEST, "type 32"),
        (TOPIC, [Change("retention", 0, "1")], ErrorCode.INVALID_CONFIG, "did you mean retention.ms?"),
        (TOPIC, [Change("retention.ms", 0, "-5")], ErrorCode.INVALID_CONFIG, "at least -1"),
        (TOPIC, [Change("retention.ms", 0, None)], ErrorCode.INVALID_REQUEST, "no value"),
        (TOPIC, [Change("retention.ms", 9, "1")], ErrorCode.INVALID_REQUEST, "operation 9"),
        (TOPIC, [Change("retention.ms", 2, "1")], ErrorCode.INVALID_CONFIG, "APPEND needs a list"),
        (TOPIC, [Change("segment.ms", 0, "1"), Change("segment.ms", 1, None)], ErrorCode.INVALID_REQUEST, "twice"),
        (TOPIC, [Change("cleanup.policy", 3, "delete")], ErrorCode.INVALID_CONFIG, "cleanup.policy"),
        (TOPIC, [Change("num.partitions", 0, "1")], ErrorCode.INVALID_CONFIG, "num.partitions"),
        (BROKER, [Change("node.id", 0, "2")], ErrorCode.INVALID_CONFIG, "at start only"),
        (BROKER, [Change("num.partitions", 0, "0")], ErrorCode.INVALID_CONFIG, "at least 1"),
        (BROKER, [Change("min.insync.replicas", 0, "1")], ErrorCode.INVALID_CONFIG, "one for all brokers"),
        (ALL_BROKERS, [Change("log.level", 0, "debug")], ErrorCode.INVALID_CONFIG, "at start only"),
    ],
)
def test_refusals(resource: Resource, changes: list[Change], code: ErrorCode, part: str) -> None:
    cluster = cluster_with_topic()
    end = cluster.image.end_offset
    answer = change(cluster, resource, *changes)
    assert answer is not None
    assert answer.code == code
    assert part in answer.message
    assert cluster.image.end_offset == end


def test_one_wrong_value_leaves_the_resource_as_it_was() -> None:
    cluster = cluster_with_topic()
    answer = change(cluster, TOPIC, Change("segment.bytes", Op.SET, "100"), Change("retention.ms", Op.SET, "x"))
    assert answer is not None
    assert cluster.image.topic_config("a") == {"retention.ms": "5"}


def test_a_resource_named_twice_is_refused() -> None:
    cluster = cluster_with_topic()
    answers = cluster.run(
        lambda view: decide_incremental_alter_configs(view.image, [(TOPIC, []), (TOPIC, [])], cluster.settings)
    )
    assert [answer and answer.code for answer in answers] == [ErrorCode.INVALID_REQUEST] * 2


def test_the_older_form_replaces_everything() -> None:
    cluster = cluster_with_topic()
    assert replace(cluster, TOPIC, segment_bytes="100") is None
    assert cluster.image.topic_config("a") == {"segment.bytes": "100"}
    answer = replace(cluster, TOPIC, retention_ms=None)
    assert answer is not None
    assert answer.code == ErrorCode.INVALID_REQUEST
    answer = replace(cluster, TOPIC, retention_ms="x")
    assert answer is not None
    assert answer.code == ErrorCode.INVALID_CONFIG
    assert replace(cluster, TOPIC) is None
    assert cluster.image.topic_config("a") == {}
