"""Feature levels, controllers, and replicas that tell their directory."""

from penstock.controller.brokers import decide_bootstrap
from penstock.controller.controllers import decide_register_controller, decide_unregister_controller
from penstock.controller.directories import AssignedReplica, decide_assign_replicas_to_dirs
from penstock.controller.features import SAFE_DOWNGRADE, UNSAFE_DOWNGRADE, FeatureUpdate, decide_update_features
from penstock.controller.producer_ids import decide_allocate_producer_ids
from penstock.metadata.delta import replay
from penstock.metadata.features import (
    DEFAULT_LEVELS,
    ELR_VERSION,
    GROUP_VERSION,
    KRAFT_VERSION,
    METADATA_LEVEL,
    METADATA_VERSION,
)
from penstock.metadata.image import ControllerImage, MetadataImage
from penstock.metadata.listeners import Listener
from penstock.metadata.settings import BrokerSettings
from penstock.metadata.snapshot import image_records
from penstock.model.errors import ErrorCode, Refusal
from tests.controller.cluster import Cluster, directory
from tests.controller.test_heartbeats import three
from tests.controller.test_isr import ask


def update(cluster: Cluster, *updates: FeatureUpdate, validate_only: bool = False) -> dict[str, int]:
    answer = cluster.run(
        lambda view: decide_update_features(view.image, updates, cluster.settings, validate_only=validate_only)
    )
    return {name: refusal.code if refusal else 0 for name, refusal in answer.items()}


def test_levels() -> None:
    cluster = three()
    failed = ErrorCode.INVALID_UPDATE_VERSION
    assert update(cluster, FeatureUpdate("nothing", 1)) == {"nothing": failed}
    assert update(cluster, FeatureUpdate(GROUP_VERSION, 0)) == {GROUP_VERSION: failed}, "ask for a downgrade"
    down = FeatureUpdate(GROUP_VERSION, 0, SAFE_DOWNGRADE)
    assert update(cluster, down, validate_only=True) == {GROUP_VERSION: 0}
    assert cluster.image.features[GROUP_VERSION] == 1
    assert update(cluster, down, FeatureUpdate("nothing", 1)) == {GROUP_VERSION: 0, "nothing": failed}
    assert cluster.image.features[GROUP_VERSION] == 1, "all or nothing"
    assert update(cluster, down) == {GROUP_VERSION: 0}
    assert cluster.image.features[GROUP_VERSION] == 0
    for kind in (SAFE_DOWNGRADE, UNSAFE_DOWNGRADE):
        assert update(cluster, FeatureUpdate(GROUP_VERSION, 1, kind)) == {GROUP_VERSION: failed}, "no downgrade"
    assert update(cluster, FeatureUpdate(GROUP_VERSION, 9)) == {GROUP_VERSION: failed}
    assert update(cluster, FeatureUpdate(GROUP_VERSION, 1)) == {GROUP_VERSION: 0}
    assert update(cluster, FeatureUpdate(METADATA_VERSION, METADATA_LEVEL)) == {METADATA_VERSION: 0}
    assert update(cluster, FeatureUpdate(METADATA_VERSION, 0, SAFE_DOWNGRADE)) == {METADATA_VERSION: failed}
    assert update(cluster, FeatureUpdate(GROUP_VERSION, 1, 7)) == {GROUP_VERSION: failed}
    assert update(cluster, down, down) == {GROUP_VERSION: ErrorCode.INVALID_REQUEST}


def test_the_quorum_keeps_its_level() -> None:
    cluster = three()
    assert update(cluster, FeatureUpdate(KRAFT_VERSION, 1), FeatureUpdate(GROUP_VERSION, 1)) == {
        KRAFT_VERSION: 0,
        GROUP_VERSION: 0,
    }
    assert KRAFT_VERSION not in cluster.image.features, "the quorum's own records tell it"
    failed = {KRAFT_VERSION: ErrorCode.INVALID_UPDATE_VERSION}
    assert update(cluster, FeatureUpdate(KRAFT_VERSION, 0, SAFE_DOWNGRADE)) == failed
    assert update(cluster, FeatureUpdate(KRAFT_VERSION, 2)) == failed


