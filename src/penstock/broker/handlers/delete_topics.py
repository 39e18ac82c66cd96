"""DeleteTopics (key 20), versions 1–6.

v3: TOPIC_DELETION_DISABLED (before: INVALID_REQUEST). v5: error message. v6: topics by id (KIP-516).
"""

from typing import TYPE_CHECKING

from penstock.controller.topics import decide_delete_topics
from penstock.metadata.image import MetadataImage, TopicImage
from penstock.model.errors import ErrorCode, Refusal
from penstock.model.ids import ZERO_UUID
from penstock.security.verdicts import Operation
from penstock.wire.generated.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.context import RequestContext

Result = DeleteTopicsResponse.DeletableTopicResult
_FORBIDDEN = Refusal(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "not authorised to delete this topic")
_EITHER = Refusal(ErrorCode.INVALID_REQUEST, "a topic is named either by its name or by its id")


async def handle(broker: "Broker", context: "RequestContext", request: DeleteTopicsRequest) -> DeleteTopicsResponse:
    results: list[Result] = []
    wanted: list[str | bytes] = []
    for topic in _named(context, request):
        if (topic.name is None) == (topic.topic_id == ZERO_UUID):
            results.append(Result(topic.name, topic.topic_id, _EITHER.code, _EITHER.message))
            continue
        which = topic.name if topic.name is not None else topic.topic_id
        name = which if isinstance(which, str) else _name_of(broker.image, which)
        if name is None or broker.gate.allows_topic(context, Operation.DELETE, name):
            wanted.append(which)
        else:
            results.append(_result(context, which, _FORBIDDEN))
    answers: list[TopicImage | Refusal] = await broker.controller.submit(
        lambda view: decide_delete_topics(view.image, wanted, broker.settings),
        unavailable=lambda refusal: [refusal] * len(wanted),
    )
    done = dict(zip(wanted, answers, strict=True))  # named twice: refused once
    results += [_result(context, which, answer) for which, answer in done.items()]
    return DeleteTopicsResponse(responses=results)


def _named(context: "RequestContext", request: DeleteTopicsRequest) -> list[DeleteTopicsRequest.DeleteTopicState]:
    if context.api_version < 6:
        return [DeleteTopicsRequest.DeleteTopicState(name) for name in request.topic_names]
    return request.topics


def _name_of(image: MetadataImage, topic_id: bytes) -> str | None:
    topic = image.topic_by_id(topic_id)
    return topic.name if topic is not None else None


def _result(context: "RequestContext", which: str | bytes, answer: TopicImage | Refusal) -> Result:
    if isinstance(answer, TopicImage):
        return Result(name=answer.name, topic_id=answer.id)
    code = answer.code
    if code == ErrorCode.TOPIC_DELETION_DISABLED and context.api_version < 3:
        code = ErrorCode.INVALID_REQUEST
    named = isinstance(which, str)
    return Result(
        name=which if isinstance(which, str) else None,
        topic_id=ZERO_UUID if named or not isinstance(which, bytes) else which,
        error_code=code,
        error_message=answer.message,
    )
