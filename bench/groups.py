"""Consumer groups: CPU time of a heartbeat and of an assignment. No sockets and no disk: only what is decided.

    python -m bench.groups [--members 1000] [--partitions 10000]

Goals: a heartbeat that changes nothing costs 20 µs at most; 10,000 partitions are assigned to 1,000 members within
a second by either assignor. Times are CPU times, the best of several rounds, since others use the machine too.
"""

import argparse
import gc
import time
from collections.abc import Callable, Sequence

from penstock.broker.coordinator_batches import encode_batches
from penstock.broker.group_driver import group_config
from penstock.groups.assignors import ASSIGNORS
from penstock.groups.assignors.spec import NOTHING, GroupSpec, MemberSpec
from penstock.groups.decision import Decision, Job, Now
from penstock.groups.shard import GroupShard
from penstock.metadata.image import MetadataImage, TopicImage
from penstock.metadata.partition import PartitionImage
from penstock.metadata.settings import BrokerSettings
from penstock.metadata.shard_map import ShardMap
from penstock.model.ports import SystemRng
from penstock.wire.generated.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from penstock.wire.generated.consumer_protocol import ConsumerProtocolSubscription
from penstock.wire.generated.heartbeat import HeartbeatRequest
from penstock.wire.generated.join_group import JoinGroupRequest, JoinGroupResponse
from penstock.wire.generated.sync_group import SyncGroupRequest
from penstock.wire.records import encode_versioned

HEARTBEAT_GOAL_US = 20
ASSIGNMENT_GOAL_S = 1.0
ROUNDS = 7
TOPICS = 10


def best_of(work: Callable[[], object], rounds: int = ROUNDS) -> float:
    """CPU seconds of the quickest round."""
    times = []
    for _ in range(rounds):
        gc.collect()
        begun = time.process_time()
        work()
        times.append(time.process_time() - begun)
    return min(times)


def report(what: str, measured: str, is_met: bool | None = None) -> None:
    verdict = "" if is_met is None else ("  goal met" if is_met else "  GOAL MISSED")
    print(f"{what:<58} {measured:>10}{verdict}", flush=True)


# -- heartbeats -----------------------------------------------------------------------------------------------------


