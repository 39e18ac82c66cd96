"""A request that names many things keeps neither the loop to itself nor the names in memory."""

import asyncio
import gc
import tracemalloc
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.broker.context import RequestContext
from penstock.broker.gate import Gate
from penstock.broker.handlers import (
    add_partitions_to_txn,
    consumer_group_describe,
    delete_groups,
    describe_groups,
    describe_transactions,
    find_coordinator,
    offset_fetch,
)
from penstock.metadata.features import GROUP_VERSION
from penstock.model import hashing
from penstock.security.verdicts import AllowAll
from penstock.wire.generated.add_partitions_to_txn import AddPartitionsToTxnRequest
from penstock.wire.generated.consumer_group_describe import ConsumerGroupDescribeRequest
from penstock.wire.generated.delete_groups import DeleteGroupsRequest
from penstock.wire.generated.describe_groups import DescribeGroupsRequest
from penstock.wire.generated.describe_transactions import DescribeTransactionsRequest
from penstock.wire.generated.find_coordinator import FindCoordinatorRequest
from penstock.wire.generated.offset_fetch import OffsetFetchRequest
from tests.groups.fakes import GroupWorld, image_with, offsets_topic
from tests.transactions_broker.fakes import TransactionWorld, passed_over

Transaction = AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction
Group = OffsetFetchRequest.OffsetFetchRequestGroup

# Each handler with a request that names these, at a version that takes several.
MANY: dict[Any, Any] = {
    find_coordinator: lambda names: (FindCoordinatorRequest(coordinator_keys=names), 4),
    describe_transactions: lambda names: (DescribeTransactionsRequest(names), 0),
    add_partitions_to_txn: lambda names: (
        AddPartitionsToTxnRequest(transactions=[Transaction(name, 1, 0, True) for name in names]),
        5,
    ),
    offset_fetch: lambda names: (OffsetFetchRequest(groups=[Group(name, topics=None) for name in names]), 8),
    describe_groups: lambda names: (DescribeGroupsRequest(names), 5),
    consumer_group_describe: lambda names: (ConsumerGroupDescribeRequest(names), 1),
    delete_groups: lambda names: (DeleteGroupsRequest(names), 2),
}


def coordinating_broker(groups: GroupWorld, transactions: TransactionWorld) -> Any:
    return SimpleNamespace(
        node_id=1,
        groups=groups.service,
        transactions=transactions.service,
        gate=Gate(AllowAll()),
        image=image_with(offsets_topic(1))._replace(features={GROUP_VERSION: 1}),
        settings=groups.settings,
    )


@pytest.mark.parametrize("handler", MANY, ids=lambda handler: handler.__name__.rpartition(".")[2])
@pytest.mark.parametrize(("count", "padding", "most"), [(40, 32_000, 100_000), (1_000, 0, 6_000)])
def test_others_get_their_turn(
    handler: Any, count: int, padding: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn = 0
    hashed: dict[int, int] = {}  # characters in each turn of the loop
    plain = hashing.java_string_hash

    def noted(name: str) -> int:
        hashed[turn] = hashed.get(turn, 0) + len(name)
        return plain(name)

    async def turning() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    async def test() -> None:
        groups, transactions = GroupWorld(), TransactionWorld()
        broker = coordinating_broker(groups, transactions)
        await groups.service.describe_group("loaded", 5)
        await transactions.service.describe_transaction("loaded")
        others = asyncio.ensure_future(turning())
        monkeypatch.setattr(hashing, "java_string_hash", noted)
        names = [f"{handler.__name__}-{number:04}" + "x" * padding for number in range(count)]
        request, version = MANY[handler](names)
        await handler.handle(broker, RequestContext(request.API_KEY, version), request)
        others.cancel()
        groups.service.stop()
        transactions.service.stop()

    asyncio.run(test())
    assert sum(hashed.values()) >= count * padding
    assert 0 < max(hashed.values()) <= most


@pytest.mark.parametrize("handler", MANY, ids=lambda handler: handler.__name__.rpartition(".")[2])
def test_names_that_only_clients_know_are_not_kept(handler: Any) -> None:
    """They may have 32 KB: 65,536 of them would be two gigabytes."""

    async def test() -> int:
        groups, transactions = GroupWorld(), TransactionWorld()
        broker = coordinating_broker(groups, transactions)
        request, version = MANY[handler](["loaded"])
        await handler.handle(broker, RequestContext(request.API_KEY, version), request)
        before, _ = tracemalloc.get_traced_memory()
        request, version = MANY[handler]([f"kept-{number}" + "x" * 32_000 for number in range(100)])
        await handler.handle(broker, RequestContext(request.API_KEY, version), request)
        del request
        await passed_over()  # the loop holds what it just did
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
        groups.service.stop()
        transactions.service.stop()
        return after - before

    tracemalloc.start()
    try:
        assert asyncio.run(test()) < 1_000_000
    finally:
        tracemalloc.stop()
