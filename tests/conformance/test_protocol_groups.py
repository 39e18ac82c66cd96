"""Group requests as frames: what clients' libraries never show, and what Connect and Schema Registry rely on."""

import struct
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.model.errors import ErrorCode
from penstock.wire.generated.delete_groups import DeleteGroupsRequest
from penstock.wire.generated.describe_groups import DescribeGroupsRequest
from penstock.wire.generated.find_coordinator import FindCoordinatorRequest
from penstock.wire.generated.heartbeat import HeartbeatRequest
from penstock.wire.generated.join_group import JoinGroupRequest
from penstock.wire.generated.leave_group import LeaveGroupRequest
from penstock.wire.generated.list_groups import ListGroupsRequest
from penstock.wire.generated.offset_commit import OffsetCommitRequest
from penstock.wire.generated.offset_delete import OffsetDeleteRequest
from penstock.wire.generated.offset_fetch import OffsetFetchRequest
from penstock.wire.generated.sync_group import SyncGroupRequest
from tests.conformance.conftest import NewTopicFunction
from tests.conformance.raw import RawConnection, topic_id_of
from tests.waiting import eventually

NOISE = bytes(range(256))
# A subscription of the consumer protocol, by hand: version 0, one topic, no user data.
SUBSCRIPTION = struct.pack(">hih1si", 0, 1, 1, b"t", -1)


NOT_YET = {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
}


@pytest.fixture
def connection(bootstrap: str, new_group: str) -> Iterator[RawConnection]:
    """A connection to the coordinator of the test's group, which is ready."""
    with RawConnection(bootstrap) as opened:
        for group in (new_group, "never-was", "unknown"):
            find = FindCoordinatorRequest(key=group)
            eventually(lambda f=find: opened.call(f, 3).error_code == 0, 30)
            probe = HeartbeatRequest(group_id=group, generation_id=0, member_id="nobody")
            eventually(lambda p=probe: opened.call(p, 4).error_code not in NOT_YET, 30)
        yield opened


def join_request(group: str, member_id: str = "", protocol_type: str = "consumer", **fields: Any) -> JoinGroupRequest:
    protocols = fields.pop("protocols", {"range": SUBSCRIPTION})
    return JoinGroupRequest(
        group_id=group,
        session_timeout_ms=30_000,
        rebalance_timeout_ms=30_000,
        member_id=member_id,
        protocol_type=protocol_type,
        protocols=[JoinGroupRequest.JoinGroupRequestProtocol(name, data) for name, data in protocols.items()],
        **fields,
    )


def join(connection: RawConnection, group: str, version: int = 9, **fields: Any) -> Any:
    """Joins as a new member; newer versions need a second call with the member id that the first one gave."""
    answer = connection.call(join_request(group, **fields), version)
    if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
        assert version >= 4
        answer = connection.call(join_request(group, answer.member_id, **fields), version)
    return answer


def sync_request(group: str, joined: Any, assignments: dict[str, bytes] | None = None) -> SyncGroupRequest:
    assignment = SyncGroupRequest.SyncGroupRequestAssignment
    return SyncGroupRequest(
        group_id=group,
        generation_id=joined.generation_id,
        member_id=joined.member_id,
        protocol_type=joined.protocol_type or "consumer",  # old answers do not name it, new requests must
        protocol_name=joined.protocol_name or None,
        assignments=[assignment(member, data) for member, data in (assignments or {}).items()],
    )


@pytest.mark.parametrize(("version", "sync_version"), [(v, min(v, 5)) for v in range(10)])
def test_a_member_joins_in_every_version(
    connection: RawConnection, new_group: str, version: int, sync_version: int
) -> None:
    joined = join(connection, new_group, version)
    assert (joined.error_code, joined.generation_id, joined.leader) == (0, 1, joined.member_id)
    assert joined.protocol_name == "range"
    assert [(m.member_id, m.metadata) for m in joined.members] == [(joined.member_id, SUBSCRIPTION)]
    synced = connection.call(sync_request(new_group, joined, {joined.member_id: b"assigned"}), sync_version)
    assert (synced.error_code, synced.assignment) == (0, b"assigned")
    beat = HeartbeatRequest(group_id=new_group, generation_id=1, member_id=joined.member_id)
    assert connection.call(beat, min(version, 4)).error_code == 0
    leave_version = min(version, 5)
    leave = LeaveGroupRequest(group_id=new_group)
    if leave_version <= 2:
        leave.member_id = joined.member_id
    else:
        leave.members = [LeaveGroupRequest.MemberIdentity(member_id=joined.member_id)]
    assert connection.call(leave, leave_version).error_code == 0
    assert connection.call(beat, min(version, 4)).error_code == ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("protocol_type", ["connect", "sr", "whatever"])
