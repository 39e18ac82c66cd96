"""Tells a story to a `GroupShard`: one command a line, below it what came of it.

    join c1 g client=a            a command; `c1` names who waits for the answer
    > c1: MEMBER_ID_REQUIRED …    an answer, given now to somebody who asked now or earlier
    > write …                     a record appended (and replayed)

Member ids are written `prefix#n`, where n counts the ids made. Run with REWRITE_STORIES=1 to write down what
happens instead of comparing; then read the difference. Commands of the newer protocol are in `consumer_story`.
"""

from collections.abc import Callable
from dataclasses import replace

from penstock.groups.config import GroupConfig, MigrationPolicy
from penstock.groups.decision import Answer, Decision, GroupRecord, Now
from penstock.groups.group_deletion import GroupDeletion
from penstock.groups.shard import GroupShard
from penstock.model.errors import ErrorCode, Refusal
from penstock.wire.generated.consumer_group_heartbeat import ConsumerGroupHeartbeatResponse
from penstock.wire.generated.consumer_protocol import ConsumerProtocolSubscription
from penstock.wire.generated.heartbeat import HeartbeatRequest
from penstock.wire.generated.join_group import JoinGroupRequest, JoinGroupResponse
from penstock.wire.generated.leave_group import LeaveGroupRequest, LeaveGroupResponse
from penstock.wire.generated.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from penstock.wire.generated.offset_delete import OffsetDeleteRequest, OffsetDeleteResponse
from penstock.wire.generated.offset_fetch import OffsetFetchRequest
from penstock.wire.generated.records_group import GroupMetadataKey, GroupMetadataValue, OffsetCommitKey
from penstock.wire.generated.sync_group import SyncGroupRequest, SyncGroupResponse
from penstock.wire.records import (
    decode_group_record,
    encode_coordinator_key,
    encode_coordinator_value,
    encode_versioned,
)
from tests.groups.consumer_story import ConsumerCommands, describe_consumer_record, describe_consumer_response
from tests.groups.topics import parse_partitions, parse_plan, show_bytes

START_WALL_MS = 1_700_000_000_000


def setting(name: str, value: str) -> object:
    if name == "consumer_migration_policy":
        return MigrationPolicy(value)
    return tuple(value.split(",")) if name == "consumer_assignors" else int(value)


CONFIG = GroupConfig(
    min_session_timeout_ms=1_000,
    max_session_timeout_ms=600_000,
    initial_rebalance_delay_ms=3_000,
    max_size=10_000,
    offset_metadata_max_bytes=4_096,
    offsets_retention_ms=7 * 86_400_000,
    offsets_retention_check_interval_ms=600_000,
    consumer_session_timeout_ms=45_000,
    consumer_heartbeat_interval_ms=5_000,
    consumer_max_size=10_000,
    consumer_assignors=("uniform", "range"),
    consumer_migration_policy=MigrationPolicy.BIDIRECTIONAL,
    consumer_assignment_interval_ms=0,
    consumer_regex_refresh_interval_ms=600_000,
)


class CountingRng:
    """Random bytes that count, so that ids are 1, 2, 3 …"""

    def __init__(self) -> None:
        self.count = 0

    def random_bytes(self, count: int) -> bytes:
        self.count += 1
        return self.count.to_bytes(count, "big")

    def uniform(self, low: float, high: float) -> float:
        return low


def _id_suffix(number: int) -> str:
    return f"-00000000-0000-4000-8000-{number:012x}"


def long_id(text: str) -> str:
    prefix, mark, number = text.partition("#")
    return prefix + _id_suffix(int(number)) if mark else text


def short_id(member_id: str | None) -> str:
    if not member_id:
        return "-"
    return f"{member_id[:-37]}#{int(member_id[-12:], 16)}" if len(member_id) > 37 else member_id


def subscription(topics: str, owned: str = "") -> bytes:
    names = [name for name in topics.split(",") if name]
    held = [ConsumerProtocolSubscription.TopicPartition(*item) for item in parse_partitions(owned).items()]
    return encode_versioned(ConsumerProtocolSubscription(topics=names, owned_partitions=held), 1)


def parse_protocols(text: str, protocol_type: str, owned: str = "") -> dict[str, bytes]:
    """`range:t1,t2 sticky:t1`, joined by `+`; other types than consumer have raw metadata."""
    protocols = {}
    for item in text.split("+"):
        name, _, metadata = item.partition(":")
        raw = protocol_type != "consumer" or metadata.startswith("!")
        protocols[name] = metadata.encode() if raw else subscription(metadata, owned)
    return protocols


