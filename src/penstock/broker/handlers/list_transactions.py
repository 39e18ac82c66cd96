"""ListTransactions (key 66), versions 0–2 (KIP-664): v1 by duration (KIP-994), v2 by a pattern of ids (KIP-1152).

Lists what the coordinators of this broker know. The pattern is RE2's and must match the whole id.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.model.errors import ErrorCode
from penstock.security.verdicts import Operation
from penstock.transactions.listing import unknown_state_filters
from penstock.wire.generated.list_transactions import ListTransactionsRequest, ListTransactionsResponse

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.context import RequestContext


async def handle(
    broker: "Broker", context: "RequestContext", request: ListTransactionsRequest
) -> ListTransactionsResponse:
    matches = _matcher(request.transactional_id_pattern)
    if isinstance(matches, ErrorCode):
        return ListTransactionsResponse(error_code=matches)
    error, listed = await broker.transactions.list_transactions(request, matches)
    return ListTransactionsResponse(
        error_code=error,
        unknown_state_filters=unknown_state_filters(request.state_filters),
        transaction_states=[
            each
            for each in listed
            if broker.gate.allows_transaction(context, each.transactional_id, Operation.DESCRIBE)
        ],
    )


def _matcher(pattern: str | None) -> Callable[[str], bool] | ErrorCode:
    if not pattern:
        return lambda transactional_id: True
    from penstock.groups.consumer.regex_match import InvalidRegex, compile_regex

    try:
        compiled = compile_regex(pattern)
    except InvalidRegex:
        return ErrorCode.INVALID_REGULAR_EXPRESSION
    return lambda transactional_id: compiled.fullmatch(transactional_id.encode()) is not None
