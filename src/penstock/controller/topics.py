"""Creating and deleting topics.

Every topic of a request is judged by itself: one that is refused does not keep the others from being created. All
records of a request are one batch, so they are committed together or not at all.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

from penstock.controller.decision import Decision
from penstock.controller.placement import (
    DirectoryChooser,
    absent_brokers,
    places_of,
    plan_spread,
    registered_domains,
)
from penstock.controller.topic_names import check_collision, check_reserved, check_topic_name, collision_refusal
from penstock.metadata.image import TOPIC_RESOURCE, MetadataImage, TopicImage, collision_key
from penstock.metadata.settings import BrokerSettings, SettingError, parse_overrides
from penstock.metadata.snapshot import partition_record
from penstock.model.errors import ErrorCode, Refusal
from penstock.model.ids import format_uuid, new_uuid
from penstock.model.ports import Rng
from penstock.wire.generated.records_metadata import ConfigRecord, RemoveTopicRecord, TopicRecord
from penstock.wire.struct import RecordMessage

# One request is one batch of the metadata log; this keeps a batch below some 20 MB.
MAX_PARTITIONS_PER_REQUEST = 250_000
BY_DEFAULT = -1
_AUTOMATIC_FACTOR = 3
_AUTOMATIC_MIN_ISR = 2
MIN_ISR = "min.insync.replicas"


class NewTopic(NamedTuple):
    """A topic somebody wants. `assignments` names the replicas of each partition, or is None."""

    name: str
    partitions: int = BY_DEFAULT
    replication_factor: int = BY_DEFAULT
    assignments: Mapping[int, tuple[int, ...]] | None = None
    configs: Mapping[str, str | None] = {}


class CreatedTopic(NamedTuple):
    name: str
    topic_id: bytes
    partitions: int
    replication_factor: int
    configs: Mapping[str, str]


class _Plan(NamedTuple):
    """A topic that will be created: its replicas per partition, and its own settings in normal form."""

    replicas: Iterable[tuple[int, ...]]
    partitions: int
    replication_factor: int
    configs: Mapping[str, str]


def default_replication_factor(image: MetadataImage, settings: BrokerSettings) -> int:
    """The configured factor, or as many as there are brokers up to three; brokers of one host count once."""
    chosen = settings.default_replication_factor
    return chosen or max(1, min(_AUTOMATIC_FACTOR, registered_domains(image)))


def automatic_min_isr(image: MetadataImage, settings: BrokerSettings, factor: int) -> int | None:
    """What a topic with so many replicas gets as its own min.insync.replicas when nobody has chosen any: 2 of 3."""
    chosen = MIN_ISR in settings.explicit_names or MIN_ISR in image.cluster_config
    return None if chosen or factor < _AUTOMATIC_FACTOR else _AUTOMATIC_MIN_ISR


def decide_create_topics(
    image: MetadataImage,
    topics: Sequence[NewTopic],
    settings: BrokerSettings,
    rng: Rng,
    *,
    validate_only: bool = False,
) -> Decision[list[CreatedTopic | Refusal]]:
    """One answer per topic, in order."""
    chooser = DirectoryChooser(image)
    answers: list[CreatedTopic | Refusal] = []
    records: list[Iterable[RecordMessage]] = []
    names = _NameCheck(image, topics)
    planner = _Planner(image, settings, rng)
    for topic in topics:
        plan = names.refuse(topic.name) or planner.plan(topic)
        if isinstance(plan, Refusal):
            answers.append(plan)
            continue
        topic_id = new_uuid(rng.random_bytes)
        answers.append(CreatedTopic(topic.name, topic_id, plan.partitions, plan.replication_factor, plan.configs))
        records.append(_creation_records(topic.name, topic_id, plan, image, chooser))
    return Decision([] if validate_only else chain.from_iterable(records), answers)


class _NameCheck:
    """Names against the rules, the cluster and the rest of the request."""

    def __init__(self, image: MetadataImage, topics: Sequence[NewTopic]) -> None:
        self._image = image
        self._counts = Counter(topic.name for topic in topics)
        self._keys: dict[str, str] = {}

    def refuse(self, name: str) -> Refusal | None:
        if self._counts[name] > 1:
            return Refusal(ErrorCode.INVALID_REQUEST, f"topic {name!r} is named twice in one request")
        if refused := check_topic_name(name) or check_reserved(name):
            return refused
        if self._image.topic(name) is not None:
            return Refusal(ErrorCode.TOPIC_ALREADY_EXISTS, f"topic {name!r} already exists")
        if refused := check_collision(self._image, name):
            return refused
        key = collision_key(name)
        other = self._keys.setdefault(key, name) if key is not None else name
        return None if other == name else collision_refusal(name, other)


class _Planner:
    """Plans the topics of one request, and keeps count of what it may still create."""

    def __init__(self, image: MetadataImage, settings: BrokerSettings, rng: Rng) -> None:
        self._image = image
        self._settings = settings
        self._rng = rng
        self._places = places_of(image)
        self._absent = absent_brokers(image)
        self._default_factor = default_replication_factor(image, settings)
        self._budget = MAX_PARTITIONS_PER_REQUEST

    def plan(self, topic: NewTopic) -> _Plan | Refusal:
        configs = _own_configs(topic)
        if isinstance(configs, Refusal):
            return configs
        plan = self._plan_assigned(topic, configs) if topic.assignments else self._plan_placed(topic, configs)
        if isinstance(plan, Refusal):
            return plan
        if plan.partitions > self._budget:
            return Refusal(
                ErrorCode.POLICY_VIOLATION,
                f"one request may create {MAX_PARTITIONS_PER_REQUEST} partitions; {topic.name!r} goes beyond that, "
                "create it with fewer and add partitions afterwards",
            )
        self._budget -= plan.partitions
        return plan

    def _plan_placed(self, topic: NewTopic, configs: Mapping[str, str]) -> _Plan | Refusal:
        count = self._settings.num_partitions if topic.partitions == BY_DEFAULT else topic.partitions
        if count < 1:
            return Refusal(
                ErrorCode.INVALID_PARTITIONS, f"topic {topic.name!r}: {count} partitions; it needs at least 1"
            )
        factor = topic.replication_factor
        if factor == BY_DEFAULT:
            factor = self._default_factor
        places = self._places
        if refused := refuse_factor(self._image, topic.name, factor, len(places), len(self._absent)):
            return refused
        start = int(self._rng.uniform(0, len(places))) if len(places) > 1 else 0
        replicas = plan_spread(places, 0, count, factor, start, self._absent)
        return _Plan(replicas, count, factor, self._with_min_isr(configs, factor))

    def _with_min_isr(self, configs: Mapping[str, str], factor: int) -> Mapping[str, str]:
        automatic = automatic_min_isr(self._image, self._settings, factor)
        return configs if automatic is None or MIN_ISR in configs else {**configs, MIN_ISR: str(automatic)}

    def _plan_assigned(self, topic: NewTopic, configs: Mapping[str, str]) -> _Plan | Refusal:
        if topic.partitions != BY_DEFAULT or topic.replication_factor != BY_DEFAULT:
            return Refusal(
                ErrorCode.INVALID_REQUEST,
                f"topic {topic.name!r}: with replicas assigned by hand, partitions and replication factor must be -1",
            )
        assignments = topic.assignments or {}
        count = len(assignments)
        if set(assignments) != set(range(count)):
            return Refusal(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"topic {topic.name!r}: partitions must be numbered 0 to {count - 1} without gaps",
            )
        ordered = [assignments[number] for number in range(count)]
        if refused := refuse_assignment(self._image, topic.name, ordered, len(ordered[0])):
            return refused
        factor = len(ordered[0])
        return _Plan(ordered, count, factor, self._with_min_isr(configs, factor))


def refuse_factor(image: MetadataImage, name: str, factor: int, available: int, absent: int) -> Refusal | None:
    brokers = available + absent
    if factor < 1:
        reason = f"replication factor {factor}; it needs at least 1"
    elif factor > brokers:
        drained, instead = _passed_by(image)
        reason = (
            f"replication factor {factor} is above the number of brokers, {brokers}{drained}; "
            f"create it with {max(brokers, 1)} or {instead}"
        )
    elif not available:
        reason = f"none of the {brokers} brokers is available to lead it"
    else:
        return None
    return Refusal(ErrorCode.INVALID_REPLICATION_FACTOR, f"topic {name!r}: {reason}")


def _passed_by(image: MetadataImage) -> tuple[str, str]:
    """Which brokers do not count since they are drained, and how there come to be more that do."""
    ids = sorted(image.drained_brokers.intersection(image.brokers).difference(b.id for b in image.usable_brokers()))
    if not ids:
        return "", "start more brokers"
    which = f"broker {ids[0]}, which is" if len(ids) == 1 else f"brokers {', '.join(map(str, ids))}, which are"
    cancel = f"`penstock cluster drain --cancel {' '.join(map(str, ids))}`"
    return f" without {which} drained", f"start more brokers, or end that with {cancel}"


def refuse_assignment(
    image: MetadataImage, name: str, assignments: Sequence[tuple[int, ...]], factor: int
) -> Refusal | None:
    """Why replicas assigned by hand cannot be taken, or None."""
    for replicas in assignments:
        reason = None
        if not replicas:
            reason = "a partition has no replicas"
        elif len(set(replicas)) != len(replicas):
            reason = f"replicas {list(replicas)} name a broker twice"
        elif unknown := [broker for broker in replicas if broker not in image.brokers]:
            reason = f"there is no broker {unknown[0]}; known are {sorted(image.brokers)}"
        elif len(replicas) != factor:
            reason = f"replicas {list(replicas)} are not {factor} like those of the other partitions"
        elif not any(_is_available(image, broker) for broker in replicas):
            reason = f"none of the brokers {list(replicas)} is available"
        if reason is not None:
            return Refusal(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"topic {name!r}: {reason}")
    return None


def _is_available(image: MetadataImage, broker_id: int) -> bool:
    broker = image.brokers[broker_id]
    return not broker.fenced and not broker.in_controlled_shutdown


def _own_configs(topic: NewTopic) -> Mapping[str, str] | Refusal:
    given: dict[str, str] = {}
    for name, value in topic.configs.items():
        if value is None:
            return Refusal(ErrorCode.INVALID_CONFIG, f"topic {topic.name!r}: setting {name} has no value")
        given[name] = value
    try:
        return parse_overrides(given)
    except SettingError as error:
        return Refusal(ErrorCode.INVALID_CONFIG, f"topic {topic.name!r}: {error}")


def _creation_records(
    name: str, topic_id: bytes, plan: _Plan, image: MetadataImage, chooser: DirectoryChooser
) -> Iterator[RecordMessage]:
    yield TopicRecord(name, topic_id)
    for setting, value in plan.configs.items():
        yield ConfigRecord(TOPIC_RESOURCE, name, setting, value)
    yield from partition_records(topic_id, 0, plan.replicas, image, chooser)


def partition_records(
    topic_id: bytes, first: int, replicas: Iterable[tuple[int, ...]], image: MetadataImage, chooser: DirectoryChooser
) -> Iterator[RecordMessage]:
    """New partitions from number `first` on. Who is fenced or about to stop starts outside the in-sync set (C4)."""
    absent = {broker for broker in image.brokers if not _is_available(image, broker)}
    for number, brokers in enumerate(replicas, first):
        isr = brokers if not absent else tuple(broker for broker in brokers if broker not in absent)
        yield partition_record(topic_id, number, chooser.new_partition(brokers, isr))


def decide_delete_topics(
    image: MetadataImage, wanted: Sequence[str | bytes], settings: BrokerSettings
) -> Decision[list[TopicImage | Refusal]]:
    """Topics by name or by id; one answer each, in order. A topic's settings go with it. One that is named twice,
    be it by name and by id, stays."""
    found = [image.topic(which) if isinstance(which, str) else image.topic_by_id(which) for which in wanted]
    counts = Counter(which if topic is None else topic.id for which, topic in zip(wanted, found, strict=True))
    answers: list[TopicImage | Refusal] = []
    records: list[RecordMessage] = []
    for which, topic in zip(wanted, found, strict=True):
        refused = _refuse_deletion(which, topic, settings, counts)
        if refused is not None or topic is None:
            answers.append(refused or _unknown(which))
            continue
        answers.append(topic)
        records.append(RemoveTopicRecord(topic.id))
    return Decision(records, answers)


def _refuse_deletion(
    which: str | bytes, topic: TopicImage | None, settings: BrokerSettings, counts: Mapping[str | bytes, int]
) -> Refusal | None:
    if not settings.delete_topic_enable:
        return Refusal(
            ErrorCode.TOPIC_DELETION_DISABLED, "deleting topics is switched off; set delete.topic.enable=true"
        )
    if counts[which if topic is None else topic.id] > 1:
        shown = topic.name if topic is not None else which if isinstance(which, str) else format_uuid(which)
        return Refusal(ErrorCode.INVALID_REQUEST, f"topic {shown!r} is named twice in one request")
    if topic is None:
        return _unknown(which)
    if topic.is_internal:
        return Refusal(
            ErrorCode.INVALID_TOPIC_EXCEPTION, f"topic {topic.name!r} is internal; the broker itself needs it"
        )
    return None


def _unknown(which: str | bytes) -> Refusal:
    if isinstance(which, str):
        return Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {which!r}")
    return Refusal(ErrorCode.UNKNOWN_TOPIC_ID, f"there is no topic with id {format_uuid(which)}")
