"""Consumer groups: members of different libraries share one group, rebalance, resume and stay fenced."""

from collections.abc import Callable

import confluent_kafka
import pytest

from tests.conformance.conftest import NewTopicFunction
from tests.conformance.feed import Feed
from tests.conformance.java import Jvm
from tests.conformance.members import (
    AiokafkaMember,
    ConfluentMember,
    JavaMember,
    KafkaPythonMember,
    Member,
    Membership,
    received_by,
    wait_until_shared,
)
from tests.waiting import eventually

PARTITIONS = 6


@pytest.mark.java
def test_four_libraries_share_one_group(
    bootstrap: str, new_topic: NewTopicFunction, new_group: str, jvm: Jvm, running: Callable[[Member], Member]
) -> None:
    membership = Membership(bootstrap, new_group, new_topic(PARTITIONS))
    feed = Feed(bootstrap, membership.topic, PARTITIONS)
    joins: list[Callable[[], Member]] = [
        lambda: ConfluentMember(membership),
        lambda: KafkaPythonMember(membership),
        lambda: AiokafkaMember(membership),
        lambda: JavaMember(membership, jvm),
    ]
    members: list[Member] = []
    for join in joins:
        members.append(running(join()))
        wait_until_shared(members, PARTITIONS)
    present = list(members)
    for leaver in members[:3]:
        present.remove(leaver)
        leaver.stop()
        wait_until_shared(present, PARTITIONS)
    written = feed.stop()
    assert len(written) > 100
    eventually(lambda: written <= received_by(members), 30, message="records nobody received")


@pytest.mark.parametrize("leader", [ConfluentMember, KafkaPythonMember, AiokafkaMember])
def test_any_library_can_lead_the_group(
    leader: Callable[[Membership], Member],
    bootstrap: str,
    new_topic: NewTopicFunction,
    new_group: str,
    running: Callable[[Member], Member],
) -> None:
    membership = Membership(bootstrap, new_group, new_topic(PARTITIONS))
    members = [running(leader(membership))]
    wait_until_shared(members, PARTITIONS)
    for follower in (ConfluentMember, KafkaPythonMember, AiokafkaMember):
        members.append(running(follower(membership)))
        wait_until_shared(members, PARTITIONS)


@pytest.mark.java
def test_cooperative_members_keep_what_they_may_keep(
    bootstrap: str, new_topic: NewTopicFunction, new_group: str, jvm: Jvm, running: Callable[[Member], Member]
) -> None:
    membership = Membership(bootstrap, new_group, new_topic(PARTITIONS), strategy="cooperative-sticky")
    feed = Feed(bootstrap, membership.topic, PARTITIONS)
    members = [running(ConfluentMember(membership))]
    wait_until_shared(members, PARTITIONS)
    members.append(running(ConfluentMember(membership)))
    wait_until_shared(members, PARTITIONS)
    assert len(members[0].revoked()) == PARTITIONS // 2, "the eager way would have revoked everything"
    members.append(running(JavaMember(membership, jvm)))
    wait_until_shared(members, PARTITIONS)
    assert len(members[0].revoked()) == PARTITIONS // 2 + 1
    written = feed.stop()
    eventually(lambda: written <= received_by(members), 30, message="records nobody received")


@pytest.mark.java
def test_java_cooperative_pair(
    bootstrap: str, new_topic: NewTopicFunction, new_group: str, jvm: Jvm, running: Callable[[Member], Member]
) -> None:
    membership = Membership(bootstrap, new_group, new_topic(PARTITIONS), strategy="cooperative-sticky")
    first = running(JavaMember(membership, jvm))
    wait_until_shared([first], PARTITIONS)
    second = running(JavaMember(membership, jvm))
    wait_until_shared([first, second], PARTITIONS)
    assert len(first.revoked()) == PARTITIONS // 2


@pytest.mark.parametrize("library", [ConfluentMember, KafkaPythonMember, AiokafkaMember])
def test_a_static_member_comes_back_to_its_partitions(
    library: Callable[[Membership], Member],
    bootstrap: str,
    new_topic: NewTopicFunction,
    new_group: str,
    running: Callable[[Member], Member],
) -> None:
    base = Membership(bootstrap, new_group, new_topic(PARTITIONS), session_timeout_ms=30_000)
    stays = running(ConfluentMember(base._replace(instance_id="stays")))
    goes = running(library(base._replace(instance_id="goes")))
    wait_until_shared([stays, goes], PARTITIONS)
    kept, owned = stays.owned(), goes.owned()
    revoked_before = len(stays.revoked())
    goes.stop()
    returned = running(library(base._replace(instance_id="goes")))
    eventually(lambda: returned.owned() == owned, 30, message="the static member did not get its partitions back")
    assert stays.owned() == kept
    assert len(stays.revoked()) == revoked_before, "a known static member must not cause a rebalance"


def test_a_second_member_with_the_same_instance_id_fences_the_first(
    bootstrap: str, new_topic: NewTopicFunction, new_group: str, running: Callable[[Member], Member]
) -> None:
    membership = Membership(bootstrap, new_group, new_topic(2), instance_id="only")
    first = running(ConfluentMember(membership))
    eventually(lambda: first.owned() == {0, 1}, 30)
    second = running(ConfluentMember(membership))
    eventually(lambda: second.owned() == {0, 1}, 30)
    eventually(lambda: "fenced" in (first.error() or "").lower(), 30, message="the first one was not fenced")


@pytest.mark.java
def test_a_group_resumes_where_another_library_committed(
    bootstrap: str, new_topic: NewTopicFunction, new_group: str, jvm: Jvm
) -> None:
    topic = new_topic(1)
    membership = Membership(bootstrap, new_group, topic)
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap})
    for number, join in enumerate((ConfluentMember, KafkaPythonMember, AiokafkaMember, lambda m: JavaMember(m, jvm))):
        batch = [b"%d-%d" % (number, i) for i in range(20)]
        for value in batch:
            producer.produce(topic, value)
        assert producer.flush(30) == 0
        member = join(membership)
        eventually(member.received, 30, message=f"{join} received nothing: owns {member.owned()}, {member.error()}")
        eventually(lambda m=member: len(m.received()) >= 20, 30)
        assert member.received() == batch
        end = 20 * (number + 1)
        eventually(lambda e=end: _committed(bootstrap, new_group, topic) == e, 30)
        member.stop()


def _committed(bootstrap: str, group: str, topic: str) -> int:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    try:
        [partition] = consumer.committed([confluent_kafka.TopicPartition(topic, 0)], timeout=30)
        return int(partition.offset)
    finally:
        consumer.close()