def test_a_level_that_was_lowered_stays_so() -> None:
    """Also when the next broker registers, and when another controller takes over from a snapshot."""
    cluster = three()
    lowered = {name: 0 for name in DEFAULT_LEVELS if name != METADATA_VERSION}
    downs = [FeatureUpdate(name, 0, SAFE_DOWNGRADE) for name in lowered]
    assert update(cluster, *downs) == lowered
    for image in (cluster.image, replay(MetadataImage(), image_records(cluster.image))):
        assert not list(decide_bootstrap(image, BrokerSettings()).records)
        assert image.features == {METADATA_VERSION: METADATA_LEVEL, **lowered}
    assert isinstance(cluster.register(4, directories=(directory(40),)), int)


def test_every_node_must_know_the_level() -> None:
    cluster = three()
    update(cluster, FeatureUpdate(GROUP_VERSION, 0, SAFE_DOWNGRADE))
    older = cluster.image.brokers[2]._replace(features=((GROUP_VERSION, 0, 0),))
    cluster.image = cluster.image._replace(brokers={**cluster.image.brokers, 2: older})
    assert update(cluster, FeatureUpdate(GROUP_VERSION, 1)) == {GROUP_VERSION: ErrorCode.INVALID_UPDATE_VERSION}


def test_without_eligible_leader_replicas() -> None:
    cluster = three()
    down = FeatureUpdate(ELR_VERSION, 0, SAFE_DOWNGRADE)
    ask(cluster, (1,))
    assert cluster.partition().eligible_leader_replicas
    cluster.fence(1)
    cluster.fence(2)
    cluster.fence(3)
    assert update(cluster, down) == {ELR_VERSION: ErrorCode.FEATURE_UPDATE_FAILED}
    cluster.beat(2)
    assert update(cluster, down) == {ELR_VERSION: 0}
    assert cluster.partition().eligible_leader_replicas == ()


def test_controllers() -> None:
    cluster = three()
    one = ControllerImage(1, b"i" * 16, (Listener("CONTROLLER", "h", 9093),), (("metadata.version", 1, 25),))
    cluster.run(lambda view: decide_register_controller(view.image, one))
    assert cluster.image.controllers == {1: one}
    end = cluster.image.end_offset
    cluster.run(lambda view: decide_register_controller(view.image, one))
    assert cluster.image.end_offset == end
    cluster.run(lambda view: decide_unregister_controller(view.image, 1))
    assert cluster.image.controllers == {}
    assert isinstance(cluster.run(lambda view: decide_unregister_controller(view.image, 1)), Refusal)


def test_directories() -> None:
    cluster = Cluster(2, directories=2)
    from penstock.controller.topics import NewTopic
    from tests.controller.test_topics import create

    create(cluster, NewTopic("a", assignments={0: (1, 2)}))
    topic = cluster.image.topic("a")
    assert topic is not None
    epoch = cluster.image.brokers[1].epoch

    def assign(
        where: bytes, topic_id: bytes = topic.id, number: int = 0, broker: int = 1, partition_epoch: int = -1
    ) -> object:
        replicas = [AssignedReplica(where, topic_id, number, partition_epoch)]
        return cluster.run(
            lambda view: decide_assign_replicas_to_dirs(view.image, broker, epoch, replicas, cluster.settings)
        )

    assert assign(directory(11)) == [ErrorCode.NONE]
    assert cluster.partition().directory_of(1) == directory(11)
    assert assign(directory(11), b"x" * 16) == [ErrorCode.UNKNOWN_TOPIC_ID]
    assert assign(directory(11), number=4) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert isinstance(assign(directory(11), broker=2), Refusal)
    assert assign(directory(66)) == [ErrorCode.NONE]
    assert (cluster.partition().leader, cluster.partition().isr) == (2, (2,)), "a directory that is not in order"
    now = cluster.partition().partition_epoch
    assert assign(directory(11), partition_epoch=now - 1) == [ErrorCode.INVALID_UPDATE_VERSION]
    assert cluster.partition().directory_of(1) == directory(66), "what came late says nothing"
    assert assign(directory(11), partition_epoch=now) == [ErrorCode.NONE]
    assert cluster.partition().directory_of(1) == directory(11)


def test_producer_ids_are_for_the_registered_incarnation() -> None:
    cluster = three()
    epoch = cluster.image.brokers[2].epoch
    answer = cluster.run(lambda view: decide_allocate_producer_ids(view.image, 2, epoch - 1))
    assert isinstance(answer, Refusal)
    assert answer.code == ErrorCode.STALE_BROKER_EPOCH
    assert not isinstance(cluster.run(lambda view: decide_allocate_producer_ids(view.image, 2, epoch)), Refusal)
