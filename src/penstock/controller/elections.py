"""Elections that somebody asks for, or that the clock does: preferred leaders, and leaders at any price."""

from collections.abc import Iterable, Iterator, Sequence

from penstock.controller.broker_changes import change_of
from penstock.controller.decision import Decision
from penstock.controller.partition_change import NO_LEADER, Election
from penstock.controller.rules import Candidates, Rules
from penstock.metadata.image import MetadataImage, TopicImage
from penstock.metadata.partition import PartitionImage
from penstock.metadata.settings import BrokerSettings
from penstock.model.errors import ErrorCode, Refusal
from penstock.model.ids import TopicPartition
from penstock.wire.struct import RecordMessage

PREFERRED_TYPE, UNCLEAN_TYPE = 0, 1  # ElectLeaders' election types
_ELECTIONS = {PREFERRED_TYPE: Election.PREFERRED, UNCLEAN_TYPE: Election.UNCLEAN}

ElectionResult = tuple[TopicPartition, Refusal | None]
_Found = tuple[TopicPartition, TopicImage | None, PartitionImage | None]


def decide_elect_leaders(
    image: MetadataImage, election_type: int, wanted: Sequence[TopicPartition] | None, settings: BrokerSettings
) -> Decision[list[ElectionResult] | Refusal]:
    """One answer per partition; None is a new leader. Without a list: all partitions, but for those in order.

    The answers are there when the records have been made.
    """
    election = _ELECTIONS.get(election_type)
    if election is None:
        return Decision([], Refusal(ErrorCode.INVALID_REQUEST, f"there is no election type {election_type}"))
    results: list[ElectionResult] = []
    found = _named(image, wanted) if wanted is not None else _out_of_order(image, election)
    return Decision(_elections(found, election, Candidates(image), Rules(image, settings), results), results)


def _elections(
    found: Iterable[_Found], election: Election, candidates: Candidates, rules: Rules, results: list[ElectionResult]
) -> Iterator[RecordMessage]:
    for which, topic, state in found:
        if topic is None or state is None:
            refusal = Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {which}")
            results.append((which, refusal))
            continue
        outcome = _elect(topic, which.partition, state, election, candidates, rules)
        if isinstance(outcome, Refusal):
            results.append((which, outcome))
        else:
            results.append((which, None))
            yield outcome


def _named(image: MetadataImage, wanted: Sequence[TopicPartition]) -> Iterator[_Found]:
    for which in dict.fromkeys(wanted):
        found = image.topic(which.topic)
        yield which, found, found.partition(which.partition) if found is not None else None


def _out_of_order(image: MetadataImage, election: Election) -> Iterator[_Found]:
    """Looks at every partition in one turn up to the first that can be elected: for a million some 0.2 s
    where all is in order, and 2 s where a third of the preferred leaders is down, which takes an answer for each."""
    for topic in image.topics.values():
        for number, state in enumerate(topic.partitions):
            if not _is_in_order(state, election):
                yield TopicPartition(topic.name, number), topic, state


def _is_in_order(state: PartitionImage, election: Election) -> bool:
    return state.leader == state.replicas[0] if election == Election.PREFERRED else state.leader != NO_LEADER


def _elect(
    topic: TopicImage,
    number: int,
    state: PartitionImage,
    election: Election,
    candidates: Candidates,
    rules: Rules,
) -> RecordMessage | Refusal:
    if _is_in_order(state, election):
        return Refusal(ErrorCode.ELECTION_NOT_NEEDED, f"{topic.name}-{number} is led by {state.leader}")
    preferred = election == Election.PREFERRED
    may_be = candidates.can_lead(state.replicas[0], state) if preferred else _is_anybody_there(state, candidates)
    if not may_be:  # found out sooner than by building a change
        return _unavailable(topic, number, state, election)
    change = change_of(topic, state, candidates, rules)
    change.election = election
    record = change.build(topic.id, number)
    if record is None or change.leader == NO_LEADER or (preferred and change.leader != state.replicas[0]):
        return _unavailable(topic, number, state, election)
    return record


def _unavailable(topic: TopicImage, number: int, state: PartitionImage, election: Election) -> Refusal:
    name = f"{topic.name}-{number}"
    if election == Election.PREFERRED:  # another may lead it all the while
        reason = f"the preferred leader of {name}, broker {state.replicas[0]}, is down or not in sync"
        return Refusal(ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, reason)
    return Refusal(ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, f"no replica of {name} that may lead is available")


def decide_rebalance_leaders(image: MetadataImage, settings: BrokerSettings, most: int) -> Decision[int]:
    """Gives leaderships back to preferred replicas that can take them, at most so many at a time."""
    rules, candidates = Rules(image, settings), Candidates(image)
    records: list[RecordMessage] = []
    for topic, number, state in _out_of_preference(image):
        if len(records) >= most:
            break
        outcome = _elect(topic, number, state, Election.PREFERRED, candidates, rules)
        if not isinstance(outcome, Refusal):
            records.append(outcome)
    return Decision(records, len(records))


def _out_of_preference(image: MetadataImage) -> Iterable[tuple[TopicImage, int, PartitionImage]]:
    for topic in image.topics.values():
        for number, state in enumerate(topic.partitions):
            if state.leader != state.replicas[0] and state.leader != NO_LEADER and state.replicas[0] in state.isr:
                yield topic, number, state


def decide_elect_where_leaderless(image: MetadataImage, settings: BrokerSettings) -> Decision[bool]:
    """Tries again where there is no leader: a changed setting may allow what was not allowed."""
    return Decision(_where_leaderless(image, Candidates(image), Rules(image, settings)), True)


def _where_leaderless(image: MetadataImage, candidates: Candidates, rules: Rules) -> Iterator[RecordMessage]:
    """Where nobody is there who could lead, no change is built: with a broker that is away that may be hundreds of
    thousands, and a controller that looks at them for longer than its followers wait is none any more."""
    for topic in image.topics.values():
        for number, state in enumerate(topic.partitions):
            if state.leader == NO_LEADER and _is_anybody_there(state, candidates):
                record = change_of(topic, state, candidates, rules).build(topic.id, number)
                if record is not None:
                    yield record


def _is_anybody_there(state: PartitionImage, candidates: Candidates) -> bool:
    return any(candidates.can_lead(replica, state) for replica in state.replicas)
