"""Unmodified aiokafka clients at work in a world, each writing down what it did and what it was told.

Client ids and record timestamps are given explicitly: aiokafka's own come from a counter of the process and from the
real clock, and a world must not depend on either.
"""

import asyncio
import contextlib
import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from penstock.sim.history import (
    Assigned,
    Begin,
    Commit,
    Committed,
    Final,
    History,
    Outcome,
    Poll,
    Send,
    TopicPartition,
    TransactionEnd,
    TransactionOffset,
)

if TYPE_CHECKING:
    from penstock.sim.world import World

_STOP_S = 60.0
_OFFSETS_S = 30.0
"""aiokafka never answers whoever gives offsets to a transaction whose producer has failed meanwhile."""

METADATA_MAX_AGE_MS = 10_000
"""aiokafka does not ask again who leads when it is told, looking for a beginning, that it asked the wrong broker."""

RACK_METADATA_MAX_AGE_MS = 500
"""Nor when it is told to read from a broker that it does not know: it asks its leader at once, and is told again."""


class Client(ABC):
    """One client program: works until it is told to stop."""

    def __init__(self, world: "World", history: History, name: str, bootstrap: Sequence[str]) -> None:
        self.world = world
        self.history = history
        self.name = name
        self.random = random.Random(f"{world.seed}:{name}")
        self.pause_s = self.random.choice((0.1, 0.2, 0.4, 0.8))
        self.successes: Counter[TopicPartition] = Counter()
        """What it is there for: records acknowledged or read, partitions of transactions committed."""
        self.shown: Counter[TopicPartition] | None = None
        """Its successes when the faults were over: from then on it has to have some in every partition."""
        self.stopping = False
        self.on_acknowledged: Callable[[TopicPartition, int], None] | None = None
        self.on_read: Callable[[TopicPartition, int], None] | None = None
        self._bootstrap = list(bootstrap)

    @abstractmethod
    async def run(self) -> None: ...

    def choose(self, partitions: list[TopicPartition]) -> TopicPartition:
        """By chance; once the faults are over, among those where it has yet to show that it gets on."""
        chosen = self.random.choice(partitions)
        shown = self.shown
        due = [each for each in partitions if self.successes[each] <= shown[each]] if shown is not None else []
        return due[partitions.index(chosen) % len(due)] if due else chosen


class RestartingClient(Client):
    """A program on aiokafka that begins again when it fails."""

    def _options(self) -> dict[str, Any]:
        return {
            "bootstrap_servers": self._bootstrap,
            "client_id": self.name,
            "request_timeout_ms": 20_000,
            "metadata_max_age_ms": METADATA_MAX_AGE_MS,
        }

    async def run(self) -> None:
        import aiokafka.errors

        while not self.stopping:
            try:
                await self.live()
            except (aiokafka.errors.KafkaError, OSError) as error:
                self.world.note(self.name, f"begins again: {type(error).__name__}")
            await asyncio.sleep(self.random.uniform(0.1, 1.0))

    @abstractmethod
    async def live(self) -> None:
        """One life, until the client stops or an error ends it."""

    async def think(self) -> None:
        await asyncio.sleep(self.random.expovariate(1 / self.pause_s))


class ProducingClient(RestartingClient):
    """An idempotent producer, a few records in flight at a time."""

    acks: int | str = "all"

    def __init__(
        self, world: "World", history: History, name: str, bootstrap: Sequence[str], partitions: list[TopicPartition]
    ) -> None:
        super().__init__(world, history, name, bootstrap)
        self.partitions = partitions
        self._sent = 0

    async def live(self) -> None:
        from aiokafka import AIOKafkaProducer

        producer = AIOKafkaProducer(
            enable_idempotence=self.acks == "all",
            acks=self.acks,
            linger_ms=self.random.choice((0, 0, 5)),
            **self._options(),
        )
        try:
            await producer.start()
            while not self.stopping:
                await self._send_some(producer)
                await self.think()
        finally:
            await _stop(producer)

    async def _send_some(self, producer: Any) -> None:
        count = self.random.choice((1, 1, 1, 2, 5))
        results = []
        for _ in range(count):
            partition = self.choose(self.partitions)
            value = self._next_value()
            results.append((partition, value, await _send(self.world, producer, partition, value)))
        failure: Exception | None = None
        for partition, value, result in results:
            error = await self._record(partition, value, result, None)
            failure = failure or error
        if failure is not None:
            raise failure

    def _next_value(self) -> str:
        self._sent += 1
        return f"{self.name}:{self._sent}"

    async def _record(
        self, partition: TopicPartition, value: str, result: Any, transaction: int | None
    ) -> Exception | None:
        import aiokafka.errors

        try:
            if isinstance(result, Exception):
                raise result
            told = await result
        except (aiokafka.errors.KafkaError, OSError) as error:
            self.world.note(self.name, f"{value} to {partition[0]}-{partition[1]}: {type(error).__name__}")
            outcome = Outcome.FAILED if isinstance(result, Exception) else Outcome.UNKNOWN
            self.history.add(Send(self.name, partition, value, outcome, -1, transaction, self.acks != "all"))
            return error
        if transaction is None:
            self.successes[partition] += 1
        self._acknowledged(partition, value, told, transaction)
        return None

    def _acknowledged(self, partition: TopicPartition, value: str, told: Any, transaction: int | None) -> None:
        self.world.note(self.name, f"{value} is at {partition[0]}-{partition[1]}@{told.offset}")
        self.history.add(Send(self.name, partition, value, Outcome.OK, told.offset, transaction))
        if self.on_acknowledged is not None:
            self.on_acknowledged(partition, told.offset)