def test_metadata_and_assignments_are_opaque(
    connection: RawConnection, bootstrap: str, new_group: str, protocol_type: str
) -> None:
    """Connect and Schema Registry put bytes of their own into the group; the broker carries them unread."""
    protocols = {"sessioned": NOISE * 3, "v0": b""}
    first = join(connection, new_group, protocol_type=protocol_type, protocols=protocols)
    connection.call(sync_request(new_group, first, {first.member_id: b"alone"}), 5)
    with RawConnection(bootstrap) as other:
        asked = other.call(join_request(new_group, protocol_type=protocol_type, protocols=protocols), 9)
        request = join_request(new_group, asked.member_id, protocol_type=protocol_type, protocols=protocols)
        waiting = other.send(request, 9)
        # Generation 2 begins when the first member has come back too.
        rejoined = connection.call(
            join_request(new_group, first.member_id, protocol_type=protocol_type, protocols=protocols), 9
        )
        second = other.receive(request, 9, waiting)
        assert rejoined.generation_id == second.generation_id == 2
        assert {m.member_id: m.metadata for m in rejoined.members} == {
            first.member_id: NOISE * 3,
            second.member_id: NOISE * 3,
        }
        assert second.members == [], "only the leader is told who is there"
        sync = sync_request(new_group, second)
        waiting = other.send(sync, 5)
        assignments = {first.member_id: NOISE, second.member_id: NOISE[::-1]}
        assert connection.call(sync_request(new_group, rejoined, assignments), 5).assignment == NOISE
        assert other.receive(sync, 5, waiting).assignment == NOISE[::-1]
    [described] = connection.call(DescribeGroupsRequest(groups=[new_group]), 5).groups
    assert (described.group_state, described.protocol_type) == ("Stable", protocol_type)
    assert {m.member_id: m.member_assignment for m in described.members} == assignments
    assert {m.member_metadata for m in described.members} == {NOISE * 3}


def test_wrong_members_and_generations(connection: RawConnection, new_group: str) -> None:
    joined = join(connection, new_group)
    connection.call(sync_request(new_group, joined, {joined.member_id: b""}), 5)

    def beat(generation_id: int = 1, member_id: str = joined.member_id) -> int:
        request = HeartbeatRequest(group_id=new_group, generation_id=generation_id, member_id=member_id)
        code: int = connection.call(request, 4).error_code
        return code

    assert beat() == 0
    assert beat(generation_id=7) == ErrorCode.ILLEGAL_GENERATION
    assert beat(member_id="stranger") == ErrorCode.UNKNOWN_MEMBER_ID
    assert connection.call(join_request(new_group, "stranger"), 9).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    other_type = connection.call(join_request(new_group, protocol_type="connect"), 3)
    assert other_type.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    other_protocol = connection.call(join_request(new_group, protocols={"sticky": SUBSCRIPTION}), 3)
    assert other_protocol.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    short = join_request(new_group)
    short.session_timeout_ms = 1
    assert connection.call(short, 3).error_code == ErrorCode.INVALID_SESSION_TIMEOUT
    assert connection.call(join_request(""), 9).error_code == ErrorCode.INVALID_GROUP_ID


def commit_request(
    group: str, topic: str, offset: int, member_id: str = "", generation_id: int = -1
) -> OffsetCommitRequest:
    partition = OffsetCommitRequest.OffsetCommitRequestPartition(
        partition_index=0, committed_offset=offset, committed_metadata="note"
    )
    topics = [OffsetCommitRequest.OffsetCommitRequestTopic(name=topic, partitions=[partition])]
    return OffsetCommitRequest(
        group_id=group, member_id=member_id, generation_id_or_member_epoch=generation_id, topics=topics
    )


def committed(connection: RawConnection, group: str, topic: str, version: int) -> tuple[int, int, str | None]:
    """Error code, offset and metadata of partition 0."""
    request = OffsetFetchRequest()
    topic_id = topic_id_of(connection, topic) if version >= 10 else bytes(16)
    if version <= 7:
        request.group_id = group
        request.topics = [OffsetFetchRequest.OffsetFetchRequestTopic(name=topic, partition_indexes=[0])]
        answer = connection.call(request, version)
        codes = answer.error_code if version >= 2 else 0
    else:
        name = topic if version < 10 else ""
        topics = [OffsetFetchRequest.OffsetFetchRequestTopics(name=name, topic_id=topic_id, partition_indexes=[0])]
        request.groups = [OffsetFetchRequest.OffsetFetchRequestGroup(group_id=group, topics=topics)]
        [answer] = connection.call(request, version).groups
        codes = answer.error_code
    [partition] = answer.topics[0].partitions
    return codes or partition.error_code, partition.committed_offset, partition.metadata