class Story(ConsumerCommands):
    def __init__(self, config: GroupConfig = CONFIG) -> None:
        super().__init__()
        self.config = config
        self.rng = CountingRng()
        self.shard = GroupShard(config, self.rng)
        self.log: list[tuple[bytes, bytes | None]] = []
        self.steady_ms = 0
        self.start_wall_ms = START_WALL_MS
        self.refuse_next: ErrorCode | None = None
        self.appends_before_refusal = 0
        self.out: list[str] = []

    @property
    def now(self) -> Now:
        return Now(self.steady_ms, self.start_wall_ms + self.steady_ms)

    def run(self, line: str) -> list[str]:
        self.out = []
        words = line.partition(" # ")[0].split()
        options = dict(word.split("=", 1) for word in words[1:] if "=" in word and ":" not in word.split("=")[0])
        names = [word for word in words[1:] if not ("=" in word and ":" not in word.split("=")[0])]
        command: Callable[[list[str], dict[str, str]], None] = getattr(self, "do_" + words[0].replace("-", "_"))
        command(names, options)
        return self.out

    # -- the driver's part ------------------------------------------------------------------------------------------

    def apply(self, decision: Decision) -> None:
        self._apply_once(decision)
        self.run_jobs_unless_held()

    def _apply_once(self, decision: Decision) -> None:
        self.jobs += decision.jobs
        if decision.records and self.refuse_next is not None and self._is_to_refuse():
            error, self.refuse_next = self.refuse_next, None
            self.out.append(f"refused {len(decision.records)} records")
            decision = self.shard.refused(decision, error, self.now)
            assert not decision.records
        for record in decision.records:
            self._append(record)
        for answer in decision.answers:
            self._say(answer)
        if decision.is_to_be_continued:
            self._apply_once(self.shard.go_on(decision, self.now))

    def _is_to_refuse(self) -> bool:
        self.appends_before_refusal -= 1
        return self.appends_before_refusal < 0

    def _append(self, record: GroupRecord) -> None:
        key = encode_coordinator_key(record.key)
        value = None if record.value is None else encode_coordinator_value(record.value, record.version)
        self.log.append((key, value))
        self.shard.replay(record.key, record.value)
        self.out.append("write " + describe_record(record))

    def _say(self, answer: Answer) -> None:
        waiter, response = answer
        self.out.append(f"{waiter}: {describe_response(response)}")

    # -- commands ---------------------------------------------------------------------------------------------------

    def do_set(self, names: list[str], options: dict[str, str]) -> None:
        self.config = replace(self.config, **{name: setting(name, value) for name, value in options.items()})
        self._reload()

    def do_join(self, names: list[str], options: dict[str, str]) -> None:
        waiter, group = names
        protocol_type = options.get("type", "consumer")
        protocols = parse_protocols(options.get("protocols", "range:t1"), protocol_type, options.get("owned", ""))
        request = JoinGroupRequest(
            group_id=group,
            session_timeout_ms=int(options.get("session", "10000")),
            rebalance_timeout_ms=int(options.get("rebalance", "60000")),
            member_id=long_id(options.get("member", "")),
            group_instance_id=options.get("instance"),
            protocol_type=protocol_type,
            protocols=[JoinGroupRequest.JoinGroupRequestProtocol(*item) for item in protocols.items() if item[0]],
        )
        client = options.get("client", "c")
        version = int(options.get("version", "9"))
        self.apply(self.shard.decide_join(request, client, "/h", version, waiter, self.now))

    def do_sync(self, names: list[str], options: dict[str, str]) -> None:
        waiter, group = names
        given = options.get("plan", "")
        plan = [item.split(":", 1) for item in ([given] if ":!" in given else given.split(",")) if item]
        request = SyncGroupRequest(
            group_id=group,
            generation_id=int(options["gen"]),
            member_id=long_id(options["member"]),
            group_instance_id=options.get("instance"),
            protocol_type=options.get("type"),
            protocol_name=options.get("protocol"),
            assignments=[SyncGroupRequest.SyncGroupRequestAssignment(long_id(m), parse_plan(a)) for m, a in plan],
        )
        self.apply(self.shard.decide_sync(request, waiter, self.now))

    def do_heartbeat(self, names: list[str], options: dict[str, str]) -> None:
        request = HeartbeatRequest(names[0], int(options["gen"]), long_id(options["member"]), options.get("instance"))
        self.out.append(self.shard.heartbeat(request, self.steady_ms).name)

    def do_leave(self, names: list[str], options: dict[str, str]) -> None:
        waiter, group, *identities = names
        if not identities:
            identities = [f"{options.get('member', '')}/{options.get('instance', '')}"]
        members = []
        for identity in identities:
            member, _, instance = identity.partition("/")
            members.append(LeaveGroupRequest.MemberIdentity(long_id(member), instance or None))
        self.apply(self.shard.decide_leave(LeaveGroupRequest(group_id=group, members=members), waiter, self.now))

    def do_commit(self, names: list[str], options: dict[str, str]) -> None:
        """commit w g t1:0=5 t1:1=7@note member=… gen=…"""
        waiter, group, *positions = names
        topics: dict[str, OffsetCommitRequest.OffsetCommitRequestTopic] = {}
        for position in positions:
            place, _, rest = position.partition("=")
            topic, _, index = place.partition(":")
            offset, _, note = rest.partition("@")
            topic_id = bytes.fromhex(options.get("topic-id", "00")).rjust(16, b"\0")
            entry = topics.setdefault(topic, OffsetCommitRequest.OffsetCommitRequestTopic(topic, topic_id))
            entry.partitions.append(
                OffsetCommitRequest.OffsetCommitRequestPartition(int(index), int(offset), 3, note or None)
            )
        request = OffsetCommitRequest(
            group_id=group,
            generation_id_or_member_epoch=int(options.get("gen", "-1")),
            member_id=long_id(options.get("member", "")),
            group_instance_id=options.get("instance"),
            retention_time_ms=int(options.get("retention", "-1")),
            topics=list(topics.values()),
        )
        version = int(options.get("version", "9"))
        self.apply(self.shard.decide_commit_offsets(request, version, waiter, self.now))

    def do_fetch(self, names: list[str], options: dict[str, str]) -> None:
        group, *places = names
        member_id, epoch = options.get("member"), int(options.get("gen", "-1"))
        request = OffsetFetchRequest.OffsetFetchRequestGroup(group, member_id, epoch, None)
        if places:
            topic_id = bytes.fromhex(options.get("topic-id", "00")).rjust(16, b"\0")
            request.topics = [
                OffsetFetchRequest.OffsetFetchRequestTopics(place.split(":")[0], topic_id, [int(place.split(":")[1])])
                for place in places
            ]
        answer = self.shard.fetch_offsets(request)
        if answer.error_code:
            self.out.append(ErrorCode(answer.error_code).name)
            return
        found = [
            f"{topic.name}:{each.partition_index}={each.committed_offset}"
            + (f"@{each.metadata}" if each.metadata else "")
            for topic in answer.topics
            for each in topic.partitions
        ]
        self.out.append(" ".join(found) or "nothing")

    def do_delete_offsets(self, names: list[str], options: dict[str, str]) -> None:
        waiter, group, *places = names
        topics = [
            OffsetDeleteRequest.OffsetDeleteRequestTopic(
                place.split(":")[0], [OffsetDeleteRequest.OffsetDeleteRequestPartition(int(place.split(":")[1]))]
            )
            for place in places
        ]
        self.apply(self.shard.decide_delete_offsets(OffsetDeleteRequest(group, topics), waiter, self.now))

    def do_delete_groups(self, names: list[str], options: dict[str, str]) -> None:
        self.apply(self.shard.decide_delete_groups(GroupDeletion(names[1:]), names[0], self.now))

    def do_forget_topics(self, names: list[str], options: dict[str, str]) -> None:
        self.shard.forget_topics(names)
        while (decision := self.shard.decide_sweep(self.now, 100)) is not None:
            self.apply(decision)

    def do_list(self, names: list[str], options: dict[str, str]) -> None:
        states = [word for word in options.get("state", "").split(",") if word]
        types = [word for word in options.get("type", "").split(",") if word]
        for group in self.shard.list_groups(states, types):
            self.out.append(f"{group.group_id} {group.group_state} {group.group_type} {group.protocol_type or '-'}")
        if not self.out:
            self.out.append("nothing")

    def do_describe(self, names: list[str], options: dict[str, str]) -> None:
        group = self.shard.describe_group(names[0], int(options.get("version", "5")))
        error = f" {ErrorCode(group.error_code).name} {group.error_message!r}" if group.error_code else ""
        self.out.append(f"{group.group_state} {group.protocol_type or '-'} {group.protocol_data or '-'}{error}")
        for member in group.members:
            instance = f" instance={member.group_instance_id}" if member.group_instance_id else ""
            subscribed = " subscribed" if member.member_metadata else ""
            self.out.append(
                f"  {short_id(member.member_id)}{instance} client={member.client_id}{subscribed}"
                f" assigned={show_bytes(member.member_assignment)}"
            )

    def do_advance(self, names: list[str], options: dict[str, str]) -> None:
        """Lets time pass; every timer fires at its own moment."""
        end_ms = self.steady_ms + int(names[0])
        while True:
            next_ms = self.shard.next_deadline_ms()
            if next_ms is None or next_ms > end_ms:
                break
            self.steady_ms = max(self.steady_ms, next_ms)
            fired_ms = self.steady_ms
            while (decision := self.shard.decide_timeout(self.now)) is not None:
                before = len(self.out)
                self.apply(decision)
                self.out[before:] = [f"{line}  (at {fired_ms})" for line in self.out[before:]]
        self.steady_ms = end_ms

    def do_set_back(self, names: list[str], options: dict[str, str]) -> None:
        """The clock on the wall shows an earlier time from now on."""
        self.start_wall_ms -= int(names[0])

    def do_refuse(self, names: list[str], options: dict[str, str]) -> None:
        """The next append, or one `after` so many, is refused with this error."""
        self.appends_before_refusal = int(options.get("after", "0"))
        self.refuse_next = ErrorCode[names[0]]

    def do_resign(self, names: list[str], options: dict[str, str]) -> None:
        for answer in self.shard.resign():
            self._say(answer)

    def do_reload(self, names: list[str], options: dict[str, str]) -> None:
        self._reload()

    def _reload(self) -> None:
        self.shard = GroupShard(self.config, self.rng)
        self.jobs.clear()
        self.shard.follow(self.topics.image, (), True)
        for key, value in self.log:
            self.shard.replay(*decode_group_record(key, value))
        self.apply(self.shard.finish_load(self.now))


