"""Two images differ when any of their fields does, whatever a snapshot would write of it."""

from types import MappingProxyType

import pytest

from penstock.metadata.delta import replay
from penstock.metadata.image import ControllerImage, MetadataImage
from penstock.metadata.partition import RECOVERED, RECOVERING
from penstock.sim.ghost_log import Violation
from penstock.sim.image_law import TopicRules, by_value, check_image, check_images_agree
from penstock.wire.generated.records_metadata import (
    ConfigRecord,
    FeatureLevelRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    TopicRecord,
)

ID = b"t" * 16
RECORDS = [
    FeatureLevelRecord("group.version", 1),
    RegisterBrokerRecord(broker_id=1, broker_epoch=5),
    TopicRecord("a.b", ID),
    PartitionRecord(0, ID, [1], [1], leader=1, directories=[b"d" * 16]),
    ConfigRecord(2, "a.b", "retention.ms", "1"),
    ProducerIdsRecord(next_producer_id=1000),
]
CONTROLLERS = MappingProxyType({1: ControllerImage(1, b"i" * 16, ())})


def test_the_same_records_make_the_same_image() -> None:
    check_images_agree([replay(MetadataImage(), RECORDS), replay(MetadataImage(), RECORDS)])


@pytest.mark.parametrize("field", MetadataImage._fields)
def test_a_field_that_one_node_forgot_is_found(field: str) -> None:
    whole = replay(MetadataImage(), RECORDS)._replace(epoch=3, timestamp_ms=7, controllers=CONTROLLERS)
    empty = MetadataImage._field_defaults[field]
    assert by_value(whole)[field] != by_value(MetadataImage())[field], "the records above fill every field"
    with pytest.raises(Violation, match=rf"^R13: .* {field} "):
        check_images_agree([whole, whole._replace(**{field: empty})])


def test_a_partition_that_differs_is_found() -> None:
    whole = replay(MetadataImage(), RECORDS)
    changed = replay(whole, [PartitionChangeRecord(0, ID, isr=[])])._replace(end_offset=whole.end_offset)
    with pytest.raises(Violation, match=r"^R13: .* topics "):
        check_images_agree([whole, changed])


ALONE = PartitionRecord(0, ID, [1, 2, 3], [], leader=-1, directories=[b"d" * 16] * 3, last_known_elr=[2, 3])


def elected(leader: int, recovery_state: int) -> list[MetadataImage]:
    """Before and after one election, where nobody complete is left and 2 led last."""
    before = replay(MetadataImage(), [TopicRecord("a", ID), ALONE])
    change = PartitionChangeRecord(
        0, ID, isr=[leader], leader=leader, leader_recovery_state=recovery_state, last_known_elr=[]
    )
    return [before, replay(before, [change])]


@pytest.mark.parametrize(
    ("leader", "rules"),
    [(1, TopicRules(1)), (2, TopicRules(1)), (3, TopicRules(1, loses_unflushed=True))],
    ids=["anybody", "the last one that led", "another one, where stops may cost something"],
)
def test_an_unclean_leader_where_none_is_allowed_is_found(leader: int, rules: TopicRules) -> None:
    with pytest.raises(Violation, match=r"^C6: a-0 has an unclean leader"):
        check_image(*elected(leader, RECOVERING), lambda _: rules)


@pytest.mark.parametrize(
    ("leader", "rules"), [(3, TopicRules(1, unclean=True)), (2, TopicRules(1, loses_unflushed=True))]
)
def test_an_unclean_leader_where_one_is_allowed_is_not(leader: int, rules: TopicRules) -> None:
    check_image(*elected(leader, RECOVERING), lambda _: rules)


def test_a_leader_that_was_not_complete_and_says_nothing_of_it_is_found() -> None:
    with pytest.raises(Violation, match=r"^C6: a-0 is led by one that was not in sync"):
        check_image(*elected(3, RECOVERED), lambda _: TopicRules(1, unclean=True))
