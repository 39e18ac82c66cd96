"""DescribeTransactions (key 65), version 0 (KIP-664)."""

from typing import TYPE_CHECKING

from penstock.broker.turns import in_turns
from penstock.model.errors import ErrorCode
from penstock.security.verdicts import Operation
from penstock.wire.generated.describe_transactions import DescribeTransactionsRequest, DescribeTransactionsResponse

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.context import RequestContext

Described = DescribeTransactionsResponse.TransactionState


async def handle(
    broker: "Broker", context: "RequestContext", request: DescribeTransactionsRequest
) -> DescribeTransactionsResponse:
    return DescribeTransactionsResponse(
        transaction_states=[
            await _describe(broker, context, each) async for each in in_turns(request.transactional_ids, str)
        ]
    )


async def _describe(broker: "Broker", context: "RequestContext", transactional_id: str) -> Described:
    if not broker.gate.allows_transaction(context, transactional_id, Operation.DESCRIBE):
        return Described(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, transactional_id)
    described = await broker.transactions.describe_transaction(transactional_id)
    # Topics that the client may not see are left out, as in Kafka.
    described.topics = [
        topic for topic in described.topics if broker.gate.allows_topic(context, Operation.DESCRIBE, topic.topic)
    ]
    return described
