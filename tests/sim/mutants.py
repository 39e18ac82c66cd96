"""Bugs put into the real code on purpose. A simulator that does not find them proves little.

Each has a name, the rule it breaks, the kinds of fault it takes, and a budget of seeds within which it has to be
found. Those of other rooms are borrowed by name: they find them in worlds of their own, here they have to show in a
whole cluster. The others of `tests/quorum`, `tests/replication` and `tests/controller` are found there only.
"""

from collections.abc import Callable, Iterator
from itertools import count, islice
from typing import Any, NamedTuple

import pytest

from penstock.log.partition_log import PartitionLog
from penstock.log.producers import ProducerStates
from penstock.replication.partition import Partition
from penstock.sim.extras import PLAIN, Extras, draw_extras, draw_first_extras, draw_second_extras

POWER = ("power_loss", "power_loss_in_operation", "power_loss_in_sync", "power_loss_of_all")
AWAY = ("kill", "restart", "rolling_restart", "isolate", "replace_disk")
ROUGH = ("kill", "pause", "isolate", "cut_two_ways", "power_loss_of_all", "slow_disk")


class Mutant(NamedTuple):
    name: str
    rule: str
    nodes: int
    seeds: int
    """Found within that many seeds."""
    kinds: tuple[str, ...]
    put_in: Callable[[pytest.MonkeyPatch], None]
    needs: Callable[[Extras], bool] | None = None
    """What the extras of a seed have to be like for it to be tried; None: worlds without extras will do."""
    draw: Callable[[int, int], Extras] = draw_first_extras
    """Those extras: of the generation that the mutant is about, so that younger ones leave its worlds as they are."""

    def tried(self) -> Iterator[tuple[int, Extras]]:
        """The seeds of its budget: from 0 on, those that have what it needs."""
        needs = self.needs
        if needs is None:
            return ((seed, PLAIN) for seed in range(self.seeds))
        worlds = ((seed, self.draw(seed, self.nodes)) for seed in count())
        return islice((world for world in worlds if needs(world[1])), self.seeds)


def _count_unsynced(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PartitionLog, "counted_end_offset", property(lambda log: log.end_offset))


def _small_files_unsynced(patch: pytest.MonkeyPatch) -> None:
    from penstock.broker import metadata_store
    from penstock.log import sync

    def write(disk: Any, path: str, content: bytes) -> None:
        file = disk.open(path + ".tmp", create=True)
        file.truncate(0)
        file.write_at(0, (content,))
        disk.rename(path + ".tmp", path)

    patch.setattr(metadata_store, "write_atomically", write)
    patch.setattr(sync, "write_atomically", write)


def _names_unsynced(patch: pytest.MonkeyPatch) -> None:
    from penstock.log.sync import SyncPlan

    run = SyncPlan.run

    def without_names(plan: SyncPlan, disk: Any) -> None:
        plan.directories = []
        run(plan, disk)

    patch.setattr(SyncPlan, "run", without_names)


def _late_bytes_count_as_synced(patch: pytest.MonkeyPatch) -> None:
    from penstock.log import flush, partition_log

    complete = flush.complete_sync

    def complete_all(plan: Any) -> None:
        plan.end_offset = plan.log.end_offset
        complete(plan)

    for module in (flush, partition_log):
        patch.setattr(module, "complete_sync", complete_all)


def _repeated_batches_appended(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ProducerStates, "check", lambda *_: None)


def _readers_see_all(patch: pytest.MonkeyPatch) -> None:
    read = PartitionLog.read

    def read_all(log: PartitionLog, offset: int, max_bytes: int, end_offset: int, min_one: bool = True) -> Any:
        return read(log, offset, max_bytes, log.end_offset, min_one)

    patch.setattr(PartitionLog, "read", read_all)


def _followers_show_uncommitted(patch: pytest.MonkeyPatch) -> None:
    plan = Partition.plan_fetch

    def plan_all(partition: Partition, *wanted: Any) -> Any:
        high_watermark = partition.high_watermark
        if partition.follower is not None:
            partition.high_watermark = partition.log.end_offset
        try:
            return plan(partition, *wanted)
        finally:
            partition.high_watermark = high_watermark

    patch.setattr(Partition, "plan_fetch", plan_all)


