"""Changing settings of topics and brokers: one value at a time, or a resource's values as a whole.

What is stored is what a resource has of its own, in normal text form. A change is judged by the state it leads to;
one that leads to where the resource already is writes nothing.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum
from itertools import chain
from typing import Any, NamedTuple

from penstock.controller.decision import Decision
from penstock.metadata.features import ELR_VERSION
from penstock.metadata.image import BROKER_RESOURCE, DRAINED_BROKERS, TOPIC_RESOURCE, MetadataImage, TopicImage
from penstock.metadata.settings import (
    BrokerSettings,
    Catalogue,
    Setting,
    SettingError,
    TopicSettings,
    broker_catalogue,
    parse_overrides,
    topic_catalogue,
)
from penstock.metadata.settings.setting import List
from penstock.model.errors import ErrorCode, Refusal
from penstock.wire.generated.records_metadata import ConfigRecord, PartitionChangeRecord
from penstock.wire.struct import RecordMessage

_MIN_ISR = "min.insync.replicas"
_FOR_ALL = {
    _MIN_ISR: Refusal(ErrorCode.INVALID_CONFIG, f"setting {_MIN_ISR} is one for all brokers, or a topic's own"),
    DRAINED_BROKERS: Refusal(ErrorCode.INVALID_CONFIG, f"setting {DRAINED_BROKERS} is one for all brokers"),
}
_STAYS = Refusal(
    ErrorCode.INVALID_CONFIG,
    f"the cluster's {_MIN_ISR} cannot be taken away while there are eligible leader replicas, because brokers may "
    "have been started with different ones; set it to another value",
)


class Op(IntEnum):
    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class Change(NamedTuple):
    name: str
    op: int
    value: str | None


class Resource(NamedTuple):
    type: int
    name: str


_ALL_BROKERS = Resource(BROKER_RESOURCE, "")


def decide_incremental_alter_configs(
    image: MetadataImage,
    wanted: Sequence[tuple[Resource, Sequence[Change]]],
    settings: BrokerSettings,
    *,
    validate_only: bool = False,
) -> Decision[list[Refusal | None]]:
    """One answer per resource, in order; None means done. `settings` are the broker's static ones."""
    twice = _named_twice([resource for resource, _ in wanted])
    answers: list[Refusal | None] = []
    records: list[RecordMessage] = []
    for resource, changes in wanted:
        outcome = (
            twice.get(resource) or refuse_resource(image, resource) or _apply(image, resource, changes, settings)
        )
        _take(image, resource, outcome, answers, records)
    return Decision([] if validate_only else chain(records, _forgotten_elr(image, records)), answers)


def decide_alter_configs(
    image: MetadataImage,
    wanted: Sequence[tuple[Resource, Mapping[str, str | None]]],
    settings: BrokerSettings,
    *,
    validate_only: bool = False,
) -> Decision[list[Refusal | None]]:
    """The older form: the values given replace all that the resource has of its own."""
    twice = _named_twice([resource for resource, _ in wanted])
    answers: list[Refusal | None] = []
    records: list[RecordMessage] = []
    for resource, values in wanted:
        outcome = twice.get(resource) or refuse_resource(image, resource) or _replace(resource, values, settings)
        _take(image, resource, outcome, answers, records)
    return Decision([] if validate_only else chain(records, _forgotten_elr(image, records)), answers)


def plan_cluster_min_isr(image: MetadataImage, settings: BrokerSettings) -> Iterator[RecordMessage]:
    """Where ELR is kept, min.insync.replicas is written down before it counts: brokers and controllers may have been
    started with different ones (see `_is_for_all`). Where nobody has chosen any, there is nothing to differ about."""
    if _MIN_ISR in settings.explicit_names and _MIN_ISR not in image.cluster_config:
        record = ConfigRecord(BROKER_RESOURCE, "", _MIN_ISR, str(settings.min_insync_replicas))
        yield record
        yield from _forgotten_elr(image, [record])


def _forgotten_elr(image: MetadataImage, records: Sequence[RecordMessage]) -> Iterator[RecordMessage]:
    """C9: who left under another min.insync.replicas may miss what is acknowledged under the new one.

    Where the ISR is empty nothing can be acknowledged, and the ELR is all that is known: there it stays.
    """
    topics: dict[str, TopicImage] = {}
    for record in records:
        about: Any = record
        if about.name != _MIN_ISR:
            continue
        if about.resource_type == BROKER_RESOURCE:
            everywhere = () if about.resource_name else image.topics.values()
            topics.update({t.name: t for t in everywhere if _MIN_ISR not in image.topic_config(t.name)})
        elif (topic := image.topic(about.resource_name)) is not None:
            topics[topic.name] = topic
    for topic in topics.values():
        for number, state in enumerate(topic.partitions):
            if state.isr and (state.eligible_leader_replicas or state.last_known_elr):
                yield PartitionChangeRecord(number, topic.id, eligible_leader_replicas=[], last_known_elr=[])


def refuse_resource(image: MetadataImage, resource: Resource) -> Refusal | None:
    """Why a resource has no settings here, or None."""
    if resource.type == TOPIC_RESOURCE:
        if image.topic(resource.name) is None:
            return Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {resource.name!r}")
        return None
    if resource.type != BROKER_RESOURCE:
        return Refusal(
            ErrorCode.INVALID_REQUEST, f"resources of type {resource.type} have no settings in this release"
        )
    if not resource.name:
        return None
    if resource.name not in map(str, image.brokers):
        if not resource.name.isdecimal():
            return Refusal(ErrorCode.INVALID_REQUEST, f"a broker is named by its id, not by {resource.name!r}")
        known = ", ".join(map(str, sorted(image.brokers)))
        return Refusal(ErrorCode.BROKER_ID_NOT_REGISTERED, f"there is no broker {resource.name}; known are {known}")
    return None


