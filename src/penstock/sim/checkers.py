"""Checkers over client histories, by the names that Jepsen gave the anomalies.

Each takes a history and returns what is wrong with it; none knows how the broker works. `check_history` runs all.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from penstock.sim.history import (
    Assigned,
    Begin,
    Commit,
    Committed,
    DeleteRecords,
    Final,
    History,
    Outcome,
    Poll,
    Send,
    TopicPartition,
    TransactionEnd,
    TransactionOffset,
)

Transaction = tuple[str, int]
"""A client and the number of one of its transactions."""


class Anomaly(NamedTuple):
    name: str
    what: str


def _reads(history: History) -> Iterator[tuple[TopicPartition, int, str]]:
    """Every time somebody was told which value is at an offset."""
    for event in history.events:
        if isinstance(event, Send) and event.outcome is Outcome.OK and event.offset >= 0:
            yield event.partition, event.offset, event.value
        elif isinstance(event, Poll | Final):
            for offset, value in event.records:
                yield event.partition, offset, value


def check_inconsistent_offsets(history: History) -> list[Anomaly]:
    """One offset, two values."""
    seen: dict[tuple[TopicPartition, int], str] = {}
    found = []
    for partition, offset, value in _reads(history):
        if seen.setdefault((partition, offset), value) != value:
            what = f"{_name(partition)}@{offset} was {seen[partition, offset]} and is {value}"
            found.append(Anomaly("inconsistent-offsets", what))
    return found


def check_duplicates(history: History) -> list[Anomaly]:
    """One value, two offsets: a retry was appended again, of a producer that is idempotent."""
    repeated = {
        (event.partition, event.value) for event in history.events if isinstance(event, Send) and event.repeats
    }
    seen: dict[tuple[TopicPartition, str], int] = {}
    found = []
    for partition, offset, value in _reads(history):
        if (partition, value) not in repeated and seen.setdefault((partition, value), offset) != offset:
            what = f"{value} is at {_name(partition)}@{seen[partition, value]} and @{offset}"
            found.append(Anomaly("duplicate", what))
    return found


def check_phantoms(history: History) -> list[Anomaly]:
    """Values that nobody sent there, or whose send certainly failed."""
    sent = {
        (event.partition, event.value)
        for event in history.events
        if isinstance(event, Send) and event.outcome is not Outcome.FAILED
    }
    return [
        Anomaly("phantom", f"{value} at {_name(partition)}@{offset} was never sent")
        for partition, offset, value in _reads(history)
        if (partition, value) not in sent
    ]


def check_lost_writes(history: History) -> list[Anomaly]:
    """Acknowledged, and not there in the end."""
    finals, starts = _finals(history), _starts(history)
    found = []
    for event in history.events:
        if not isinstance(event, Send) or event.outcome is not Outcome.OK or event.partition not in finals:
            continue
        if _may_be_deleted(event, starts):
            continue
        final = finals[event.partition]
        # A repeated batch that the broker wrote long ago is acknowledged, and nobody is told where it is.
        there = event.value in final.values() if event.offset < 0 else final.get(event.offset) == event.value
        if not there:
            found.append(
                Anomaly("lost-write", f"{event.value} acknowledged at {_name(event.partition)}@{event.offset}")
            )
    return found


def check_vanished_reads(history: History) -> list[Anomaly]:
    """Read by somebody, and not there in the end: it was shown before it was safe."""
    finals = _finals(history)
    found = []
    for event in history.events:
        if isinstance(event, Poll) and event.partition in finals:
            final = finals[event.partition]
            found += [
                Anomaly("vanished-read", f"{value} was read at {_name(event.partition)}@{offset}")
                for offset, value in event.records
                if final.get(offset) != value
            ]
    return found


def check_polls(history: History) -> list[Anomaly]:
    """Within one assignment a consumer sees each record once, in order, and skips none that is there."""
    contents = _contents(history)
    last: dict[tuple[str, TopicPartition], tuple[int, int]] = {}  # → (assignment, next offset)
    found = []
    for event in history.events:
        if isinstance(event, Begin):
            last[event.client, event.partition] = (event.assignment, event.position)
        if not isinstance(event, Poll) or not event.records:
            continue
        key = (event.client, event.partition)
        assignment, expected = last.get(key, (event.assignment, -1))
        if assignment != event.assignment:
            expected = -1
        inner = ""
        for offset, _ in event.records:
            if offset < expected:
                what = f"{event.client} read {_name(event.partition)}@{offset} after @{expected - 1}"
                found.append(Anomaly(f"{inner}nonmonotonic-poll", what))
            elif expected >= 0:
                found += _skipped(event, contents, expected, offset, inner)
            expected = offset + 1
            inner = "int-"
        last[key] = (event.assignment, expected)
    return found


def check_begins(history: History) -> list[Anomaly]:
    """Nor does a consumer skip records before the first that it reads: a group goes on at or below the highest offset
    that a member ever tried to commit, and at the start of the log if none did."""
    contents, starts = _contents(history), _starts(history)
    tried: dict[tuple[str, TopicPartition], int] = {}
    read: dict[tuple[str, TopicPartition, int], int] = {}
    begun: dict[tuple[str, TopicPartition, int], int] = {}
    found = []
    for event in history.events:
        if isinstance(event, Commit):
            place = (event.group, event.partition)
            tried[place] = max(event.offset, tried.get(place, 0))
        elif isinstance(event, Begin):
            lowest = max(tried.get((event.group, event.partition), 0), starts.get(event.partition, 0))
            key = (event.client, event.partition, event.assignment)
            # A member that is about to lose its partitions may still be given what it had fetched.
            begun[key] = max(lowest, read.get(key, 0))
        elif isinstance(event, Poll) and event.records:
            key = (event.client, event.partition, event.assignment)
            first, last = event.records[0][0], event.records[-1][0]
            found += _skipped(event, contents, begun.pop(key, first), first, "")
            read[key] = last + 1
    return found


def _skipped(
    poll: Poll, contents: dict[tuple[TopicPartition, bool], set[int]], start: int, end: int, inner: str
) -> list[Anomaly]:
    there = contents.get((poll.partition, poll.read_committed), set())
    return [
        Anomaly(f"{inner}poll-skip", f"{poll.client} skipped {_name(poll.partition)}@{offset}")
        for offset in range(start, end)
        if offset in there
    ]


def _contents(history: History) -> dict[tuple[TopicPartition, bool], set[int]]:
    """The offsets that a reader of that isolation must meet."""
    contents: dict[tuple[TopicPartition, bool], set[int]] = {}
    for event in history.events:
        if isinstance(event, Poll | Final):
            offsets = contents.setdefault((event.partition, event.read_committed), set())
            offsets.update(offset for offset, _ in event.records)
    for (partition, read_committed), offsets in list(contents.items()):
        if read_committed:  # whoever reads everything reads this too
            contents.setdefault((partition, False), set()).update(offsets)
    return contents


def check_send_order(history: History) -> list[Anomaly]:
    """A client that sends one record after the other finds them in that order."""
    last: dict[tuple[str, TopicPartition], int] = {}
    found = []
    for event in history.events:
        if isinstance(event, Send) and event.outcome is Outcome.OK and event.offset >= 0:
            key = (event.client, event.partition)
            if event.offset <= last.get(key, -1):
                what = f"{event.client} got {_name(event.partition)}@{event.offset} after @{last[key]}"
                found.append(Anomaly("nonmonotonic-send", what))
            last[key] = max(last.get(key, -1), event.offset)
    return found


def check_transactions(history: History) -> list[Anomaly]:
    """G1a: aborted records are read by nobody who asked for committed ones, and open ones neither."""
    owner = {
        (event.partition, event.value): (event.client, event.transaction)
        for event in history.events
        if isinstance(event, Send) and event.transaction is not None
    }
    ending: dict[tuple[str, int | None], bool] = {}
    aborted = {
        (event.client, event.transaction)
        for event in history.events
        if isinstance(event, TransactionEnd) and not event.commit and event.outcome is Outcome.OK and not event.begun
    }
    found = []
    for event in history.events:
        if isinstance(event, TransactionEnd):
            ending[event.client, event.transaction] = event.commit
        elif isinstance(event, Poll | Final) and event.read_committed:
            for offset, value in event.records:
                transaction = owner.get((event.partition, value))
                where = f"{value} at {_name(event.partition)}@{offset}"
                if transaction in aborted:
                    found.append(Anomaly("aborted-read", f"{where}: its transaction was aborted (G1a)"))
                elif transaction is not None and not ending.get(transaction, False):
                    found.append(Anomaly("dirty-read", f"{where}: its transaction was not being committed"))
    return found


def check_torn_transactions(history: History) -> list[Anomaly]:
    """Of a committed transaction everything is there for readers of committed records; of one that was being
    committed and whose client was never told, everything or nothing."""
    told, shown = _told_commits(history), _shown_records(history)
    found = []
    for transaction, records in shown.items():
        missing = [where for where, is_there in records.items() if not is_there]
        if told.get(transaction) is Outcome.OK:
            found += [Anomaly("torn-transaction", f"{where}, committed, is not there") for where in missing]
        elif transaction in told and 0 < len(missing) < len(records):
            there = [where for where in records if where not in missing]
            found.append(Anomaly("torn-transaction", f"{', '.join(missing)} is not there, {', '.join(there)} is"))
    return found


def check_hidden_writes(history: History) -> list[Anomaly]:
    """Acknowledged outside of transactions, and in the end not there for readers of committed records."""
    finals, starts = _committed_finals(history), _starts(history)
    return [
        Anomaly("hidden-write", f"{event.value} is in {_name(event.partition)}, and not among what is committed")
        for event in history.events
        if isinstance(event, Send)
        and event.outcome is Outcome.OK
        and event.transaction is None
        and event.partition in finals
        and event.value not in finals[event.partition]
        and not _may_be_deleted(event, starts)
    ]


def check_deletions(history: History) -> list[Anomaly]:
    """Acknowledged, and in the end the log starts before it. As with Kafka, a loss of power may undo it, since
    followers write down their starts now and then, and by a leader that was away when it happened."""
    starts = _starts(history)
    return [
        Anomaly(
            "undone-deletion", f"{_name(event.partition)} starts at {starts[event.partition]}, not {event.offset}"
        )
        for event in history.events
        if isinstance(event, DeleteRecords)
        and event.outcome is Outcome.OK
        and event.lasts
        and starts.get(event.partition, event.offset) < event.offset
    ]


def check_commits(history: History) -> list[Anomaly]:
    """A group goes on where it had got to: not before what was committed when its member was given the partition.
    What others commit while a member that was given up still reads is none of its business."""
    committed: dict[tuple[str, TopicPartition], int] = {}
    floors: dict[tuple[str, int], dict[tuple[str, TopicPartition], int]] = {}
    found = []
    for event in history.events:
        if isinstance(event, Commit) and event.outcome is Outcome.OK:
            committed[event.group, event.partition] = event.offset
        elif isinstance(event, Assigned):
            floors[event.client, event.assignment] = dict(committed)
        elif isinstance(event, Begin):
            floor = floors[event.client, event.assignment].get((event.group, event.partition), -1)
            if event.position < floor:
                what = f"{event.group} begins {_name(event.partition)} at {event.position}, committed was {floor}"
                found.append(Anomaly("lost-commit", what))
    return found


def check_committed(history: History) -> list[Anomaly]:
    """What a group is said to have committed is the last that a member was told, or what nobody knows the fate of. Of
    each member: of two that overlap nobody knows which came last, or which is told a little later. In the end it is
    the last of all, or one that overlapped it."""
    attempts = _attempts(history)
    found = []
    for number, event in enumerate(history.events):
        if not isinstance(event, Committed):
            continue
        of_group = attempts.get((event.group, event.partition), [])
        told = [each for each in of_group if each.commit.outcome is Outcome.OK and each.end < number]
        possible = _last_of_all(told) if event.in_the_end else _last_of_each(told)
        if told and event.offset not in possible and not _may_yet_be_told(of_group, number, event):
            what = f"{event.group} has {_name(event.partition)}@{event.offset}, told was {sorted(possible)}"
            found.append(Anomaly("lost-commit", what))
    return found


class _Attempt(NamedTuple):
    """A commit, with the numbers of the events between which it happened, if it did."""

    begin: int
    end: int
    commit: Commit


def _attempts(history: History) -> dict[tuple[str, TopicPartition], list[_Attempt]]:
    begun: dict[tuple[str, TopicPartition], int] = {}
    attempts: dict[tuple[str, TopicPartition], list[_Attempt]] = {}
    for number, event in enumerate(history.events):
        if isinstance(event, Commit) and event.begun:
            begun[event.client, event.partition] = number
        elif isinstance(event, Commit):
            begin = begun.pop((event.client, event.partition), number)
            attempts.setdefault((event.group, event.partition), []).append(_Attempt(begin, number, event))
    return attempts


def _last_of_each(told: list[_Attempt]) -> set[int]:
    return set({each.commit.client: each.commit.offset for each in told}.values())


def _last_of_all(told: list[_Attempt]) -> set[int]:
    """Those that were not over when the last one began."""
    last_begin = max((each.begin for each in told), default=0)
    return {each.commit.offset for each in told if each.end >= last_begin}


def _may_yet_be_told(attempts: list[_Attempt], number: int, seen: Committed) -> bool:
    """Or nobody will ever know whether it happened, and when."""
    return any(
        each.commit.offset == seen.offset
        and (each.commit.outcome is Outcome.UNKNOWN or (each.end > number and each.commit.client != seen.client))
        for each in attempts
    )


def check_transaction_offsets(history: History) -> list[Anomaly]:
    """What a group has in the end is of the last transaction that is known to be committed, or of a later one that
    nobody knows the fate of. Each client has a group of its own."""
    fates = _fates(history)
    possible: dict[tuple[str, TopicPartition], set[int]] = {}
    found = []
    for event in history.events:
        if isinstance(event, TransactionOffset):
            fate = fates.get((event.client, event.transaction), Outcome.FAILED)
            offsets = possible.setdefault((event.group, event.partition), {-1})
            if fate is Outcome.OK:
                offsets.clear()
            if fate is not Outcome.FAILED:
                offsets.add(event.offset)
        elif isinstance(event, Committed):
            offsets = possible.get((event.group, event.partition), {event.offset})
            if event.offset not in offsets:
                what = f"{event.group} has {_name(event.partition)}@{event.offset}, not one of {sorted(offsets)}"
                found.append(Anomaly("torn-offsets", what))
    return found


def _fates(history: History) -> dict[Transaction, Outcome]:
    """Of the transactions that clients meant to commit. What they were not told their records tell in the end: what
    is committed with them is committed, and what went with them did not happen."""
    fates, shown = _told_commits(history), _shown_records(history)
    for transaction, outcome in fates.items():
        there = set(shown.get(transaction, {}).values())
        if outcome is not Outcome.OK and len(there) == 1:
            fates[transaction] = Outcome.OK if there.pop() else Outcome.FAILED
    return fates


def _told_commits(history: History) -> dict[Transaction, Outcome]:
    """The last that clients were told of the transactions that they meant to commit."""
    return {
        (event.client, event.transaction): event.outcome
        for event in history.events
        if isinstance(event, TransactionEnd) and event.commit
    }


def _shown_records(history: History) -> dict[Transaction, dict[str, bool]]:
    """By transaction, of each acknowledged record whether readers of committed records find it in the end."""
    finals, starts = _committed_finals(history), _starts(history)
    shown: dict[Transaction, dict[str, bool]] = {}
    for event in history.events:
        if not isinstance(event, Send) or event.transaction is None or event.outcome is not Outcome.OK:
            continue
        if event.partition in finals and not _may_be_deleted(event, starts):
            records = shown.setdefault((event.client, event.transaction), {})
            records[f"{event.value} of {_name(event.partition)}"] = event.value in finals[event.partition]
    return shown


def _finals(history: History) -> dict[TopicPartition, dict[int, str]]:
    return {
        event.partition: dict(event.records)
        for event in history.events
        if isinstance(event, Final) and not event.read_committed
    }


def _committed_finals(history: History) -> dict[TopicPartition, set[str]]:
    return {
        event.partition: {value for _, value in event.records}
        for event in history.events
        if isinstance(event, Final) and event.read_committed
    }


def _starts(history: History) -> dict[TopicPartition, int]:
    """Where partitions start in the end: what was below was deleted."""
    starts: dict[TopicPartition, int] = {}
    for event in history.events:
        if isinstance(event, Final):
            starts[event.partition] = max(event.start_offset, starts.get(event.partition, 0))
    return starts


def _may_be_deleted(event: Send, starts: dict[TopicPartition, int]) -> bool:
    """Also where nobody was told at which offset it is."""
    return max(event.offset, 0) < starts.get(event.partition, 0)


def _name(partition: TopicPartition) -> str:
    return f"{partition[0]}-{partition[1]}"


CHECKERS: tuple[Callable[[History], list[Anomaly]], ...] = (
    check_inconsistent_offsets,
    check_duplicates,
    check_phantoms,
    check_lost_writes,
    check_vanished_reads,
    check_polls,
    check_begins,
    check_send_order,
    check_transactions,
    check_torn_transactions,
    check_hidden_writes,
    check_deletions,
    check_commits,
    check_committed,
    check_transaction_offsets,
)


def check_history(history: History) -> list[Anomaly]:
    return [anomaly for check in CHECKERS for anomaly in check(history)]
