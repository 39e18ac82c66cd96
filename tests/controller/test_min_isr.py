"""The min.insync.replicas of the cluster: written down once, the same for leaders and controllers."""

from penstock.controller.brokers import decide_bootstrap
from penstock.controller.configs import Change, Op
from penstock.controller.features import SAFE_DOWNGRADE, FeatureUpdate, decide_update_features
from penstock.controller.topics import NewTopic
from penstock.metadata.delta import replay
from penstock.metadata.features import ELR_VERSION
from penstock.metadata.settings import BrokerSettings
from penstock.model.errors import ErrorCode, Refusal
from penstock.wire.generated.records_metadata import PartitionChangeRecord
from tests.controller.cluster import Cluster
from tests.controller.test_configs import ALL_BROKERS, change, replace
from tests.controller.test_isr import ask
from tests.controller.test_topics import create

WITHOUT_ELR = FeatureUpdate(ELR_VERSION, 0, SAFE_DOWNGRADE)


def cluster_without_record(*, elr: bool = True, **settings: str) -> Cluster:
    """Of a release that did not write min.insync.replicas down, or of a controller that was started without it."""
    cluster = Cluster(3)
    if not elr:
        cluster.run(lambda view: decide_update_features(view.image, [WITHOUT_ELR], cluster.settings))
    names = {name.replace("_", "."): value for name, value in settings.items()}
    cluster.settings = BrokerSettings.from_mapping(names)
    create(cluster, NewTopic("a", assignments={0: (1, 2, 3)}))
    return cluster


def bootstrap(cluster: Cluster) -> str | None:
    cluster.run(lambda view: decide_bootstrap(view.image, cluster.settings))
    return cluster.image.cluster_config.get("min.insync.replicas")


def test_a_controller_counts_on_no_min_isr_that_is_not_written_down() -> None:
    """A leader may have been started with a smaller one, and acknowledges with fewer in sync."""
    cluster = cluster_without_record(min_insync_replicas="2")
    ask(cluster, (1,))
    assert cluster.partition().eligible_leader_replicas == ()
    assert bootstrap(cluster) == "2"
    cluster.settings = BrokerSettings.from_mapping({"min.insync.replicas": "3"})
    assert bootstrap(cluster) == "2", "written once"
    ask(cluster, (1, 2))
    ask(cluster, (1,))
    assert cluster.partition().eligible_leader_replicas == (2,), "as all brokers have it"


def test_a_min_isr_that_is_written_down_forgets_who_was_eligible() -> None:
    cluster = cluster_without_record(min_insync_replicas="2")
    cluster.image = replay(
        cluster.image, [PartitionChangeRecord(0, cluster.image.topics["a"].id, isr=[1], eligible_leader_replicas=[2])]
    )
    assert bootstrap(cluster) == "2"
    assert cluster.partition().eligible_leader_replicas == (), "C9: nobody knows under which it came to be"


def test_where_nobody_chose_a_min_isr_none_is_written_down() -> None:
    cluster = cluster_without_record()
    assert bootstrap(cluster) is None
    create(cluster, NewTopic("b", 1, 3))
    assert cluster.image.topic_config("b") == {"min.insync.replicas": "2"}


def test_the_min_isr_is_written_down_when_elr_begins() -> None:
    cluster = cluster_without_record(elr=False, min_insync_replicas="2")
    assert bootstrap(cluster) is None
    with_elr = FeatureUpdate(ELR_VERSION, 1)
    cluster.run(lambda view: decide_update_features(view.image, [with_elr], cluster.settings))
    assert cluster.image.cluster_config["min.insync.replicas"] == "2"


def test_the_min_isr_of_the_cluster_is_not_taken_away() -> None:
    cluster = cluster_without_record(min_insync_replicas="2")
    bootstrap(cluster)
    delete = Change("min.insync.replicas", Op.DELETE, None)
    refused = change(cluster, ALL_BROKERS, delete)
    assert isinstance(refused, Refusal)
    assert refused.code == ErrorCode.INVALID_CONFIG
    assert "another value" in refused.message
    assert isinstance(replace(cluster, ALL_BROKERS, num_partitions="3"), Refusal)
    assert replace(cluster, ALL_BROKERS, min_insync_replicas="1") is None
    assert bootstrap(cluster) == "1"
    cluster.run(lambda view: decide_update_features(view.image, [WITHOUT_ELR], cluster.settings))
    assert change(cluster, ALL_BROKERS, delete) is None