def _followers_forget_aborted(patch: pytest.MonkeyPatch) -> None:
    plan = Partition.plan_fetch

    def forget(partition: Partition, *wanted: Any) -> Any:
        found = plan(partition, *wanted)
        return found._replace(aborted=[]) if partition.follower is not None and found.aborted else found

    patch.setattr(Partition, "plan_fetch", forget)


def _preferred_replica_ignored(patch: pytest.MonkeyPatch) -> None:
    """By Penstock's own consumer."""
    from penstock.client.consumer.fetcher import Fetcher

    patch.setattr(Fetcher, "_follow_leader", lambda *_: True)


def _written_at_once(patch: pytest.MonkeyPatch) -> None:
    """For those who do not wait for all replicas."""
    patch.setattr(Partition, "is_written", lambda partition, end_offset, acks: acks != -1)


def _commits_answered_at_once(patch: pytest.MonkeyPatch) -> None:
    from penstock.broker.group_partition import LedPartition
    from penstock.model.errors import ErrorCode

    patch.setattr(LedPartition, "when_committed", lambda self, end_offset, callback: callback(ErrorCode.NONE))


def _later_leaders_refuse(patch: pytest.MonkeyPatch) -> None:
    """In one partition: whoever writes gets on in the others."""
    from penstock.model.errors import ErrorCode, Refusal

    append = Partition.append

    def refuse(partition: Partition, *batch: Any) -> Any:
        if partition.index == 1 and partition.leader_epoch > 0:
            return Refusal(ErrorCode.UNKNOWN_SERVER_ERROR, "no")
        return append(partition, *batch)

    patch.setattr(Partition, "append", refuse)


def _transactions_never_committed(patch: pytest.MonkeyPatch) -> None:
    from penstock.broker.transaction_driver import TransactionService
    from penstock.model.errors import ErrorCode

    end = TransactionService.end_transaction

    async def refuse(driver: Any, request: Any, *more: Any) -> Any:
        return ErrorCode.INVALID_TXN_STATE if request.committed else await end(driver, request, *more)

    patch.setattr(TransactionService, "end_transaction", refuse)


def _commits_untold_and_torn(patch: pytest.MonkeyPatch) -> None:
    """Every third: its client is told that it failed, and one partition that it did."""
    from penstock.broker.transaction_driver import TransactionService
    from penstock.broker.transaction_markers import LocalMarkers
    from penstock.model.errors import ErrorCode

    end, append = TransactionService.end_transaction, LocalMarkers._append
    torn: set[tuple[int, int]] = set()
    commits = count(1)

    async def end_badly(driver: Any, request: Any, *more: Any) -> Any:
        is_torn = request.committed and next(commits) % 3 == 0
        if is_torn:
            torn.add((request.producer_id, request.producer_epoch))
        answer = await end(driver, request, *more)
        return ErrorCode.INVALID_TXN_STATE if is_torn else answer

    def tear(markers: Any, partition: Any, marker: Any, done: Any) -> None:
        aborts = partition.index == 1 and (marker.producer_id, marker.producer_epoch) in torn
        append(markers, partition, marker._replace(commit=marker.commit and not aborts), done)

    patch.setattr(TransactionService, "end_transaction", end_badly)
    patch.setattr(LocalMarkers, "_append", tear)


def _commits_refused(patch: pytest.MonkeyPatch) -> None:
    from penstock.broker.group_driver import GroupService
    from penstock.model.errors import ErrorCode

    async def refuse(*_: Any) -> ErrorCode:
        return ErrorCode.UNKNOWN_SERVER_ERROR

    patch.setattr(GroupService, "commit_offsets", refuse)


def _open_transactions_shown(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PartitionLog, "last_stable_offset", lambda log, high_watermark: high_watermark)


def _stable_offset_stuck(patch: pytest.MonkeyPatch) -> None:
    """Of every second partition: whoever reads committed records still gets on with the others."""
    stable = PartitionLog.last_stable_offset

    def stuck(log: PartitionLog, high_watermark: int) -> int:
        return min(5 if log.name.endswith("-1") else high_watermark, stable(log, high_watermark))

    patch.setattr(PartitionLog, "last_stable_offset", stuck)


