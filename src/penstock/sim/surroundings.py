"""What code that knows nothing of the simulator sees of the world while a simulation runs.

Third-party clients read `time` and `random` directly, so both are virtual and seeded as long as a world runs. The
collector rests: what it finalises, and when, would depend on what else is in memory.
"""

import contextlib
import gc
import logging
import random
import re
import time
import zlib
from collections.abc import Callable, Iterator

from penstock.sim.clock import EPOCH_S
from penstock.sim.loop import SimLoop
from penstock.sim.process import CURRENT

_ADDRESS = re.compile(r"0x[0-9a-f]+|Task-\d+")


@contextlib.contextmanager
def simulated_surroundings(loop: SimLoop, seed: int) -> Iterator[None]:
    saved_time = (time.time, time.monotonic, time.time_ns)
    saved_random = random.getstate()
    collected = gc.isenabled()
    time.time = lambda: EPOCH_S + loop.time()
    time.monotonic = loop.time
    time.time_ns = lambda: int((EPOCH_S + loop.time()) * 1e9)
    random.seed(f"{seed}:global")
    gc.disable()
    try:
        with _steady_order():
            yield
    finally:
        time.time, time.monotonic, time.time_ns = saved_time
        random.setstate(saved_random)
        if collected:
            gc.enable()


@contextlib.contextmanager
def _steady_order() -> Iterator[None]:
    """aiokafka walks over sets of partitions, brokers and topics; their order must not depend on PYTHONHASHSEED."""
    try:
        from aiokafka.client import AIOKafkaClient
        from aiokafka.structs import BrokerMetadata, TopicPartition
    except ImportError:
        yield
        return
    saved = TopicPartition.__hash__, BrokerMetadata.__hash__
    update = AIOKafkaClient._metadata_update
    TopicPartition.__hash__ = lambda self: hash((self.partition, len(self.topic)))
    BrokerMetadata.__hash__ = lambda self: zlib.crc32(f"{self.nodeId} {self.host} {self.port}".encode())
    AIOKafkaClient._metadata_update = lambda self, known, topics: update(self, known, sorted(topics or ()))
    try:
        yield
    finally:
        AIOKafkaClient._metadata_update = update
        TopicPartition.__hash__, BrokerMetadata.__hash__ = saved


class LogTap(logging.Handler):
    """Log lines of all simulated programs, with the name of the process that wrote them."""

    def __init__(self, line: Callable[[str, str, logging.LogRecord], None]) -> None:
        super().__init__()
        self._line = line

    def emit(self, record: logging.LogRecord) -> None:
        process = CURRENT.get()
        if process is not None and process.is_dead:
            return
        self._line(process.name if process is not None else "world", _ADDRESS.sub("_", record.getMessage()), record)


@contextlib.contextmanager
def tapped_logs(tap: LogTap, names: dict[str, int]) -> Iterator[None]:
    """Takes over these loggers for a while; the values are their levels."""
    saved = []
    for name, level in names.items():
        logger = logging.getLogger(name)
        saved.append((logger, logger.level, logger.propagate, logger.handlers[:]))
        logger.setLevel(level)
        logger.propagate = False
        logger.handlers[:] = [tap]
    try:
        yield
    finally:
        for logger, level, propagate, handlers in saved:
            logger.setLevel(level)
            logger.propagate = propagate
            logger.handlers[:] = handlers
