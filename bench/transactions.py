"""Transactions per second: one record per transaction, one producer alone and many side by side.

    python -m bench.transactions [--json]

Clients send raw requests from a process of their own. Version 1 sends AddPartitionsToTxn, Produce, EndTxn; version 2
(KIP-890) sends Produce and EndTxn.
"""

import argparse
import asyncio
import json
import multiprocessing
import statistics
import struct
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from bench import load
from bench.broker_process import MeasuredBroker
from penstock.records.builder import build_batch
from penstock.wire.apis import API_TABLE
from penstock.wire.generated.add_partitions_to_txn import AddPartitionsToTxnRequest
from penstock.wire.generated.end_txn import EndTxnRequest
from penstock.wire.generated.find_coordinator import FindCoordinatorRequest
from penstock.wire.generated.init_producer_id import InitProducerIdRequest
from penstock.wire.generated.produce import ProduceRequest
from penstock.wire.header import decode_response_header, encode_request_header

TOPIC = "transactions"
PARTITIONS = 10
_AGAIN = (14, 15, 16, 51)  # loading, not available, not coordinator, concurrent transactions


class Producer:
    """One transactional producer on one connection."""

    def __init__(self, port: int, number: int, version: int) -> None:
        self._port = port
        self._id = f"bench-{number}"
        self._partition = number % PARTITIONS
        self._version = version
        self._sequence = 0
        self._value = b"." * 100

    async def call(self, request: Any, version: int) -> Any:
        out = bytearray(4)
        encode_request_header(request.API_KEY, version, 1, "bench", out)
        request.encode(version, out)
        struct.pack_into(">i", out, 0, len(out) - 4)
        self._writer.write(out)
        (size,) = struct.unpack(">i", await self._reader.readexactly(4))
        body = memoryview(await self._reader.readexactly(size))
        _, position = decode_response_header(body, request.API_KEY, version)
        return API_TABLE[request.API_KEY].response_class().decode(body, position, version)[0]

    async def start(self) -> None:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        await self.call(FindCoordinatorRequest(key_type=1, coordinator_keys=[self._id]), 4)
        answer = await self._settled(InitProducerIdRequest(self._id, 60_000), 4, lambda answer: answer.error_code)
        self._producer_id, self._epoch = answer.producer_id, answer.producer_epoch

    async def transact(self) -> None:
        if self._version == 1:
            await self._add()
        await self._produce()
        request = EndTxnRequest(self._id, self._producer_id, self._epoch, True)
        answer = await self.call(request, 5 if self._version == 2 else 3)
        assert answer.error_code == 0, answer
        if self._version == 2:
            self._producer_id, self._epoch, self._sequence = answer.producer_id, answer.producer_epoch, 0

    async def _add(self) -> None:
        topic = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(TOPIC, [self._partition])
        request = AddPartitionsToTxnRequest([], self._id, self._producer_id, self._epoch, [topic])
        await self._settled(
            request, 3, lambda a: a.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code
        )

    async def _produce(self) -> None:
        batch = build_batch(
            [(None, self._value)],
            timestamp_ms=int(time.time() * 1000),
            producer_id=self._producer_id,
            producer_epoch=self._epoch,
            base_sequence=self._sequence,
            transactional=True,
        )
        data = ProduceRequest.PartitionProduceData(index=self._partition, records=bytes(batch))
        topic = ProduceRequest.TopicProduceData(TOPIC, partition_data=[data])
        request = ProduceRequest(self._id, -1, 30_000, [topic])
        version = 12 if self._version == 2 else 9
        await self._settled(request, version, lambda a: a.responses[0].partition_responses[0].error_code)
        self._sequence += 1

    async def _settled(self, request: Any, version: int, error_of: Callable[[Any], int]) -> Any:
        while True:
            answer = await self.call(request, version)
            error = error_of(answer)
            if error not in _AGAIN:
                assert error == 0, error
                return answer
            await asyncio.sleep(0.005)


async def _drive(answer: Connection, port: int, producers: int, version: int, seconds: float) -> list[float]:
    made = [Producer(port, number, version) for number in range(producers)]
    await asyncio.gather(*(each.start() for each in made))
    for each in made:
        await each.transact()
    answer.send("warm")
    latencies: list[float] = []
    end = time.perf_counter() + seconds

    async def repeat(producer: Producer) -> None:
        while (begun := time.perf_counter()) < end:
            await producer.transact()
            latencies.append(time.perf_counter() - begun)

    await asyncio.gather(*(repeat(each) for each in made))
    return latencies


def _load_process(answer: Connection, port: int, producers: int, version: int, seconds: float) -> None:
    answer.send(asyncio.run(_drive(answer, port, producers, version, seconds)))


def measure(data: Path, mode: str, version: int, producers: int, seconds: float) -> dict[str, float]:
    with MeasuredBroker(data, {"flush.mode": mode}) as broker:
        load.create_topic(load.RawClient(broker.port), TOPIC, PARTITIONS)
        here, there = multiprocessing.Pipe()
        process = multiprocessing.get_context("fork").Process(
            target=_load_process, args=(there, broker.port, producers, version, seconds)
        )
        process.start()
        assert here.recv() == "warm"
        before = broker.cpu_seconds()
        latencies = here.recv()
        process.join()
        cpu_us = (broker.cpu_seconds() - before) / len(latencies) * 1e6
    return {
        "transactions_per_s": len(latencies) / seconds,
        "p50_ms": statistics.median(latencies) * 1e3,
        "cpu_us": cpu_us,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout instead of a table")
    parser.add_argument("--seconds", type=float, default=5.0)
    options = parser.parse_args()
    results = {}
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name:
        for mode in ("ack", "os"):
            for version in (1, 2):
                for producers in (1, 20, 100):
                    key = f"flush_{mode}_version_{version}_producers_{producers}"
                    results[key] = found = measure(Path(name) / key, mode, version, producers, options.seconds)
                    print(
                        f"{key:40} {found['transactions_per_s']:8.0f} transactions/s  p50 {found['p50_ms']:6.2f} ms"
                        f"  broker CPU {found['cpu_us']:5.0f} us",
                        file=sys.stderr,
                    )
    if options.json:
        print(json.dumps(results))


if __name__ == "__main__":
    main()