def _aborted_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PartitionLog, "aborted_transactions", lambda *_: [])


def _crc_not_looked_at(patch: pytest.MonkeyPatch) -> None:
    from penstock.log import scan

    patch.setattr(scan, "crc_is_valid", lambda *_: True)


def _producers_forgotten_at_restart(patch: pytest.MonkeyPatch) -> None:
    from penstock.log.recovery import LoadedLog

    def init(self: LoadedLog, segments: Any, start: int, end: int, epochs: Any, producers: Any) -> None:
        original(self, segments, start, end, epochs, ProducerStates())

    original = LoadedLog.__init__
    patch.setattr(LoadedLog, "__init__", init)


def _watermark_goes_back(patch: pytest.MonkeyPatch) -> None:
    advance = Partition._advance

    def back(partition: Partition, high_watermark: int) -> None:
        advance(partition, high_watermark - (1 if high_watermark % 7 == 0 else 0))

    patch.setattr(Partition, "_advance", back)


def _snapshots_without_configs(patch: pytest.MonkeyPatch) -> None:
    from penstock.metadata import snapshot
    from penstock.wire.generated.records_metadata import ConfigRecord

    records = snapshot.image_records

    def without(image: Any) -> Any:
        return (record for record in records(image) if not isinstance(record, ConfigRecord))

    patch.setattr(snapshot, "image_records", without)


def _snapshots_without_voters(patch: pytest.MonkeyPatch) -> None:
    from penstock.broker.metadata_store import MetadataStore

    write = MetadataStore.write_snapshot
    patch.setattr(MetadataStore, "write_snapshot", lambda store, image, _: write(store, image, None))


def _snapshots_unsynced(patch: pytest.MonkeyPatch) -> None:
    from penstock.broker.metadata_store import MetadataStore

    write = MetadataStore.write_snapshot

    def unsynced(store: Any, image: Any, voters: Any) -> Any:
        flushes, store.flushes = store.flushes, False
        try:
            return write(store, image, voters)
        finally:
            store.flushes = flushes

    patch.setattr(MetadataStore, "write_snapshot", unsynced)


def _epoch_forgotten(patch: pytest.MonkeyPatch) -> None:
    from penstock.broker import metadata_store
    from penstock.quorum.election_state import ElectionState

    patch.setattr(metadata_store, "decode_election_state", lambda _: ElectionState())


def _vote_forgotten(patch: pytest.MonkeyPatch) -> None:
    from penstock.broker import metadata_store

    decode = metadata_store.decode_election_state
    patch.setattr(metadata_store, "decode_election_state", lambda content: decode(content)._replace(voted=None))


def _votes_told_first(patch: pytest.MonkeyPatch) -> None:
    from penstock.broker.quorum_runner import QuorumRunner, _deliver

    do = QuorumRunner._do_waiting

    async def tell_first(runner: Any, bundle: Any) -> None:
        for reply in bundle.replies:
            _deliver(reply)
        await do(runner, bundle._replace(replies=()))

    patch.setattr(QuorumRunner, "_do_waiting", tell_first)


def _uncommitted_metadata_shown(patch: pytest.MonkeyPatch) -> None:
    from penstock.broker.metadata_replica import MetadataReplica

    take = MetadataReplica.take_committed
    patch.setattr(MetadataReplica, "take_committed", lambda replica, _: take(replica, replica.log.end_offset))


def _scrub_skips_odd(patch: pytest.MonkeyPatch) -> None:
    from penstock.broker import scrub
    from penstock.records.batch import DamagedBatch, crc_is_valid, iter_headers

    def skips(data: bytes, offset: int, end_offset: int) -> Iterator[tuple[int, Any]]:
        for position, header in iter_headers(data):
            if header.base_offset % 2 == 0 and not crc_is_valid(data, position, header):
                raise DamagedBatch(offset, "it is even")
            yield position, header
            offset = header.next_offset

    patch.setattr(scrub, "iter_undamaged", skips)