class Bench:
    """A shard whose records are appended nowhere."""

    def __init__(self, partitions: int) -> None:
        settings = BrokerSettings.from_mapping(
            {"group.consumer.max.size": 100_000, "group.initial.rebalance.delay.ms": 0}
        )
        self.shard = GroupShard(group_config(settings), SystemRng())
        state = PartitionImage((1,), (1,), 1)
        topics = [
            TopicImage(f"t{n}", f"t{n}".encode().ljust(16), (state,) * (partitions // TOPICS)) for n in range(TOPICS)
        ]
        image = MetadataImage(
            topics=ShardMap[str, TopicImage]().changed({topic.name: topic for topic in topics}),
            topics_by_id=ShardMap[bytes, TopicImage]().changed({topic.id: topic for topic in topics}),
        )
        self.shard.follow(image, (), True)
        self.names = [topic.name for topic in topics]
        self.now = Now(0, 1_700_000_000_000)
        self.loop_s: list[float] = []
        self.pool_s: list[float] = []

    def apply(self, decision: Decision) -> list[object]:
        """All answers, after all that follows from the decision."""
        answers: list[object] = []
        while True:
            begun = time.process_time()
            if decision.records:
                encode_batches(decision.records, self.now.wall_ms)
            for record in decision.records:
                self.shard.replay(record.key, record.value)
            answers += [answer for _, answer in decision.answers]
            jobs = decision.jobs
            is_done = not decision.is_to_be_continued
            if not is_done:
                decision = self.shard.go_on(decision, self.now)
            self.loop_s.append(time.process_time() - begun)
            for job in jobs:
                answers += self._run(job)
            if is_done:
                return answers

    def _run(self, job: Job) -> list[object]:
        begun = time.process_time()
        job.run()
        done = time.process_time()
        decision = self.shard.decide_job(job, self.now)
        self.pool_s.append(done - begun)
        self.loop_s.append(time.process_time() - done)
        return self.apply(decision)

    def beat(self, request: ConsumerGroupHeartbeatRequest) -> Decision:
        return self.shard.decide_consumer_heartbeat(request, "c", "/h", lambda _: True, 1, self.now)


def settled_group(members: int, partitions: int) -> tuple[Bench, dict[str, int]]:
    """A group whose members have all they should have, and their epochs."""
    bench = Bench(partitions)
    epochs: dict[str, int] = {}
    owned: dict[str, list[ConsumerGroupHeartbeatRequest.TopicPartitions]] = {f"m{n}": [] for n in range(members)}
    while len(set(epochs.values())) != 1 or len(epochs) < members:
        for name in owned:
            epoch = epochs.get(name, 0)
            request = ConsumerGroupHeartbeatRequest("g", name, epoch, topic_partitions=owned[name])
            if epoch == 0:
                request.rebalance_timeout_ms = 60_000
                request.subscribed_topic_names = bench.names
            [answer] = bench.apply(bench.beat(request))
            assert isinstance(answer, ConsumerGroupHeartbeatResponse), answer
            epochs[name] = answer.member_epoch
            if answer.assignment is not None:
                owned[name] = [
                    ConsumerGroupHeartbeatRequest.TopicPartitions(topic.topic_id, topic.partitions)
                    for topic in answer.assignment.topic_partitions
                ]
    return bench, epochs


def measure_consumer_group(members: int, partitions: int) -> None:
    """Every member of a settled group sends one heartbeat after another; then somebody joins, and leaves."""
    bench, epochs = settled_group(members, partitions)
    requests = [ConsumerGroupHeartbeatRequest("g", name, epoch) for name, epoch in epochs.items()]
    assert not bench.beat(requests[0]).records

    def beat_all() -> None:
        for request in requests:
            bench.beat(request)

    report_heartbeat("consumer", best_of(beat_all) / members * 1e6)
    bench.loop_s, bench.pool_s = [], []
    for number in range(ROUNDS):
        name = f"late{number}"
        join = ConsumerGroupHeartbeatRequest("g", name, 0, None, None, 60_000, bench.names, None, None, [])
        bench.apply(bench.beat(join))
        bench.apply(bench.beat(ConsumerGroupHeartbeatRequest("g", name, -1)))
    report("one more joins: longest step on the loop", f"{max(bench.loop_s) * 1e3:.1f} ms")
    report("one more joins: longest step in the pool", f"{max(bench.pool_s) * 1e3:.1f} ms")


def report_heartbeat(protocol: str, cost_us: float) -> None:
    report(f"heartbeat, {protocol} group", f"{cost_us:.1f} µs", cost_us <= HEARTBEAT_GOAL_US)


def measure_classic_group(members: int) -> None:
    bench = Bench(0)
    subscription = encode_versioned(ConsumerProtocolSubscription(topics=bench.names), 1)
    protocol = JoinGroupRequest.JoinGroupRequestProtocol("range", subscription)
    for _ in range(members):
        request = JoinGroupRequest("g", 45_000, 60_000, "", None, "consumer", [protocol])
        bench.apply(bench.shard.decide_join(request, "c", "/h", 3, 1, bench.now))
    # Those that were first are in an older generation; all come again.
    group = bench.shard.groups["g"]
    last: dict[str, JoinGroupResponse] = {}
    for member_id in list(group.members):
        request = JoinGroupRequest("g", 45_000, 60_000, member_id, None, "consumer", [protocol])
        for answer in bench.apply(bench.shard.decide_join(request, "c", "/h", 3, 1, bench.now)):
            assert isinstance(answer, JoinGroupResponse)
            last[answer.member_id] = answer
    leader = next(answer for answer in last.values() if answer.leader == answer.member_id)
    plan = [SyncGroupRequest.SyncGroupRequestAssignment(member_id, b"x") for member_id in group.members]
    sync = SyncGroupRequest("g", leader.generation_id, leader.member_id, assignments=plan)
    bench.apply(bench.shard.decide_sync(sync, 1, bench.now))
    requests = [HeartbeatRequest("g", leader.generation_id, member_id) for member_id in group.members]
    assert not bench.shard.heartbeat(requests[0], 0)

    def beat_all() -> None:
        for request in requests:
            bench.shard.heartbeat(request, 0)

    report_heartbeat("classic", best_of(beat_all) / members * 1e6)


# -- assignments ----------------------------------------------------------------------------------------------------


def group_spec(members: int, partitions: int, subscriptions: int) -> GroupSpec:
    """`subscriptions`: in how many ways members subscribe to the topics; each way leaves out one of them."""
    topics = [f"t{n}".encode().ljust(16) for n in range(TOPICS)]
    ways = [frozenset(topics)] if subscriptions == 1 else [frozenset(topics) - {t} for t in topics[:subscriptions]]
    return GroupSpec(
        [MemberSpec(f"m{n}", None, ways[n % len(ways)], NOTHING) for n in range(members)],
        dict.fromkeys(topics, partitions // TOPICS),
    )


def measure_assignor(name: str, spec: GroupSpec, what: str) -> None:
    assign = ASSIGNORS[name]
    found = assign(spec)
    assigned = sum(len(numbers) for target in found.values() for numbers in target.values())
    assert assigned == sum(spec.partition_counts.values())
    seconds = best_of(lambda: assign(spec))
    report(f"assign, {name}, {what}, from nothing", f"{seconds * 1e3:.1f} ms", seconds < ASSIGNMENT_GOAL_S)
    # One has left, and another has come.
    settled = [member._replace(target=found[member.member_id]) for member in spec.members]
    changed = spec._replace(members=[*settled[1:], settled[0]._replace(member_id="new", target=NOTHING)])
    seconds = best_of(lambda: assign(changed))
    report(f"assign, {name}, {what}, one replaced", f"{seconds * 1e3:.1f} ms", seconds < ASSIGNMENT_GOAL_S)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.groups", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--members", type=int, default=1_000)
    parser.add_argument("--partitions", type=int, default=10_000)
    options = parser.parse_args(arguments)
    members, partitions = options.members, options.partitions // TOPICS * TOPICS
    print(f"{members:,} members, {partitions:,} partitions in {TOPICS} topics")
    measure_consumer_group(members, partitions)
    measure_classic_group(members)
    for name in ASSIGNORS:
        measure_assignor(name, group_spec(members, partitions, 1), "one subscription")
        measure_assignor(name, group_spec(members, partitions, 5), "5 subscriptions")


if __name__ == "__main__":
    main()
