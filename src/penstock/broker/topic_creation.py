"""Topics that come into being because somebody asked for them: auto-created ones and the broker's own."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.controller.topics import CreatedTopic, NewTopic, decide_create_topics
from penstock.metadata.image import OFFSETS_TOPIC, TopicImage
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


async def ensure_offsets_topic(broker: "Broker") -> TopicImage | Refusal:
    """The topic that holds groups and their offsets, created when the first group appears."""
    topic = broker.image.topic(OFFSETS_TOPIC)
    if topic is None:
        refused = await create_on_demand(broker, [OFFSETS_TOPIC])
        if refused:
            return refused[OFFSETS_TOPIC]
        topic = broker.image.topic(OFFSETS_TOPIC)
    return topic or Refusal(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{OFFSETS_TOPIC} is being created")


def _new_topic(broker: "Broker", name: str) -> NewTopic:
    if name != OFFSETS_TOPIC:
        return NewTopic(name)
    settings = broker.settings
    brokers = len(broker.image.usable_brokers())
    return NewTopic(
        name,
        partitions=settings.offsets_topic_num_partitions,
        replication_factor=max(1, min(settings.offsets_topic_replication_factor, brokers)),
        configs={
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": str(settings.offsets_topic_segment_bytes),
        },
    )