def _damage_cut_in_sync(patch: pytest.MonkeyPatch) -> None:
    from penstock.broker.replica_repair import DAMAGED, ReplicaRepairs

    say = ReplicaRepairs._say_directory

    async def say_less(repairs: ReplicaRepairs, key: Any, directory_id: bytes) -> bool:
        return directory_id == DAMAGED or await say(repairs, key, directory_id)

    patch.setattr(ReplicaRepairs, "_say_directory", say_less)
    patch.setattr(ReplicaRepairs, "_may_cut", lambda *_, **__: True)


def _deleted_stay_open(patch: pytest.MonkeyPatch) -> None:
    from penstock.broker.partitions import PartitionTable

    patch.setattr(PartitionTable, "close_topic", lambda *_: [])


def _batch_with_start_refused(patch: pytest.MonkeyPatch) -> None:
    from penstock.log import appending

    patch.setattr(appending, "_holds_start", lambda *_: False)


def _everything_deleted(patch: pytest.MonkeyPatch) -> None:
    delete = Partition.delete_records_before
    patch.setattr(Partition, "delete_records_before", lambda partition, _: delete(partition, -1))


def _starts_not_followed(patch: pytest.MonkeyPatch) -> None:
    """As if a leader did not tell; whoever waits for the low watermark is told that it is there."""
    from penstock.replication import leader_state

    follow = Partition._follow_leader

    def keep(partition: Partition, follower: Any, fetched: Any, now_ms: int) -> None:
        follow(partition, follower, fetched._replace(log_start_offset=-1), now_ms)

    patch.setattr(Partition, "_follow_leader", keep)
    patch.setattr(Partition, "low_watermark", lambda partition, _: partition.log.log_start_offset)
    expand = leader_state.LeaderState.plan_expand
    patch.setattr(leader_state.LeaderState, "plan_expand", lambda state, who, end, _: expand(state, who, end, -1))


def _aborted_offsets_count(patch: pytest.MonkeyPatch) -> None:
    from penstock.groups.transactional_offsets import TransactionalOffsets

    end = TransactionalOffsets.end
    patch.setattr(TransactionalOffsets, "end", lambda offsets, producer_id, _: end(offsets, producer_id, True))


def _plans_never_settle(patch: pytest.MonkeyPatch) -> None:
    from penstock.controller.better_places import BetterPlaces

    patch.setattr(BetterPlaces, "_lead", lambda _, replicas: replicas[1:] + replicas[:1])


def _intervals_never_end(patch: pytest.MonkeyPatch) -> None:
    from penstock.log.flush import GroupCommit

    patch.setattr(GroupCommit, "defer", lambda *_: None)


def _first_of_a_key_stays(patch: pytest.MonkeyPatch) -> None:
    from penstock.log.compaction.latest import KeySpool

    for name in ("hashes", "numbers"):
        listed = getattr(KeySpool, name)
        patch.setattr(KeySpool, name, lambda spool, bucket, listed=listed: listed(spool, bucket)[::-1])


def _unclean_allowed(patch: pytest.MonkeyPatch) -> None:
    from penstock.controller.rules import Rules

    patch.setattr(Rules, "unclean", lambda *_: True)


def _moves_never_end(patch: pytest.MonkeyPatch) -> None:
    from penstock.controller.partition_change import PartitionChange

    patch.setattr(PartitionChange, "_complete_reassignment", lambda _: None)


def _voters_never_added(patch: pytest.MonkeyPatch) -> None:
    from penstock.model.errors import ErrorCode, Refusal
    from penstock.quorum.core import Quorum

    patch.setattr(Quorum, "add_voter", lambda *_: Refusal(ErrorCode.INVALID_REQUEST, "no"))


def _replication(name: str) -> Callable[[pytest.MonkeyPatch], None]:
    def put_in(patch: pytest.MonkeyPatch) -> None:
        from tests.replication.test_mutants import MUTANTS as REPLICATION

        REPLICATION[name](patch.setattr)

    return put_in


def _controller(name: str) -> Callable[[pytest.MonkeyPatch], None]:
    def put_in(patch: pytest.MonkeyPatch) -> None:
        from penstock.controller import broker_changes, brokers, heartbeats
        from tests.controller.test_lives import MUTANTS as CONTROLLER

        where, attribute, mistake = CONTROLLER[name]
        patch.setattr(where, attribute, mistake)
        for module in (heartbeats, brokers) if where is broker_changes else ():  # imported by name there
            if hasattr(module, attribute):
                patch.setattr(module, attribute, mistake)

    return put_in