class HastyClient(ProducingClient):
    """A producer that does not wait for all replicas in sync, and is not idempotent. Nobody promises it that a record
    stays, or is there only once; but the one replica there is keeps what it acknowledged."""

    def __init__(
        self,
        world: "World",
        history: History,
        name: str,
        bootstrap: Sequence[str],
        partitions: list[TopicPartition],
        acks: int,
        *,
        alone: bool,
    ) -> None:
        """`alone`: its records have one replica."""
        super().__init__(world, history, name, bootstrap, partitions)
        self.acks = acks
        self._is_promised = alone and acks == 1

    def _acknowledged(self, partition: TopicPartition, value: str, told: Any, transaction: int | None) -> None:
        if self._is_promised:
            self.world.note(self.name, f"{value} is at {partition[0]}-{partition[1]}@{told.offset}")
            self.history.add(Send(self.name, partition, value, Outcome.OK, told.offset, repeats=True))
        else:
            self.history.add(Send(self.name, partition, value, Outcome.UNKNOWN, repeats=True))


class TransactionalClient(ProducingClient):
    """Transactions over several partitions, some of them aborted on purpose. In some worlds every other one takes an
    offset of a group along, which is the number of the transaction."""

    _number = 0
    group: str | None = None

    def take_offsets(self, group: str) -> None:
        self.group = group
        self._takes_offsets = random.Random(f"{self.world.seed}:{self.name}:offsets")

    async def live(self) -> None:
        from aiokafka import AIOKafkaProducer

        producer = AIOKafkaProducer(
            transactional_id=f"{self.name}-id", transaction_timeout_ms=10_000, **self._options()
        )
        try:
            await producer.start()
            while not self.stopping:
                await self._transact(producer)
                await self.think()
        finally:
            await _stop(producer)

    async def _transact(self, producer: Any) -> None:
        self._number += 1
        number = self._number
        commit = self.random.random() < 0.7
        await producer.begin_transaction()
        results = []
        for _ in range(self.random.randrange(1, 4)):
            partition, value = self.choose(self.partitions), self._next_value()
            results.append((partition, value, await _send(self.world, producer, partition, value)))
        failure: Exception | None = None
        for partition, value, result in results:
            error = await self._record(partition, value, result, number)
            failure = failure or error
        if failure is not None:
            raise failure
        if self.group is not None and self._takes_offsets.random() < 0.5:
            await self._take_offset(producer, number, self.group)
        await self._end(producer, number, commit)
        if commit:
            self.successes.update({partition for partition, _, _ in results})

    async def _take_offset(self, producer: Any, number: int, group: str) -> None:
        """Whoever is not told that it was taken does not commit."""
        import aiokafka

        partition = self.partitions[0]
        offsets = {aiokafka.TopicPartition(*partition): number}
        await asyncio.wait_for(producer.send_offsets_to_transaction(offsets, group), _OFFSETS_S)
        self.world.note(self.name, f"transaction {number} takes an offset of {group}")
        self.history.add(TransactionOffset(self.name, number, group, partition, number))

    async def _end(self, producer: Any, number: int, commit: bool) -> None:
        import aiokafka.errors

        self.history.add(TransactionEnd(self.name, number, commit, Outcome.UNKNOWN, begun=True))
        try:
            await (producer.commit_transaction() if commit else producer.abort_transaction())
        except (aiokafka.errors.KafkaError, OSError):
            self.history.add(TransactionEnd(self.name, number, commit, Outcome.UNKNOWN))
            raise
        self.world.note(self.name, f"{'committed' if commit else 'aborted'} transaction {number}")
        self.history.add(TransactionEnd(self.name, number, commit, Outcome.OK))


