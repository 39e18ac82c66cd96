"""The `uniform` assignor where members subscribe to different topics.

Members keep what they had and still subscribe to; free partitions go to the subscriber with the fewest; then topic by
topic the fullest subscribers hand over to the emptiest, until the subscribers of every topic differ by one at most.
With overlapping subscriptions one topic's balance can undo another's, so the rounds are limited, as in Kafka: the
result is then balanced well, if not perfectly.
"""

from heapq import heapify, heappop, heappush, heapreplace

from penstock.groups.assignors.spec import NOTHING, Assignment, GroupSpec

_MAX_ROUNDS = 16
_NOBODY = -1


def assign_mixed(spec: GroupSpec) -> dict[str, Assignment]:
    plan = _Plan(spec)
    plan.keep_targets()
    plan.assign_free()
    plan.balance()
    return plan.result()


class _Plan:
    """Members are numbers here: their position in the spec."""

    def __init__(self, spec: GroupSpec) -> None:
        self._members = spec.members
        self._loads = [0] * len(spec.members)
        self._owners = {topic: [_NOBODY] * count for topic, count in spec.partition_counts.items()}
        self._subscribers: dict[bytes, list[int]] = {topic: [] for topic in spec.partition_counts}
        for index, member in enumerate(spec.members):
            for topic in member.topics:
                self._subscribers[topic].append(index)
        # Topics with the most partitions per subscriber first, since the others can even them out.
        self._topics = sorted(self._owners, key=self._rank)

    def _rank(self, topic: bytes) -> tuple[float, int, bytes]:
        subscribers = len(self._subscribers[topic])
        return (-len(self._owners[topic]) / subscribers if subscribers else 0.0, subscribers, topic)

    def keep_targets(self) -> None:
        for index, member in enumerate(self._members):
            for topic, partitions in member.target.items():
                if topic in member.topics:
                    owners = self._owners[topic]
                    for partition in partitions:
                        owners[partition] = index
                    self._loads[index] += len(partitions)

    def assign_free(self) -> None:
        loads = self._loads
        for topic in self._topics:
            owners = self._owners[topic]
            free = [partition for partition, owner in enumerate(owners) if owner == _NOBODY]
            subscribers = self._subscribers[topic]
            if not free or not subscribers:
                continue
            emptiest = [(loads[index], index) for index in subscribers]
            heapify(emptiest)
            for partition in free:
                load, index = emptiest[0]
                owners[partition] = index
                loads[index] = load + 1
                heapreplace(emptiest, (load + 1, index))

    def balance(self) -> None:
        shared = [topic for topic in self._topics if len(self._subscribers[topic]) > 1]
        for _ in range(_MAX_ROUNDS):
            if not sum(self._balance_topic(topic) for topic in shared):
                return

    def _balance_topic(self, topic: bytes) -> int:
        """Returns how many partitions moved."""
        loads, owners = self._loads, self._owners[topic]
        subscribers = self._subscribers[topic]
        most, least = max(loads[i] for i in subscribers), min(loads[i] for i in subscribers)
        if most - least <= 1:
            return 0
        held: dict[int, list[int]] = {}
        for partition, owner in enumerate(owners):
            if owner != _NOBODY:
                held.setdefault(owner, []).append(partition)
        emptiest = [(loads[index], index) for index in subscribers]
        fullest = [(-loads[index], index) for index in held]
        heapify(emptiest)
        heapify(fullest)
        moved = 0
        while fullest:
            load, giver = -fullest[0][0], fullest[0][1]
            taker_load, taker = emptiest[0]
            if taker_load != loads[taker]:  # it gave a partition away since
                heapreplace(emptiest, (loads[taker], taker))
                continue
            if load - taker_load <= 1:
                break
            owners[held[giver].pop()] = taker
            loads[giver] -= 1
            loads[taker] += 1
            moved += 1
            heapreplace(emptiest, (taker_load + 1, taker))
            heappop(fullest)
            if held[giver]:
                heappush(fullest, (-loads[giver], giver))
        return moved

    def result(self) -> dict[str, Assignment]:
        targets: list[dict[bytes, set[int]]] = [{} for _ in self._members]
        for topic, owners in self._owners.items():
            for partition, owner in enumerate(owners):
                if owner != _NOBODY:
                    targets[owner].setdefault(topic, set()).add(partition)
        result: dict[str, Assignment] = {}
        for member, target in zip(self._members, targets, strict=True):
            frozen = {topic: frozenset(partitions) for topic, partitions in target.items()}
            result[member.member_id] = member.target if frozen == member.target else frozen or NOTHING
        return result
