"""Creating and deleting topics: what is written, what is refused and how."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.controller.placement import plan_replicas
from penstock.controller.topic_names import check_topic_name
from penstock.controller.topics import (
    MAX_PARTITIONS_PER_REQUEST,
    CreatedTopic,
    NewTopic,
    decide_create_topics,
    decide_delete_topics,
)
from penstock.metadata.image import TopicImage
from penstock.model.errors import ErrorCode, Refusal
from tests.controller.cluster import Cluster, directory


def create(cluster: Cluster, *topics: NewTopic, validate_only: bool = False) -> list[CreatedTopic | Refusal]:
    return cluster.run(
        lambda view: decide_create_topics(
            view.image, topics, cluster.settings, cluster.rng, validate_only=validate_only
        )
    )


def delete(cluster: Cluster, *wanted: str | bytes) -> list[TopicImage | Refusal]:
    return cluster.run(lambda view: decide_delete_topics(view.image, wanted, cluster.settings))


def test_a_topic_comes_into_being() -> None:
    cluster = Cluster()
    (answer,) = create(cluster, NewTopic("orders", 3, 1, configs={"retention.ms": "1h"}))
    assert isinstance(answer, CreatedTopic)
    topic = cluster.image.topic("orders")
    assert topic is not None
    assert (topic.id, len(topic.partitions)) == (answer.topic_id, 3)
    assert (answer.partitions, answer.replication_factor) == (3, 1)
    for partition in topic.partitions:
        assert (partition.replicas, partition.isr, partition.leader) == ((1,), (1,), 1)
        assert (partition.leader_epoch, partition.partition_epoch) == (0, 0)
        assert partition.directories == (directory(10),)
    assert cluster.image.topic_config("orders") == answer.configs == {"retention.ms": "3600000"}


def test_defaults() -> None:
    cluster = Cluster(brokers=5, num_partitions="4")
    (answer,) = create(cluster, NewTopic("a"))
    assert isinstance(answer, CreatedTopic)
    assert (answer.partitions, answer.replication_factor) == (4, 3), "as many replicas as brokers, up to three"
    cluster = Cluster(brokers=2, default_replication_factor="1")
    (answer,) = create(cluster, NewTopic("a"))
    assert isinstance(answer, CreatedTopic)
    assert answer.replication_factor == 1


@pytest.mark.parametrize("factor", [-1, 3])
def test_a_broker_that_is_away_for_a_while_gets_its_replicas_all_the_same(factor: int) -> None:
    """A restart is no reason for fewer copies, nor to refuse a topic; as Kafka has it."""
    cluster = Cluster(brokers=3)
    cluster.fence(2)
    (answer,) = create(cluster, NewTopic("a", 4, factor))
    assert isinstance(answer, CreatedTopic)
    assert (answer.replication_factor, answer.configs) == (3, {"min.insync.replicas": "2"})
    for number in range(4):
        partition = cluster.partition(number=number)
        assert sorted(partition.replicas) == [1, 2, 3]
        assert sorted(partition.isr) == [1, 3]
        assert partition.leader == partition.replicas[0] != 2
        assert partition.directories[partition.replicas.index(2)] == directory(20)


def test_who_is_away_is_passed_over_where_there_are_others() -> None:
    cluster = Cluster(brokers=4)
    cluster.fence(2)
    create(cluster, NewTopic("a", 8))
    assert all(2 not in cluster.partition(number=number).replicas for number in range(8))


def test_nobody_there_to_lead() -> None:
    cluster = Cluster(brokers=2)
    cluster.fence(1)
    cluster.fence(2)
    (answer,) = create(cluster, NewTopic("a"))
    assert isinstance(answer, Refusal)
    assert (answer.code, "none of the 2 brokers is available" in answer.message) == (
        ErrorCode.INVALID_REPLICATION_FACTOR,
        True,
    )


def test_validating_writes_nothing() -> None:
    cluster = Cluster()
    (answer,) = create(cluster, NewTopic("a"), validate_only=True)
    assert isinstance(answer, CreatedTopic)
    assert cluster.image.topic("a") is None


@pytest.mark.parametrize(
    ("topic", "code", "part"),
    [
        (NewTopic("exists"), ErrorCode.TOPIC_ALREADY_EXISTS, "exists"),
        (NewTopic(""), ErrorCode.INVALID_TOPIC_EXCEPTION, "empty"),
        (NewTopic("."), ErrorCode.INVALID_TOPIC_EXCEPTION, "'.'"),
        (NewTopic("a/b"), ErrorCode.INVALID_TOPIC_EXCEPTION, "letters"),
        (NewTopic("ä"), ErrorCode.INVALID_TOPIC_EXCEPTION, "ASCII"),
        (NewTopic("a\n"), ErrorCode.INVALID_TOPIC_EXCEPTION, "letters"),
        (NewTopic("x" * 250), ErrorCode.INVALID_TOPIC_EXCEPTION, "249"),
        (NewTopic("with_mark"), ErrorCode.INVALID_TOPIC_EXCEPTION, "'with.mark'"),
        (NewTopic("a", 0), ErrorCode.INVALID_PARTITIONS, "at least 1"),
        (NewTopic("a", -2), ErrorCode.INVALID_PARTITIONS, "-2"),
        (NewTopic("a", MAX_PARTITIONS_PER_REQUEST + 1), ErrorCode.POLICY_VIOLATION, "add partitions afterwards"),
        (NewTopic("a", 1, 0), ErrorCode.INVALID_REPLICATION_FACTOR, "at least 1"),
        (NewTopic("a", 1, 3), ErrorCode.INVALID_REPLICATION_FACTOR, "create it with 1 or start more brokers"),
        (NewTopic("a", configs={"retention": "1"}), ErrorCode.INVALID_CONFIG, "did you mean retention.ms?"),
        (NewTopic("a", configs={"retention.ms": "x"}), ErrorCode.INVALID_CONFIG, "retention.ms"),
        (NewTopic("a", configs={"retention.ms": None}), ErrorCode.INVALID_CONFIG, "no value"),
        (NewTopic("a", 1, assignments={0: (1,)}), ErrorCode.INVALID_REQUEST, "-1"),
        (NewTopic("a", assignments={1: (1,)}), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "without gaps"),
        (NewTopic("a", assignments={0: ()}), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "no replicas"),
        (NewTopic("a", assignments={0: (1, 1)}), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "twice"),
        (NewTopic("a", assignments={0: (9,)}), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "no broker 9"),
        (NewTopic("__cluster_metadata"), ErrorCode.INVALID_REQUEST, "metadata log"),
    ],
)
def test_refusals(topic: NewTopic, code: ErrorCode, part: str) -> None:
    cluster = Cluster()
    create(cluster, NewTopic("exists"), NewTopic("with.mark"))
    before = cluster.image
    (answer,) = create(cluster, topic)
    assert isinstance(answer, Refusal)
    assert answer.code == code
    assert part in answer.message
    assert cluster.image.end_offset == before.end_offset


def test_one_refused_topic_does_not_stop_the_others() -> None:
    cluster = Cluster()
    answers = create(cluster, NewTopic("a"), NewTopic("a b"), NewTopic("c"))
    assert [type(answer) for answer in answers] == [CreatedTopic, Refusal, CreatedTopic]
    assert sorted(cluster.image.topics) == ["a", "c"]


def test_names_within_one_request() -> None:
    cluster = Cluster()
    answers = create(cluster, NewTopic("a"), NewTopic("a"), NewTopic("x.y"), NewTopic("x_y"))
    codes = [answer.code if isinstance(answer, Refusal) else 0 for answer in answers]
    assert codes == [ErrorCode.INVALID_REQUEST, ErrorCode.INVALID_REQUEST, 0, ErrorCode.INVALID_TOPIC_EXCEPTION]


def test_a_collision_ends_with_the_topic() -> None:
    cluster = Cluster()
    create(cluster, NewTopic("a.b"))
    delete(cluster, "a.b")
    (answer,) = create(cluster, NewTopic("a_b"))
    assert isinstance(answer, CreatedTopic)


def test_assignment_by_hand() -> None:
    cluster = Cluster(brokers=3)
    (answer,) = create(cluster, NewTopic("a", assignments={1: (3, 1), 0: (2, 3)}))
    assert isinstance(answer, CreatedTopic)
    topic = cluster.image.topic("a")
    assert topic is not None
    assert [p.replicas for p in topic.partitions] == [(2, 3), (3, 1)]
    assert [p.leader for p in topic.partitions] == [2, 3]
    (answer,) = create(cluster, NewTopic("b", assignments={0: (2, 3), 1: (1,)}))
    assert isinstance(answer, Refusal)
    assert answer.code == ErrorCode.INVALID_REPLICA_ASSIGNMENT


def test_the_directory_with_the_fewest_replicas_is_chosen() -> None:
    cluster = Cluster(directories=3)
    create(cluster, NewTopic("a", 7, 1))
    create(cluster, NewTopic("b", 2, 1))
    assert sorted(cluster.image.directory_replicas.values()) == [3, 3, 3]
    delete(cluster, "a")
    create(cluster, NewTopic("c", 1, 1))
    assert sum(cluster.image.directory_replicas.values()) == 3


@settings(max_examples=80, deadline=None)
@given(st.integers(1, 9), st.integers(1, 40), st.integers(0, 20), st.data())
def test_replicas_are_distinct_and_leaders_balanced(
    brokers: int, count: int, start: int, data: st.DataObject
) -> None:
    factor = data.draw(st.integers(1, brokers))
    ids = list(range(1, brokers + 1))
    planned = list(plan_replicas(ids, 0, count, factor, start))
    assert len(planned) == count
    for replicas in planned:
        assert len(set(replicas)) == factor
    leaders = Counter(replicas[0] for replicas in planned)
    assert max(leaders.values()) - min(leaders.get(broker, 0) for broker in ids) <= 1


def test_deleting() -> None:
    cluster = Cluster()
    create(cluster, NewTopic("a", configs={"retention.ms": "1"}), NewTopic("b"))
    b = cluster.image.topic("b")
    assert b is not None
    answers = delete(cluster, "a", b.id)
    assert [answer.name for answer in answers if isinstance(answer, TopicImage)] == ["a", "b"]
    assert len(cluster.image.topics) == 0
    assert cluster.image.partition_count == 0
    assert len(cluster.image.configs) == 0


def test_refused_deletions() -> None:
    cluster = Cluster()
    create(cluster, NewTopic("a"), NewTopic("__consumer_offsets"))
    a = cluster.image.topic("a")
    assert a is not None
    answers = delete(cluster, "nothing", b"x" * 16, "__consumer_offsets", "a", a.id)
    codes = [answer.code if isinstance(answer, Refusal) else 0 for answer in answers]
    assert codes == [
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.INVALID_REQUEST,
    ]
    for twice in (("a", "a"), (a.id, a.id), ("nothing", "nothing")):
        codes = [answer.code if isinstance(answer, Refusal) else 0 for answer in delete(cluster, *twice)]
        assert codes == [ErrorCode.INVALID_REQUEST] * 2
    assert cluster.image.topic("a") is not None, "whatever is named twice stays"
    cluster = Cluster(delete_topic_enable="false")
    create(cluster, NewTopic("a"))
    (answer,) = delete(cluster, "a")
    assert isinstance(answer, Refusal)
    assert answer.code == ErrorCode.TOPIC_DELETION_DISABLED
    assert "delete.topic.enable" in answer.message


@given(st.text(max_size=260))
def test_a_legal_name_is_a_legal_directory(name: str) -> None:
    if check_topic_name(name) is None:
        assert name.isascii()
        assert "/" not in name
        assert "\x00" not in name
        assert 0 < len(name) <= 249
