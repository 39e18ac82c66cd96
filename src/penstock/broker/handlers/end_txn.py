"""EndTxn (key 26), versions 0–5: v2 PRODUCER_FENCED (KIP-588), v4 TRANSACTION_ABORTABLE (KIP-890), v5 gives the
producer a new epoch with each end (transaction version 2, KIP-890).
"""

from typing import TYPE_CHECKING

from penstock.model.errors import ErrorCode
from penstock.wire.generated.end_txn import EndTxnRequest, EndTxnResponse

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.context import RequestContext


async def handle(broker: "Broker", context: "RequestContext", request: EndTxnRequest) -> EndTxnResponse:
    if not broker.gate.allows_transaction(context, request.transactional_id):
        return EndTxnResponse(error_code=ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    answer = await broker.transactions.end_transaction(request, context.api_version, context.connection_number)
    return EndTxnResponse(error_code=answer) if isinstance(answer, ErrorCode) else answer
