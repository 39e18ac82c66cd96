"""Bootstrapping, registration and producer ids."""

from penstock.controller.brokers import decide_bootstrap
from penstock.controller.producer_ids import BLOCK_SIZE, ProducerIdBlock, decide_allocate_producer_ids
from penstock.controller.topics import NewTopic
from penstock.metadata.features import DEFAULT_LEVELS, METADATA_LEVEL, METADATA_VERSION
from penstock.metadata.image import MetadataImage
from penstock.metadata.settings import BrokerSettings
from penstock.model.errors import ErrorCode, Refusal
from tests.controller.cluster import Cluster, directory
from tests.controller.test_topics import create


def test_bootstrap_happens_once() -> None:
    cluster = Cluster()
    assert cluster.image.features == DEFAULT_LEVELS
    assert list(decide_bootstrap(cluster.image, cluster.settings).records) == []
    assert len(list(decide_bootstrap(MetadataImage(), BrokerSettings()).records)) == len(DEFAULT_LEVELS)


def test_bootstrap_adds_features_that_an_older_release_did_not_know() -> None:
    older = MetadataImage(features={METADATA_VERSION: METADATA_LEVEL})
    added = {record.name: record.feature_level for record in decide_bootstrap(older, BrokerSettings()).records}
    assert added == {name: level for name, level in DEFAULT_LEVELS.items() if name != METADATA_VERSION}


def test_a_broker_epoch_is_the_offset_of_its_registration_and_grows() -> None:
    cluster = Cluster()
    first = cluster.image.brokers[1].epoch
    end = cluster.image.end_offset
    assert cluster.register(1) == end
    assert cluster.image.brokers[1].epoch == end > first, "C5"
    assert not cluster.image.brokers[1].fenced


def test_other_directories_under_the_same_id_are_refused() -> None:
    cluster = Cluster()
    answer = cluster.register(1, directories=(directory(99),))
    assert isinstance(answer, Refusal)
    assert answer.code == ErrorCode.DUPLICATE_BROKER_REGISTRATION
    assert cluster.register(1, directories=(directory(99), directory(10))) == cluster.image.brokers[1].epoch


def leader_epochs(cluster: Cluster) -> list[int]:
    topic = cluster.image.topic("a")
    assert topic is not None
    return [partition.leader_epoch for partition in topic.partitions]


def test_what_may_have_lost_its_tail_gets_a_new_leader_epoch() -> None:
    cluster = Cluster()
    create(cluster, NewTopic("a", 2, 1))
    cluster.register(1, clean=False)
    assert leader_epochs(cluster) == [0, 0], "what was acknowledged was on disk"
    cluster.settings = BrokerSettings.from_mapping({"flush.mode": "os"})
    cluster.register(1, clean=True)
    assert leader_epochs(cluster) == [0, 0], "nothing was lost in an orderly stop"
    cluster.register(1, clean=False)
    assert leader_epochs(cluster) == [1, 1]


def test_producer_ids_come_in_blocks_that_never_overlap() -> None:
    cluster = Cluster()
    blocks = [cluster.run(lambda view: decide_allocate_producer_ids(view.image, 1)) for _ in range(3)]
    assert blocks == [ProducerIdBlock(n * BLOCK_SIZE, (n + 1) * BLOCK_SIZE) for n in range(3)]
    assert cluster.image.next_producer_id == 3 * BLOCK_SIZE


def test_strangers_get_no_producer_ids() -> None:
    answer = Cluster().run(lambda view: decide_allocate_producer_ids(view.image, 9))
    assert isinstance(answer, Refusal)
    assert answer.code == ErrorCode.STALE_BROKER_EPOCH