class ConsumingClient(RestartingClient):
    """A member of a group that commits what it has read, now and then."""

    def __init__(
        self,
        world: "World",
        history: History,
        name: str,
        bootstrap: Sequence[str],
        topic: str,
        group: str,
        *,
        read_committed: bool,
        racks: int = 0,
    ) -> None:
        """Of so many `racks` it is in one at a time, and reads from replicas there."""
        super().__init__(world, history, name, bootstrap)
        self._racks = racks
        self.topic = topic
        self.group = group
        self.read_committed = read_committed
        self.commits: Counter[TopicPartition] = Counter()
        """Those that were acknowledged."""
        self.eager = False
        """Whether it commits after every poll: there is not much time to show that it can."""
        self.assignment = 0
        self._begun: set[TopicPartition] = set()
        self._rebalances = 0
        """Begun by this member: from then on what it has read before is not its to commit."""

    def _options(self) -> dict[str, Any]:
        options = super()._options()
        if self._racks:
            options["client_rack"] = f"r{self.random.randrange(self._racks)}"
            options["metadata_max_age_ms"] = RACK_METADATA_MAX_AGE_MS
        return options

    async def live(self) -> None:
        from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener

        client = self

        class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
            def on_partitions_revoked(self, revoked: Any) -> None:
                client._rebalances += 1
                client._begun.clear()

            def on_partitions_assigned(self, assigned: Any) -> None:
                client.assignment += 1
                client._begun.clear()
                client.history.add(Assigned(client.name, client.group, client.assignment))

        consumer = AIOKafkaConsumer(
            group_id=self.group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=6_000,
            heartbeat_interval_ms=1_000,
            isolation_level="read_committed" if self.read_committed else "read_uncommitted",
            **self._options(),
        )
        consumer.subscribe([self.topic], listener=Listener())
        try:
            await consumer.start()
            while not self.stopping:
                await self._poll(consumer)
                await self.think()
        finally:
            self._begun.clear()
            self.assignment += 1
            await _stop(consumer)

    async def _poll(self, consumer: Any) -> None:
        told = await consumer.getmany(timeout_ms=500, max_records=self.random.choice((None, 3, 20)))
        read = sorted((partition.topic, partition.partition, records) for partition, records in told.items())
        rebalances = self._rebalances
        for topic, index, records in read:
            partition = (topic, index)
            if partition not in self._begun:
                self._begun.add(partition)
                self.history.add(Begin(self.name, self.group, partition, records[0].offset, self.assignment))
            values = tuple((record.offset, record.value.decode()) for record in records)
            self.successes[partition] += 1
            self.world.note(self.name, f"read {topic}-{index}@{values[0][0]}..{values[-1][0]}")
            self.history.add(Poll(self.name, partition, values, self.assignment, self.read_committed))
            if self.on_read is not None:
                self.on_read(partition, values[-1][0])
        if read and self.random.random() < 0.2:
            await self._ask_for_commits(consumer, [(topic, index) for topic, index, _ in read])
        # Asking may have taken so long that others have read on: aiokafka commits in whatever generation it is then.
        if read and (self.random.random() < 0.3 or self.eager) and rebalances == self._rebalances:
            await self._commit(consumer, {(topic, index): records[-1].offset + 1 for topic, index, records in read})

    async def _ask_for_commits(self, consumer: Any, partitions: Sequence[TopicPartition]) -> None:
        import aiokafka
        import aiokafka.errors

        assignment = self.assignment
        for partition in partitions:
            with contextlib.suppress(aiokafka.errors.KafkaError, aiokafka.errors.IllegalStateError, OSError):
                at = await consumer.committed(aiokafka.TopicPartition(*partition))
                if assignment == self.assignment:
                    self.world.note(self.name, f"is told that {partition[0]}-{partition[1]}@{at} is committed")
                    self.history.add(Committed(self.name, self.group, partition, -1 if at is None else at))

    async def _commit(self, consumer: Any, offsets: dict[TopicPartition, int]) -> None:
        import aiokafka
        import aiokafka.errors

        self._add_commits(offsets, Outcome.UNKNOWN, begun=True)
        outcome = Outcome.OK
        try:
            await consumer.commit({aiokafka.TopicPartition(*key): offset for key, offset in offsets.items()})
        except aiokafka.errors.CommitFailedError:
            outcome = Outcome.UNKNOWN
        except (aiokafka.errors.KafkaError, OSError):
            outcome = Outcome.UNKNOWN
        except aiokafka.errors.IllegalStateError:
            # The partitions went to another member while it was thinking: no broker has heard of it.
            self._add_commits(offsets, Outcome.FAILED)
            return
        for partition, offset in offsets.items():
            self.commits[partition] += outcome is Outcome.OK
            self.world.note(self.name, f"commit {partition[0]}-{partition[1]}@{offset}: {outcome.value}")
        self._add_commits(offsets, outcome)

    def _add_commits(self, offsets: dict[TopicPartition, int], outcome: Outcome, *, begun: bool = False) -> None:
        for partition, offset in offsets.items():
            self.history.add(Commit(self.name, self.group, partition, offset, outcome, begun))


