"""Feature levels raised and lowered: only to what every registered broker and controller knows (KIP-584, KIP-778)."""

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import NamedTuple

from penstock.controller.configs import plan_cluster_min_isr
from penstock.controller.decision import Decision
from penstock.metadata.features import ELR_VERSION, KRAFT_LEVEL, KRAFT_VERSION, METADATA_VERSION, SUPPORTED_FEATURES
from penstock.metadata.image import MetadataImage
from penstock.metadata.settings import BrokerSettings
from penstock.model.errors import ErrorCode, Refusal
from penstock.wire.generated.records_metadata import FeatureLevelRecord, PartitionChangeRecord
from penstock.wire.struct import RecordMessage

UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3


class FeatureUpdate(NamedTuple):
    name: str
    level: int
    upgrade_type: int = UPGRADE


def decide_update_features(
    image: MetadataImage, updates: Sequence[FeatureUpdate], settings: BrokerSettings, *, validate_only: bool = False
) -> Decision[dict[str, Refusal | None]]:
    """All or nothing: one refusal keeps the others from being made. `settings` are the controller's static ones."""
    answers: dict[str, Refusal | None] = {}
    for update in updates:
        twice = update.name in answers
        answers[update.name] = _named_twice(update) if twice else _refuse(image, update)
    if validate_only or any(answer is not None for answer in answers.values()):
        return Decision([], answers)
    records = [
        FeatureLevelRecord(update.name, update.level)
        for update in updates
        if update.name != KRAFT_VERSION and image.features.get(update.name) != update.level
    ]
    elr = next((update.level for update in updates if update.name == ELR_VERSION), None)
    if elr is None:
        return Decision(records, answers)
    return Decision(chain(records, plan_cluster_min_isr(image, settings) if elr else _forgotten_elr(image)), answers)


def _named_twice(update: FeatureUpdate) -> Refusal:
    return Refusal(ErrorCode.INVALID_REQUEST, f"feature {update.name} is named twice in one request")


def _refuse(image: MetadataImage, update: FeatureUpdate) -> Refusal | None:
    name, level = update.name, update.level
    supported = SUPPORTED_FEATURES.get(name)
    current = image.features.get(name, 0)
    if name == KRAFT_VERSION and level == KRAFT_LEVEL:
        return None
    if name == KRAFT_VERSION:
        return Refusal(ErrorCode.INVALID_UPDATE_VERSION, f"{name}: this release knows level {KRAFT_LEVEL} only")
    if supported is None:
        return Refusal(ErrorCode.INVALID_UPDATE_VERSION, f"there is no feature {name} in this release")
    if update.upgrade_type not in (UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE):
        return Refusal(ErrorCode.INVALID_UPDATE_VERSION, f"there is no upgrade type {update.upgrade_type}")
    if level < current and update.upgrade_type == UPGRADE:
        reason = f"{name} is at level {current}; lowering it to {level} must be asked for as a downgrade"
        return Refusal(ErrorCode.INVALID_UPDATE_VERSION, reason)
    if level > current and update.upgrade_type != UPGRADE:
        reason = f"{name} is at level {current}; {level} would be no downgrade"
        return Refusal(ErrorCode.INVALID_UPDATE_VERSION, reason)
    if level == 0 and name == METADATA_VERSION:
        return Refusal(ErrorCode.INVALID_UPDATE_VERSION, "metadata.version cannot be taken away")
    low, high = (0 if name != METADATA_VERSION else supported.minimum), supported.maximum
    if not low <= level <= high:
        return Refusal(ErrorCode.INVALID_UPDATE_VERSION, f"{name}: this release knows levels {low} to {high}")
    return _refuse_by_nodes(image, name, level) or _refuse_without_elr(image, name, level)


def _refuse_by_nodes(image: MetadataImage, name: str, level: int) -> Refusal | None:
    if not level:
        return None
    nodes = [(broker.id, broker.features) for broker in image.brokers.values()]
    nodes += [(controller.id, controller.features) for controller in image.controllers.values()]
    for node, features in nodes:
        low, high = next(((low, high) for known, low, high in features if known == name), (0, 0))
        if not low <= level <= high:
            reason = f"{name}: node {node} knows levels {low} to {high}, not {level}"
            return Refusal(ErrorCode.INVALID_UPDATE_VERSION, reason)
    return None


def _refuse_without_elr(image: MetadataImage, name: str, level: int) -> Refusal | None:
    """Without ELR the last complete replica must be in the ISR; where it is empty that cannot be made so."""
    if name != ELR_VERSION or level:
        return None
    for topic in image.topics.values():
        for number, state in enumerate(topic.partitions):
            if not state.isr:
                reason = f"{topic.name}-{number} has no replica in sync; bring its brokers back first"
                return Refusal(ErrorCode.FEATURE_UPDATE_FAILED, f"{name}: {reason}")
    return None


def _forgotten_elr(image: MetadataImage) -> Iterator[RecordMessage]:
    for topic in image.topics.values():
        for number, state in enumerate(topic.partitions):
            if state.eligible_leader_replicas or state.last_known_elr:
                yield PartitionChangeRecord(number, topic.id, eligible_leader_replicas=[], last_known_elr=[])
