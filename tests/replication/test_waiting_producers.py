"""Producers that wait for a commit: no longer than they said, and nothing of them stays."""

import asyncio
import struct
import threading
from typing import Any

import pytest

from penstock.broker import transaction_markers
from penstock.model.errors import ErrorCode
from penstock.net.limits import NetLimits
from penstock.net.server import Server
from penstock.wire.generated.write_txn_markers import WriteTxnMarkersRequest
from tests.conformance.raw import batch_of, encode_frame, produce_request
from tests.replication.brokers import running
from tests.replication.test_brokers import run


def test_a_producer_waits_no_longer_than_it_said() -> None:
    async def story() -> None:
        async with running(2) as cluster:
            cluster.create(replicas=(1, 2))
            await cluster.produce("one")
            await cluster.stop(2)
            assert (await cluster.produce("two", timeout_ms=30)).error_code == ErrorCode.REQUEST_TIMED_OUT

    run(story)


def test_those_who_waited_in_vain_are_forgotten() -> None:
    """However many time out while the watermark stands still; those who wait longer are answered in their order."""

    async def story() -> None:
        async with running(2) as cluster:
            cluster.create(replicas=(1, 2))
            await cluster.produce("one")
            await cluster.stop(2)
            waiters = cluster.leader()._commit_waiters
            answered: list[int] = []
            patient: list[asyncio.Task[Any]] = []
            for number in range(30):
                if number % 10 == 5:
                    patient.append(asyncio.create_task(cluster.produce("patient", timeout_ms=2**31 - 1)))
                    patient[-1].add_done_callback(lambda task: answered.append(task.result().base_offset))
                answers = await asyncio.gather(*(cluster.produce("two", timeout_ms=1) for _ in range(10)))
                assert {answer.error_code for answer in answers} == {ErrorCode.REQUEST_TIMED_OUT}
                assert len(waiters) <= 2 * len(patient)
            assert len(patient) == 3
            assert not answered
            await cluster.start(2)
            assert [(await task).error_code for task in patient] == [0, 0, 0]
            assert answered == sorted(answered)
            await cluster.until(lambda: not waiters)  # some gave up behind the last patient one

    run(story)


def test_those_who_waited_for_a_disk_in_vain_are_forgotten() -> None:
    async def story() -> None:
        async with running(2) as cluster:
            cluster.create(replicas=(1, 2))
            await cluster.produce("one")
            go_on = threading.Event()

            def wait(path: str) -> None:
                go_on.wait(30)

            cluster.disks[1].before_sync = wait
            waiters = cluster.leader()._written_waiters
            try:
                for _ in range(30):
                    answer = await cluster.produce("two", acks=1, timeout_ms=1)
                    assert answer.error_code == ErrorCode.REQUEST_TIMED_OUT
                    assert not waiters
            finally:
                cluster.disks[1].before_sync = None
                go_on.set()
            assert (await cluster.produce("three", acks=1)).error_code == 0

    run(story)


def test_markers_that_waited_in_vain_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """A coordinator on another broker sends them again and again; each request is answered."""
    monkeypatch.setattr(transaction_markers, "COMMIT_TIMEOUT_MS", 1)

    async def story() -> None:
        async with running(2) as cluster:
            cluster.create(replicas=(1, 2))
            await cluster.produce("one")
            await cluster.stop(2)
            topic = WriteTxnMarkersRequest.WritableTxnMarkerTopic("a", [0])
            marker = WriteTxnMarkersRequest.WritableTxnMarker(7, 0, True, [topic])
            waiters = cluster.leader()._commit_waiters

            async def write() -> int:
                async with asyncio.timeout(10):
                    answer = await cluster.brokers[1].router.handle_locally(WriteTxnMarkersRequest([marker]))
                return int(answer.markers[0].topics[0].partitions[0].error_code)

            for _ in range(30):
                assert await write() == ErrorCode.REQUEST_TIMED_OUT
                assert not waiters
            monkeypatch.setattr(transaction_markers, "COMMIT_TIMEOUT_MS", 10_000)
            await cluster.start(2)
            assert await write() == 0

    run(story)


def test_those_who_hung_up_are_forgotten() -> None:
    """Whatever time they said they would wait; a client that stays is answered."""

    async def story() -> None:
        async with running(2) as cluster:
            cluster.create(replicas=(1, 2))
            await cluster.produce("one")
            await cluster.stop(2)
            broker, waiters = cluster.brokers[1], cluster.leader()._commit_waiters
            server = Server(NetLimits(), broker.router)
            port = await server.bind("PLAINTEXT", "127.0.0.1", 0)
            await server.serve()
            request = produce_request("a", batch_of(b"two"))
            request.timeout_ms = 2**31 - 1
            frame = encode_frame(request, 9)
            frame = struct.pack(">i", len(frame)) + frame
            try:
                reader, stays = await asyncio.open_connection("127.0.0.1", port)
                stays.write(frame)
                await cluster.until(lambda: len(waiters) == 1)
                for _ in range(10):
                    writers = [(await asyncio.open_connection("127.0.0.1", port))[1] for _ in range(5)]
                    for writer in writers:
                        writer.write(frame * 3)
                    await cluster.until(lambda: len(waiters) >= 16)
                    for writer in writers:
                        writer.close()
                    await cluster.until(lambda: server.connection_count == 1)
                    assert len(waiters) <= 2
                    assert len(broker.produce._deadlines) == 1
                await cluster.start(2)
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                assert await reader.readexactly(size)
                assert not waiters
                assert len(broker.produce._deadlines) == 0
                stays.close()
            finally:
                await server.close()

    run(story)