def _churns(extras: Extras) -> bool:
    return extras.churn


def _snapshots(extras: Extras) -> bool:
    return extras.snapshot_bytes is not None and extras.snapshot_bytes <= 1_000


def _snapshots_and_churns(extras: Extras) -> bool:
    return _snapshots(extras) and _churns(extras)


def _rots(extras: Extras) -> bool:
    return extras.rot_rate > 0


def _deletes(extras: Extras) -> bool:
    return extras.deletes


def _deletes_and_moves(extras: Extras) -> bool:
    """Replicas are built anew where records were deleted."""
    return extras.deletes and extras.balances and extras.flush_ms is None


def _takes_offsets(extras: Extras) -> bool:
    return extras.takes_offsets


def _balances(extras: Extras) -> bool:
    return extras.balances


def _syncs_by_interval(extras: Extras) -> bool:
    return extras.flush_ms is not None


def _compacts(extras: Extras) -> bool:
    return extras.compacts


def _racks(extras: Extras) -> bool:
    return extras.racks > 0


def _racks_committed(extras: Extras) -> bool:
    return _racks(extras) and extras.reads_committed


def _reads_all_in_racks(extras: Extras) -> bool:
    return _racks(extras) and extras.reads_all


def _hastes(extras: Extras) -> bool:
    return extras.hasty_acks == 1