def describe_record(record: GroupRecord) -> str:
    key, value = record.key, record.value
    if isinstance(key, OffsetCommitKey):
        what = "tombstone" if value is None else f"{value.offset} v{record.version}"  # type: ignore[attr-defined]
        return f"offset {key.group} {key.topic}:{key.partition} {what}"
    if not isinstance(key, GroupMetadataKey):
        return describe_consumer_record(record)
    if value is None:
        return f"group {key.group} tombstone"
    assert isinstance(value, GroupMetadataValue)
    members = " ".join(f"{short_id(m.member_id)}={show_bytes(m.assignment)}" for m in value.members)
    return (
        f"group {key.group} gen={value.generation} {value.protocol_type}/{value.protocol or '-'}"
        f" leader={short_id(value.leader)} [{members}]"
    )


def describe_response(response: object) -> str:
    if isinstance(response, ErrorCode):
        return response.name
    if isinstance(response, Refusal | ConsumerGroupHeartbeatResponse):
        return describe_consumer_response(response)
    if isinstance(response, JoinGroupResponse):
        return _describe_join(response)
    if isinstance(response, SyncGroupResponse):
        return f"NONE {response.protocol_type}/{response.protocol_name} assigned={show_bytes(response.assignment)}"
    if isinstance(response, LeaveGroupResponse):
        return " ".join(
            f"{short_id(m.member_id)}/{m.group_instance_id or ''}={ErrorCode(m.error_code).name}"
            for m in response.members
        )
    if isinstance(response, OffsetCommitResponse | OffsetDeleteResponse):
        return " ".join(
            f"{topic.name}:{each.partition_index}={ErrorCode(each.error_code).name}"
            for topic in response.topics
            for each in topic.partitions
        )
    assert isinstance(response, list)
    return " ".join(f"{each.group_id}={ErrorCode(each.error_code).name}" for each in response)


def _describe_join(response: JoinGroupResponse) -> str:
    if response.error_code:
        return f"{ErrorCode(response.error_code).name} member={short_id(response.member_id)}"
    skip = " skip-assignment" if response.skip_assignment else ""
    members = " ".join(short_id(m.member_id) for m in response.members)
    return (
        f"gen={response.generation_id} {response.protocol_type}/{response.protocol_name}"
        f" leader={short_id(response.leader)} member={short_id(response.member_id)}{skip} [{members}]"
    )