async def read_all(
    world: "World",
    bootstrap: Sequence[str],
    partitions: list[TopicPartition],
    *,
    read_committed: bool,
    shortened: Sequence[TopicPartition] = (),
) -> list[Final]:
    """Everything that is there, by a reader of its own. Of those that were `shortened` it asks where they start."""
    from aiokafka import AIOKafkaConsumer
    from aiokafka import TopicPartition as Place

    consumer = AIOKafkaConsumer(
        bootstrap_servers=list(bootstrap),
        client_id="final",
        isolation_level="read_committed" if read_committed else "read_uncommitted",
        auto_offset_reset="earliest",
        metadata_max_age_ms=METADATA_MAX_AGE_MS,
    )
    await consumer.start()
    try:
        places = [Place(*partition) for partition in partitions]
        consumer.assign(places)
        ends = await consumer.end_offsets(places)
        await consumer.seek_to_beginning(*places)
        found: dict[TopicPartition, list[tuple[int, str]]] = {partition: [] for partition in partitions}
        for place in places:
            while await consumer.position(place) < ends[place]:
                told = await consumer.getmany(place, timeout_ms=1000)
                for records in told.values():
                    found[place.topic, place.partition] += [(each.offset, each.value.decode()) for each in records]
        # Behind the reading: retention may delete meanwhile.
        starts = await consumer.beginning_offsets([Place(*each) for each in shortened]) if shortened else {}
        return [
            Final(partition, tuple(records), read_committed, starts.get(Place(*partition), 0))
            for partition, records in found.items()
        ]
    finally:
        await consumer.stop()


async def read_commits(bootstrap: Sequence[str], partitions: list[TopicPartition], group: str) -> list[Committed]:
    from aiokafka import AIOKafkaConsumer
    from aiokafka import TopicPartition as Place

    consumer = AIOKafkaConsumer(
        bootstrap_servers=list(bootstrap), client_id="final", group_id=group, enable_auto_commit=False
    )
    consumer.assign([Place(*partition) for partition in partitions])
    await consumer.start()
    try:
        found = [(partition, await consumer.committed(Place(*partition))) for partition in partitions]
        return [Committed("final", group, partition, -1 if at is None else at, True) for partition, at in found]
    finally:
        await consumer.stop()


async def _send(world: "World", producer: Any, partition: TopicPartition, value: str) -> Any:
    """The future of the answer, or the error with which the client refused: then no broker has heard of it."""
    import aiokafka.errors

    timestamp_ms = int(world.now() * 1000)
    try:
        return await producer.send(partition[0], value.encode(), partition=partition[1], timestamp_ms=timestamp_ms)
    except (aiokafka.errors.KafkaError, OSError, AssertionError) as error:
        if isinstance(error, AssertionError):  # aiokafka's way to say that metadata lacks the partition just now
            return aiokafka.errors.UnknownTopicOrPartitionError()
        return error


async def _stop(client: Any) -> None:
    """A client that cannot say goodbye in time is dropped, as a program that exits would drop it."""
    import aiokafka.errors

    # aiokafka lets the cancellation of a task of its own through, when that was waiting to try again.
    with contextlib.suppress(TimeoutError, aiokafka.errors.KafkaError, OSError, asyncio.CancelledError):
        await asyncio.wait_for(client.stop(), _STOP_S)