def _named_twice(resources: Sequence[Resource]) -> dict[Resource, Refusal]:
    twice = [resource for resource, count in Counter(resources).items() if count > 1]
    reason = "the resource is named twice in one request"
    return {resource: Refusal(ErrorCode.INVALID_REQUEST, f"{resource.name!r}: {reason}") for resource in twice}


def _take(
    image: MetadataImage,
    resource: Resource,
    outcome: dict[str, str] | Refusal,
    answers: list[Refusal | None],
    records: list[RecordMessage],
) -> None:
    """Turns the values that a resource shall have into the records that get it there."""
    if isinstance(outcome, Refusal):
        answers.append(outcome)
        return
    old = image.config(resource.type, resource.name)
    if resource == _ALL_BROKERS and _MIN_ISR in old and _MIN_ISR not in outcome and image.features.get(ELR_VERSION):
        answers.append(_STAYS)
        return
    for name in old.keys() | outcome.keys():
        if old.get(name) != outcome.get(name):
            records.append(ConfigRecord(resource.type, resource.name, name, outcome.get(name)))
    answers.append(None)


def _apply(
    image: MetadataImage, resource: Resource, changes: Sequence[Change], settings: BrokerSettings
) -> dict[str, str] | Refusal:
    counts = Counter(change.name for change in changes)
    values = dict(image.config(resource.type, resource.name))
    catalogue = _catalogue_of(resource)
    try:
        for change in changes:
            if counts[change.name] > 1:
                return Refusal(ErrorCode.INVALID_REQUEST, f"setting {change.name} is named twice")
            setting = catalogue.find(change.name)
            if change.op != Op.DELETE and _is_for_all(resource, change.name):
                return _FOR_ALL[change.name]
            current = values.get(change.name)
            if current is None:
                current = _inherited(image, resource, setting, settings)
            new = _changed_value(change, setting, current)
            if isinstance(new, Refusal):
                return new
            if new is None:
                values.pop(change.name, None)
            else:
                values[change.name] = new
        return _checked(resource, values, settings)
    except SettingError as error:
        return Refusal(ErrorCode.INVALID_CONFIG, str(error))


def _changed_value(change: Change, setting: Setting, current: str) -> str | Refusal | None:
    """The text that the setting will have; None when it goes back to what it inherits."""
    if change.op == Op.DELETE:
        return None
    if change.value is None:
        return Refusal(ErrorCode.INVALID_REQUEST, f"setting {change.name}: no value given")
    if change.op == Op.SET:
        return change.value
    if change.op not in (Op.APPEND, Op.SUBTRACT):
        return Refusal(ErrorCode.INVALID_REQUEST, f"setting {change.name}: there is no operation {change.op}")
    if not isinstance(setting.about, List):
        verb = Op(change.op).name
        return Refusal(
            ErrorCode.INVALID_CONFIG,
            f"setting {change.name}: {verb} needs a list, this is a {setting.about.type_name}",
        )
    items = [item for item in current.split(",") if item]
    given = [item.strip() for item in change.value.split(",") if item.strip()]
    if change.op == Op.APPEND:
        return ",".join(items + [item for item in given if item not in items])
    return ",".join(item for item in items if item not in given)


def _inherited(image: MetadataImage, resource: Resource, setting: Setting, settings: BrokerSettings) -> str:
    """What the resource has as long as it has nothing of its own."""
    effective = settings.overlay(image.cluster_config)
    if resource.type == TOPIC_RESOURCE:
        return setting.format(TopicSettings.resolve(effective, {}).value_of(setting)) or ""
    return setting.format(effective.value_of(setting)) or ""


def _replace(
    resource: Resource, values: Mapping[str, str | None], settings: BrokerSettings
) -> dict[str, str] | Refusal:
    given: dict[str, str] = {}
    for name, value in values.items():
        if value is None:
            return Refusal(ErrorCode.INVALID_REQUEST, f"setting {name}: no value given")
        if _is_for_all(resource, name):
            return _FOR_ALL[name]
        given[name] = value
    try:
        return _checked(resource, given, settings)
    except SettingError as error:
        return Refusal(ErrorCode.INVALID_CONFIG, str(error))


def _is_for_all(resource: Resource, name: str) -> bool:
    """Whether one broker cannot have it to itself: a leader that asked for fewer in sync than the controller thinks
    would acknowledge what those lack whom the controller takes for eligible (C7). Of drained brokers nobody would
    hear."""
    return resource.type == BROKER_RESOURCE and bool(resource.name) and name in _FOR_ALL


def _checked(resource: Resource, values: Mapping[str, str], settings: BrokerSettings) -> dict[str, str]:
    """The values in normal form. Raises `SettingError`."""
    if resource.type == TOPIC_RESOURCE:
        return parse_overrides(values)
    settings.overlay(values)
    catalogue = broker_catalogue()
    return {name: (s := catalogue.find(name)).format(s.parse(text)) or "" for name, text in values.items()}


def _catalogue_of(resource: Resource) -> Catalogue:
    return topic_catalogue() if resource.type == TOPIC_RESOURCE else broker_catalogue()
