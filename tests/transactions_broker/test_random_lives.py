"""Random lives of producers: they write, commit, abort, are replaced; the broker restarts, also half-way to an end.

What a `read_committed` reader sees in the end is what was committed, in the order it was written; groups are where
the last of what was committed says.
"""

import random
from collections import defaultdict
from zlib import crc32

import pytest

from penstock.model.errors import ErrorCode
from penstock.testing import Broker
from tests.transactions_broker.raw_producer import RawProducer, all_values, committed_values, fetch, group_offset
from tests.transactions_broker.test_restart import hold_markers, reconnected
from tests.waiting import eventually

TOPIC, PARTITIONS, GROUPS, PRODUCERS, STEPS = "t", 2, ("g", "h"), 3, 40
SETTINGS = {"transaction.state.log.num.partitions": "2", "offsets.topic.num.partitions": "2"}


class Life:
    def __init__(self, broker: Broker, seed: int) -> None:
        self.broker = broker
        self.random = random.Random(seed)
        self.written: dict[int, list[bytes]] = defaultdict(list)  # by partition, in order
        self.offsets: list[tuple[str, int]] = []  # group and offset, in the order of the log
        self.open: list[list[object]] = [[] for _ in range(PRODUCERS)]  # values and places in `offsets`
        self.counted: set[object] = set()  # of those
        self.number = 0
        self.producers = [RawProducer(broker.bootstrap, f"id-{n}", 1 + n % 2) for n in range(PRODUCERS)]
        for producer in self.producers:
            assert producer.init() is ErrorCode.NONE

    def step(self) -> None:
        which = self.random.randrange(PRODUCERS)
        action = self.random.choices(
            [self.write, self.write_offset, self.end, self.end_and_restart, self.replace, self.restart],
            [6, 3, 5, 1, 1, 1],
        )[0]
        action(which)

    def write(self, which: int) -> None:
        partition = self.random.randrange(PARTITIONS)
        self.number += 1
        value = b"%d-%d" % (which, self.number)
        assert self.producers[which].send(TOPIC, value, partition=partition) is ErrorCode.NONE
        self.written[partition].append(value)
        self.open[which].append(value)

    def write_offset(self, which: int) -> None:
        group = self.random.choice(GROUPS)
        self.number += 1
        assert self.producers[which].commit_offsets(group, TOPIC, {0: self.number}) == [0]
        self.open[which].append(len(self.offsets))
        self.offsets.append((group, self.number))

    def end(self, which: int) -> None:
        if self.open[which]:
            commit = self.random.random() < 0.6
            assert self.producers[which].end(commit) is ErrorCode.NONE
            self._ended(which, commit)

    def end_and_restart(self, which: int) -> None:
        """The broker goes away with some of the markers written."""
        dice = self.random.randrange(4)
        hold_markers(self.broker, lambda where: crc32(str(where).encode()) % 4 <= dice)
        self.end(which)
        self.restart(which)

    def replace(self, which: int) -> None:
        old = self.producers[which]
        self.producers[which] = successor = RawProducer(self.broker.bootstrap, old.transactional_id, old.version)
        assert successor.init() is ErrorCode.NONE
        old.connection.close()
        self._ended(which, commit=False)

    def restart(self, which: int) -> None:
        self.broker.restart()
        self.producers = [reconnected(each, self.broker) for each in self.producers]

    def _ended(self, which: int, commit: bool) -> None:
        if commit:
            self.counted.update(self.open[which])
        self.open[which] = []

    def check(self) -> None:
        for which in range(PRODUCERS):
            self.replace(which)
        bootstrap = self.broker.bootstrap
        for partition, written in self.written.items():
            reading = fetch(bootstrap, TOPIC, partition)
            assert reading.last_stable_offset == reading.high_watermark, "nothing is open"
            assert all_values(bootstrap, TOPIC, partition) == written
            expected = [value for value in written if value in self.counted]
            assert committed_values(bootstrap, TOPIC, partition) == expected
        for group in GROUPS:
            mine = [
                offset for place, (name, offset) in enumerate(self.offsets) if name == group and place in self.counted
            ]
            expected_offset = mine[-1] if mine else -1
            eventually(lambda g=group, e=expected_offset: group_offset(bootstrap, g, TOPIC, require_stable=True) == e)

    def close(self) -> None:
        for producer in self.producers:
            producer.connection.close()


@pytest.mark.parametrize("mode", ["os", "ack"])
@pytest.mark.parametrize("number", range(4))
def test_random_lives(mode: str, number: int) -> None:
    seed = random.randrange(2**32)
    with Broker({**SETTINGS, "flush.mode": mode}) as broker:
        broker.create_topic(TOPIC, PARTITIONS)
        life = Life(broker, seed)
        try:
            for _ in range(STEPS):
                life.step()
            life.check()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}") from error
        finally:
            life.close()