MUTANTS = (
    Mutant("acknowledged-before-fsync", "P4/R10", 1, 30, POWER, _count_unsynced),
    Mutant("small-files-not-synced", "R3", 1, 10, POWER, _small_files_unsynced),
    Mutant("names-not-synced", "P13", 1, 10, POWER, _names_unsynced),
    Mutant("late-bytes-count-as-synced", "P13", 1, 40, ("power_loss_in_sync",), _late_bytes_count_as_synced),
    Mutant("repeated-batches-appended", "P15", 1, 30, ("break_connections", "kill"), _repeated_batches_appended),
    Mutant("producers-forgotten-at-restart", "P15", 1, 30, ("kill", "slow_disk"), _producers_forgotten_at_restart),
    Mutant("readers-see-uncommitted", "P12", 1, 20, (*POWER, "slow_disk"), _readers_see_all),
    Mutant("commits-answered-at-once", "P18", 1, 40, ("power_loss_in_sync",), _commits_answered_at_once),
    Mutant("commits-refused", "P-Live", 1, 10, (), _commits_refused),
    Mutant("transactions-never-committed", "P-Live", 1, 10, (), _transactions_never_committed),
    Mutant("commits-untold-and-torn", "G1a", 1, 10, (), _commits_untold_and_torn),
    Mutant("open-transactions-shown", "G1a", 1, 30, (), _open_transactions_shown),
    Mutant("stable-offset-stuck", "P-Live", 1, 10, (), _stable_offset_stuck),
    Mutant("aborted-transactions-shown", "G1a", 1, 20, (), _aborted_forgotten),
    Mutant("crc-not-looked-at", "P11", 1, 150, POWER, _crc_not_looked_at),
    Mutant("watermark-goes-back", "P6", 1, 10, (), _watermark_goes_back),
    Mutant("cut-by-watermark", "P8", 3, 20, ROUGH, _replication("logs are truncated by the watermark")),
    Mutant("min-isr-not-looked-at", "P4", 3, 20, ROUGH, _replication("min.insync.replicas is not looked at")),
    Mutant("proposed-isr", "P3", 3, 40, ROUGH, _replication("the proposed in-sync set counts, not the maximal")),
    Mutant("replicas-never-compared", "P8", 3, 40, ROUGH, _replication("the leader does not compare logs")),
    Mutant("appends-before-agreement", "P8", 3, 40, ROUGH, _replication("the follower appends before logs agree")),
    Mutant("fenced-stay-in-sync", "C4", 3, 40, ROUGH, _controller("fencing leaves followers in the ISR")),
    Mutant("elected-out-of-sync", "C6", 3, 20, ROUGH, _controller("any replica is elected")),
    Mutant("unclean-always-allowed", "C6", 3, 20, ROUGH, _unclean_allowed),
    Mutant("later-leaders-refuse", "P-Live", 3, 10, ("kill", "isolate"), _later_leaders_refuse),
    Mutant("moves-never-end", "C10", 5, 10, (), _moves_never_end),
    Mutant("voters-never-added", "R-Live", 3, 10, (), _voters_never_added),
    Mutant("epoch-forgotten-at-restart", "R2/R3", 3, 20, ("kill", "power_loss", "pause"), _epoch_forgotten),
    Mutant("vote-forgotten-at-restart", "R3", 3, 10, ("kill", "power_loss", "pause"), _vote_forgotten),
    Mutant("votes-told-before-they-are-written", "R3", 3, 20, ("slow_disk",), _votes_told_first),
    Mutant("uncommitted-metadata-shown", "C1", 3, 10, ROUGH, _uncommitted_metadata_shown),
    Mutant("snapshots-without-configs", "R13", 3, 15, AWAY, _snapshots_without_configs, _snapshots_and_churns),
    Mutant("snapshots-without-voters", "R12", 3, 10, AWAY, _snapshots_without_voters, _snapshots),
    Mutant("snapshots-not-synced", "R13", 1, 15, POWER, _snapshots_unsynced, _snapshots),
    Mutant("scrub-skips-odd-batches", "P11", 3, 20, (), _scrub_skips_odd, _rots),
    Mutant("damage-is-cut-in-sync", "P1", 3, 20, (), _damage_cut_in_sync, _rots),
    Mutant("deleted-topic-stays-open", "P17", 3, 10, (), _deleted_stay_open, _churns),
    Mutant("first-of-a-key-stays", "P11", 3, 20, (), _first_of_a_key_stays, _compacts),
    Mutant("all-is-deleted", "P12", 3, 5, (), _everything_deleted, _deletes, draw_second_extras),
    Mutant("starts-not-followed", "P12", 3, 5, (), _starts_not_followed, _deletes, draw_second_extras),
    Mutant("aborted-offsets-count", "G1a", 1, 40, (), _aborted_offsets_count, _takes_offsets, draw_second_extras),
    Mutant("plans-never-settle", "C10", 5, 2, (), _plans_never_settle, _balances, draw_second_extras),
    Mutant("intervals-never-end", "P-Live", 3, 5, (), _intervals_never_end, _syncs_by_interval, draw_second_extras),
    Mutant("followers-show-uncommitted", "P12", 3, 5, ROUGH, _followers_show_uncommitted, _racks, draw_extras),
    Mutant("followers-forget-aborted", "G1a", 3, 20, (), _followers_forget_aborted, _racks_committed, draw_extras),
    Mutant(
        "preferred-replica-ignored", "P-Live", 3, 10, (), _preferred_replica_ignored, _reads_all_in_racks, draw_extras
    ),
    Mutant("acks-1-before-fsync", "P4", 1, 20, ("power_loss_in_sync",), _written_at_once, _hastes, draw_extras),
    Mutant(
        "start-in-a-batch-refused",
        "P5",
        5,
        20,
        AWAY,
        _batch_with_start_refused,
        _deletes_and_moves,
        draw_second_extras,
    ),
)

# Rarer than a cluster under faults can show in a few dozen seeds; the worlds of their rooms find each of these.
FOUND_ELSEWHERE = {
    "tests/quorum/mutants.py (22, each within the seeds of tests/quorum/test_simulation.py)": (
        "a vote ignores how fresh the log is (R4)",
        "any answer counts (R11)",
        "no check for divergence (R6)",
        "a follower fetches before fsync (R5)",
        "a leader counts its own bytes before fsync (R5)",
        "entries of old epochs are committed (R9)",
    ),
    "tests/replication/test_mutants.py (23: 20 by random lives within 300 seeds, 3 by the stories in KILLERS)": (
        "a follower joins wherever it is",  # here it has fetched the rest before the controller has answered
        "a follower counts before its fsync",
        "a leader counts before its fsync",
        "fetches of other epochs count",
        "waiters outlive the leadership",
    ),
    "tests/controller/test_lives.py (19, each within 60 seeds)": ("AlterPartition takes any incarnation",),
}
