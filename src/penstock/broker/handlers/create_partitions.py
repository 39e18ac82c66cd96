"""CreatePartitions (key 37), versions 0–3. v3 may answer THROTTLING_QUOTA_EXCEEDED, which needs quotas; not done."""

from typing import TYPE_CHECKING

from penstock.controller.partitions import MorePartitions, decide_create_partitions
from penstock.model.errors import ErrorCode, Refusal
from penstock.security.verdicts import Operation
from penstock.wire.generated.create_partitions import CreatePartitionsRequest, CreatePartitionsResponse

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.context import RequestContext

Result = CreatePartitionsResponse.CreatePartitionsTopicResult
_FORBIDDEN = Refusal(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "not authorised to alter this topic")


async def handle(
    broker: "Broker", context: "RequestContext", request: CreatePartitionsRequest
) -> CreatePartitionsResponse:
    results: list[Result] = []
    wanted: list[MorePartitions] = []
    for topic in request.topics:
        if broker.gate.allows_topic(context, Operation.ALTER, topic.name):
            wanted.append(_more(topic))
        else:
            results.append(_result(topic.name, _FORBIDDEN))
    answers: list[Refusal | None] = await broker.controller.submit(
        lambda view: decide_create_partitions(view.image, wanted, broker.rng, validate_only=request.validate_only),
        unavailable=lambda refusal: [refusal] * len(wanted),
    )
    done = {more.name: answer for more, answer in zip(wanted, answers, strict=True)}  # named twice: refused once
    results += [_result(name, answer) for name, answer in done.items()]
    return CreatePartitionsResponse(results=results)


def _more(topic: CreatePartitionsRequest.CreatePartitionsTopic) -> MorePartitions:
    if topic.assignments is None:
        return MorePartitions(topic.name, topic.count)
    return MorePartitions(topic.name, topic.count, [tuple(new.broker_ids) for new in topic.assignments])


def _result(name: str, answer: Refusal | None) -> Result:
    if answer is None:
        return Result(name=name)
    return Result(name=name, error_code=answer.code, error_message=answer.message)
