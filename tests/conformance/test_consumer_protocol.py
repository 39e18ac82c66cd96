"""Consumer groups of KIP-848: the broker assigns, members take over partition by partition."""

from collections.abc import Callable

import pytest
from confluent_kafka import ConsumerGroupState, ConsumerGroupType
from confluent_kafka.admin import AdminClient

from tests.conformance.conftest import NewTopicFunction
from tests.conformance.feed import Feed
from tests.conformance.java import Jvm
from tests.conformance.members import (
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
SECONDS = 30


@pytest.fixture
def membership(bootstrap: str, new_topic: NewTopicFunction, new_group: str) -> Membership:
    return Membership(bootstrap, new_group, new_topic(PARTITIONS), strategy="uniform", protocol="consumer")


@pytest.mark.java
@pytest.mark.parametrize("assignor", ["uniform", "range"])
def test_librdkafka_and_java_share_a_group(
    membership: Membership, assignor: str, jvm: Jvm, admin: AdminClient, running: Callable[[Member], Member]
) -> None:
    membership = membership._replace(strategy=assignor)
    feed = Feed(membership.bootstrap, membership.topic, PARTITIONS)
    members = [running(ConfluentMember(membership))]
    wait_until_shared(members, PARTITIONS)
    members.append(running(JavaMember(membership, jvm)))
    wait_until_shared(members, PARTITIONS)
    assert len(members[0].revoked()) == PARTITIONS // 2, "only what another member gets is taken away"
    members.append(running(ConfluentMember(membership)))
    wait_until_shared(members, PARTITIONS)

    described = admin.describe_consumer_groups([membership.group])[membership.group].result(SECONDS)
    assert (described.type, described.state) == (ConsumerGroupType.CONSUMER, ConsumerGroupState.STABLE)
    assert described.partition_assignor == assignor
    assert sorted(len(m.assignment.topic_partitions) for m in described.members) == [2, 2, 2]

    present = list(members)
    for leaver in members[:2]:
        present.remove(leaver)
        leaver.stop()
        wait_until_shared(present, PARTITIONS)
    written = feed.stop()
    eventually(lambda: written <= received_by(members), SECONDS, message="records nobody received")


@pytest.mark.java
def test_a_classic_group_is_upgraded_while_it_runs(
    membership: Membership, jvm: Jvm, running: Callable[[Member], Member]
) -> None:
    """A classic member and one of the new protocol serve one group, in either order of coming and going."""
    classic = membership._replace(protocol="classic", strategy="range")
    feed = Feed(membership.bootstrap, membership.topic, PARTITIONS)
    old = running(ConfluentMember(classic))
    wait_until_shared([old], PARTITIONS)
    new = running(JavaMember(membership, jvm))
    wait_until_shared([old, new], PARTITIONS)
    old.stop()
    wait_until_shared([new], PARTITIONS)
    returned = running(KafkaPythonMember(classic))
    wait_until_shared([new, returned], PARTITIONS)
    new.stop()
    wait_until_shared([returned], PARTITIONS)
    written = feed.stop()
    eventually(lambda: written <= received_by([old, new, returned]), SECONDS, message="records nobody received")


def test_a_static_member_comes_back_to_its_partitions(
    membership: Membership, running: Callable[[Member], Member]
) -> None:
    stays = running(ConfluentMember(membership._replace(instance_id="stays")))
    goes = running(ConfluentMember(membership._replace(instance_id="goes")))
    wait_until_shared([stays, goes], PARTITIONS)
    kept, owned = stays.owned(), goes.owned()
    goes.stop()
    returned = running(ConfluentMember(membership._replace(instance_id="goes")))
    eventually(
        lambda: returned.owned() == owned, SECONDS, message="the static member did not get its partitions back"
    )
    assert stays.owned() == kept


@pytest.mark.java
def test_kafkas_tool_shows_the_group(membership: Membership, jvm: Jvm, running: Callable[[Member], Member]) -> None:
    member = running(JavaMember(membership, jvm))
    wait_until_shared([member], PARTITIONS)
    command = ("--bootstrap-server", membership.bootstrap, "--group", membership.group, "--describe")
    state = jvm.checked_tool("kafka-consumer-groups", *command, "--state")
    assert "uniform" in state
    assert "Stable" in state
    members = jvm.checked_tool("kafka-consumer-groups", *command, "--members", "--verbose")
    assert f"{membership.topic}:0,1,2,3,4,5" in members