@pytest.mark.parametrize("version", range(2, 11))
def test_offsets_in_every_version(
    connection: RawConnection, new_topic: NewTopicFunction, new_group: str, version: int
) -> None:
    topic = new_topic()
    request = commit_request(new_group, topic, version)
    if version >= 10:
        request.topics[0].topic_id = topic_id_of(connection, topic)
        request.topics[0].name = ""
    [answer] = connection.call(request, version).topics
    assert answer.partitions[0].error_code == 0
    for fetch_version in range(1, 11):
        assert committed(connection, new_group, topic, fetch_version) == (0, version, "note")


@pytest.mark.parametrize("version", range(1, 11))
def test_an_unknown_group_has_no_offsets_and_no_error(
    connection: RawConnection, new_topic: NewTopicFunction, new_group: str, version: int
) -> None:
    assert committed(connection, new_group, new_topic(), version)[:2] == (0, -1)


def test_all_offsets_of_a_group(connection: RawConnection, new_topic: NewTopicFunction, new_group: str) -> None:
    topics = sorted([new_topic(), new_topic()])
    for offset, topic in enumerate(topics):
        connection.call(commit_request(new_group, topic, offset), 8)
    answer = connection.call(OffsetFetchRequest(group_id=new_group, topics=None), 7)
    assert sorted((t.name, t.partitions[0].committed_offset) for t in answer.topics) == list(
        zip(topics, (0, 1), strict=True)
    )
    groups = [OffsetFetchRequest.OffsetFetchRequestGroup(group_id=g, topics=None) for g in (new_group, "unknown")]
    known, unknown = connection.call(OffsetFetchRequest(groups=groups), 9).groups
    assert (known.error_code, sorted(t.name for t in known.topics)) == (0, topics)
    assert (unknown.error_code, unknown.topics) == (0, [])
    nothing = connection.call(OffsetFetchRequest(group_id=new_group, topics=[]), 7)
    assert nothing.topics == [], "an empty list asks for nothing, null asks for everything"


def test_commits_are_fenced_by_generation(
    connection: RawConnection, new_topic: NewTopicFunction, new_group: str
) -> None:
    topic = new_topic()
    joined = join(connection, new_group)
    connection.call(sync_request(new_group, joined, {joined.member_id: b""}), 5)

    def commit(member_id: str, generation_id: int) -> int:
        [answer] = connection.call(commit_request(new_group, topic, 5, member_id, generation_id), 8).topics
        code: int = answer.partitions[0].error_code
        return code

    assert commit(joined.member_id, 1) == 0
    assert commit(joined.member_id, 9) == ErrorCode.ILLEGAL_GENERATION
    assert commit("stranger", 1) == ErrorCode.UNKNOWN_MEMBER_ID
    assert commit("", -1) == ErrorCode.UNKNOWN_MEMBER_ID, "a group with members takes no commits from outside"


def test_describe_and_list(connection: RawConnection, new_group: str) -> None:
    joined = join(connection, new_group)
    connection.call(sync_request(new_group, joined, {joined.member_id: b"x"}), 5)
    for version in range(7):
        [described] = connection.call(DescribeGroupsRequest(groups=[new_group]), version).groups
        assert (described.error_code, described.group_state, described.protocol_data) == (0, "Stable", "range")
        assert [m.client_id for m in described.members] == ["raw"]
    for version in range(6):
        listed = connection.call(ListGroupsRequest(), version)
        assert new_group in {group.group_id for group in listed.groups}
    stable = connection.call(ListGroupsRequest(states_filter=["Stable"]), 5)
    assert {group.group_state for group in stable.groups} == {"Stable"}
    assert new_group in {group.group_id for group in stable.groups}
    empty = connection.call(ListGroupsRequest(states_filter=["Empty"]), 5)
    assert new_group not in {group.group_id for group in empty.groups}


def test_unknown_groups(connection: RawConnection) -> None:
    for version in range(6):
        [described] = connection.call(DescribeGroupsRequest(groups=["never-was"]), version).groups
        assert (described.error_code, described.group_state) == (0, "Dead")
    [described] = connection.call(DescribeGroupsRequest(groups=["never-was"]), 6).groups
    assert (described.error_code, described.group_state) == (ErrorCode.GROUP_ID_NOT_FOUND, "Dead")
    [deleted] = connection.call(DeleteGroupsRequest(groups_names=["never-was"]), 2).results
    assert deleted.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    answer = connection.call(OffsetDeleteRequest(group_id="never-was"), 0)
    assert answer.error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_the_coordinator_in_every_version(connection: RawConnection, bootstrap: str, new_group: str) -> None:
    for version in range(4):
        answer = connection.call(FindCoordinatorRequest(key=new_group), version)
        assert (answer.error_code, f"{answer.host}:{answer.port}") == (0, bootstrap)
    for version in range(4, 7):
        answer = connection.call(FindCoordinatorRequest(coordinator_keys=[new_group, "other"]), version)
        assert [(c.key, c.error_code) for c in answer.coordinators] == [(new_group, 0), ("other", 0)]
        assert {f"{c.host}:{c.port}" for c in answer.coordinators} == {bootstrap}
