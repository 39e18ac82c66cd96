"""Topics that come into being because somebody asked for them: auto-created ones and the broker's own."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.controller.topics import CreatedTopic, NewTopic, decide_create_topics
from penstock.metadata.image import OFFSETS_TOPIC, TRANSACTION_TOPIC, TopicImage
from penstock.model.errors import ErrorCode, Refusal

if TYPE_CHECKING:
    from penstock.broker.broker import Broker


async def create_on_demand(broker: "Broker", names: Sequence[str]) -> dict[str, Refusal]:
    """Creates what does not exist; answers why some could not be. Another client's creating it first is fine."""
    topics = [_new_topic(broker, name) for name in names]
    answers: list[CreatedTopic | Refusal] = await broker.controller.submit(
        lambda view: decide_create_topics(view.image, topics, broker.settings, broker.rng),
        unavailable=lambda refusal: [refusal] * len(topics),
    )
    return {
        name: answer
        for name, answer in zip(names, answers, strict=True)
        if isinstance(answer, Refusal) and answer.code != ErrorCode.TOPIC_ALREADY_EXISTS
    }


async def ensure_internal_topic(broker: "Broker", name: str) -> TopicImage | Refusal:
    """A topic in which a coordinator keeps its state, created when it is first needed."""
    topic = broker.image.topic(name)
    if topic is None:
        refused = await create_on_demand(broker, [name])
        if refused:
            return refused[name]
        topic = broker.image.topic(name)
    return topic or Refusal(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{name} is being created")


def _new_topic(broker: "Broker", name: str) -> NewTopic:
    settings = broker.settings
    if name == OFFSETS_TOPIC:
        partitions, factor = settings.offsets_topic_num_partitions, settings.offsets_topic_replication_factor
        own = {"compression.type": "producer", "segment.bytes": str(settings.offsets_topic_segment_bytes)}
    elif name == TRANSACTION_TOPIC:
        partitions = settings.transaction_state_log_num_partitions
        factor = settings.transaction_state_log_replication_factor
        own = {"compression.type": "uncompressed", "segment.bytes": str(settings.transaction_state_log_segment_bytes)}
    else:
        return NewTopic(name)
    brokers = len(broker.image.usable_brokers())
    return NewTopic(name, partitions, max(1, min(factor, brokers)), configs={"cleanup.policy": "compact", **own})
