"""Topics that come into being because somebody asked for them: auto-created ones and the broker's own."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.broker.controller_channel import ControllerUnavailable
from penstock.controller.placement import failure_domains
from penstock.metadata.image import OFFSETS_TOPIC, TRANSACTION_TOPIC, TopicImage
from penstock.model.errors import ErrorCode, Refusal, error_of
from penstock.wire.generated.create_topics import CreateTopicsRequest, CreateTopicsResponse

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

_NEWS_MS = 2_000.0  # how long a change that is committed may take to reach this node
NewTopic = CreateTopicsRequest.CreatableTopic
Config = CreateTopicsRequest.CreatableTopicConfig


async def create_on_demand(broker: "Broker", names: Sequence[str]) -> dict[str, Refusal]:
    """Creates what does not exist; answers why some could not be. Another client's creating it first is fine."""
    timeout_ms = broker.settings.request_timeout_ms
    request = CreateTopicsRequest(topics=[_new_topic(broker, name) for name in names], timeout_ms=timeout_ms)
    try:
        response = await broker.channel.send(request, CreateTopicsResponse, timeout_ms)
    except ControllerUnavailable as error:
        return {name: Refusal(ErrorCode.LEADER_NOT_AVAILABLE, str(error)) for name in names}
    refused = {
        topic.name: Refusal(error_of(topic.error_code), topic.error_message or "")
        for topic in response.topics
        if topic.error_code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS)
    }
    made = [name for name in names if name not in refused]
    await broker.image_watch.until(lambda image: all(image.topic(name) is not None for name in made), _NEWS_MS)
    return refused


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
        return NewTopic(name, -1, -1)
    configs = {"cleanup.policy": "compact", **own}
    domains = failure_domains(broker.image)  # the controller adds replicas when more come
    return NewTopic(
        name, partitions, max(1, min(factor, domains)), configs=[Config(key, value) for key, value in configs.items()]
    )
