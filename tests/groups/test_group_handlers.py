"""The ten handlers, in every version they serve: each answer must also encode and decode in that version."""

import asyncio
import importlib
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from penstock.broker.context import RequestContext
from penstock.model.errors import ErrorCode
from penstock.security.verdicts import Operation
from penstock.wire.apis import API_TABLE
from penstock.wire.generated.delete_groups import DeleteGroupsRequest
from penstock.wire.generated.describe_groups import DescribeGroupsRequest
from penstock.wire.generated.heartbeat import HeartbeatRequest
from penstock.wire.generated.join_group import JoinGroupRequest, JoinGroupResponse
from penstock.wire.generated.leave_group import LeaveGroupRequest
from penstock.wire.generated.list_groups import ListGroupsRequest
from penstock.wire.generated.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from penstock.wire.generated.offset_delete import OffsetDeleteRequest
from penstock.wire.generated.offset_fetch import OffsetFetchRequest, OffsetFetchResponse
from penstock.wire.generated.sync_group import SyncGroupRequest
from penstock.wire.struct import ApiMessage
from tests.groups.fakes import GroupWorld, image_with, offsets_topic, user_topic
from tests.groups.story import subscription

T_ID = user_topic("t").id
UNKNOWN_ID = b"?" * 16


class Client:
    """Sends requests as a client of one version would: through both codecs."""

    def __init__(self, world: GroupWorld) -> None:
        self.world = world
        self.broker = world.broker()

    async def send(self, request: ApiMessage, version: int) -> Any:
        api = API_TABLE[request.API_KEY]
        received = _through_codec(request, version)
        context = RequestContext(request.API_KEY, version, client_id="c", client_host="10.0.0.1")
        module = importlib.import_module(f"penstock.broker.handlers.{api.module}")
        response = await module.handle(self.broker, context, received)
        return _through_codec(response, version)

    async def join(self, version: int, group: str = "g", member_id: str = "") -> JoinGroupResponse:
        protocol = JoinGroupRequest.JoinGroupRequestProtocol("range", subscription("t"))
        request = JoinGroupRequest(group, 10_000, 10_000, member_id, None, "consumer", [protocol])
        answer: JoinGroupResponse = await self.send(request, version)
        if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            return await self.join(version, group, answer.member_id)
        return answer

    async def stable_member(self, group: str = "g") -> JoinGroupResponse:
        joined = await self.join(9, group)
        plan = [SyncGroupRequest.SyncGroupRequestAssignment(joined.member_id, b"x")]
        await self.send(
            SyncGroupRequest(group, joined.generation_id, joined.member_id, None, "consumer", "range", plan), 5
        )
        return joined


def _through_codec(message: ApiMessage, version: int) -> Any:
    out = bytearray()
    message.encode(version, out)
    decoded, end = type(message).decode(bytes(out), 0, version)
    assert end == len(out)
    return decoded


def run(test: Callable[[Client], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(30):
            world = GroupWorld()
            await test(Client(world))
            world.service.stop()

    asyncio.run(bounded())


def partition(index: int, offset: int) -> OffsetCommitRequest.OffsetCommitRequestPartition:
    return OffsetCommitRequest.OffsetCommitRequestPartition(index, offset, -1, "")


def commit(name: str, *partitions: tuple[int, int], topic_id: bytes = bytes(16)) -> OffsetCommitRequest:
    parts = [partition(*each) for each in partitions]
    topic = OffsetCommitRequest.OffsetCommitRequestTopic(name, topic_id, parts)
    return OffsetCommitRequest("g", topics=[topic])


@pytest.mark.parametrize("version", range(10))
def test_join_group(version: int) -> None:
    async def test(client: Client) -> None:
        joined = await client.join(version)
        assert joined.error_code == ErrorCode.NONE
        assert joined.generation_id == 1
        assert joined.leader == joined.member_id
        assert joined.members[0].metadata == subscription("t")
        assert joined.protocol_name == "range"
        unknown = await client.join(version, member_id="stranger")
        assert (unknown.error_code, unknown.member_id) == (ErrorCode.UNKNOWN_MEMBER_ID, "stranger")
        assert unknown.protocol_name == (None if version >= 7 else "")
        assert (await client.join(version, group="")).error_code == ErrorCode.INVALID_GROUP_ID
        described = await client.send(DescribeGroupsRequest(["g"]), 5)
        assert described.groups[0].members[0].client_host == "/10.0.0.1"

    run(test)


@pytest.mark.parametrize("version", range(6))
def test_sync_group(version: int) -> None:
    async def test(client: Client) -> None:
        joined = await client.join(9)
        plan = [SyncGroupRequest.SyncGroupRequestAssignment(joined.member_id, b"mine")]
        names = ("consumer", "range") if version >= 5 else (None, None)
        request = SyncGroupRequest("g", 1, joined.member_id, None, *names, plan)
        synced = await client.send(request, version)
        assert (synced.error_code, synced.assignment) == (ErrorCode.NONE, b"mine")
        request.generation_id = 7
        assert (await client.send(request, version)).error_code == ErrorCode.ILLEGAL_GENERATION
        request.group_id = ""
        assert (await client.send(request, version)).error_code == ErrorCode.INVALID_GROUP_ID

    run(test)


def test_sync_group_must_name_the_protocol_from_version_5() -> None:
    async def test(client: Client) -> None:
        joined = await client.join(9)
        answer = await client.send(SyncGroupRequest("g", 1, joined.member_id), 5)
        assert answer.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL

    run(test)


@pytest.mark.parametrize("version", range(5))
def test_heartbeat(version: int) -> None:
    async def test(client: Client) -> None:
        joined = await client.stable_member()
        assert (await client.send(HeartbeatRequest("g", 1, joined.member_id), version)).error_code == 0
        answer = await client.send(HeartbeatRequest("g", 2, joined.member_id), version)
        assert answer.error_code == ErrorCode.ILLEGAL_GENERATION
        answer = await client.send(HeartbeatRequest("", 2, joined.member_id), version)
        assert answer.error_code == ErrorCode.INVALID_GROUP_ID

    run(test)


@pytest.mark.parametrize("version", range(6))
def test_leave_group(version: int) -> None:
    async def test(client: Client) -> None:
        joined = await client.stable_member()

        def leave(member_id: str) -> LeaveGroupRequest:
            if version < 3:
                return LeaveGroupRequest("g", member_id)
            return LeaveGroupRequest("g", members=[LeaveGroupRequest.MemberIdentity(member_id)])

        left = await client.send(leave(joined.member_id), version)
        again = await client.send(leave(joined.member_id), version)
        if version < 3:
            assert (left.error_code, again.error_code) == (0, ErrorCode.UNKNOWN_MEMBER_ID)
        else:
            assert [member.error_code for member in left.members] == [0]
            assert [member.error_code for member in again.members] == [ErrorCode.UNKNOWN_MEMBER_ID]

    run(test)


@pytest.mark.parametrize("version", range(2, 11))
def test_offset_commit(version: int) -> None:
    async def test(client: Client) -> None:
        request = commit("t", (0, 5), (1, 6), (9, 7), topic_id=T_ID)
        unknown = OffsetCommitRequest.OffsetCommitRequestTopic("nope", UNKNOWN_ID, [partition(0, 1)])
        request.topics.append(unknown)
        answer: OffsetCommitResponse = await client.send(request, version)
        assert [len(topic.partitions) for topic in answer.topics] == [3, 1]
        errors = {each.partition_index: each.error_code for each in answer.topics[0].partitions}
        assert errors == {0: 0, 1: 0, 9: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
        not_there = ErrorCode.UNKNOWN_TOPIC_ID if version >= 10 else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert answer.topics[1].partitions[0].error_code == not_there
        assert (answer.topics[0].topic_id == T_ID) == (version >= 10)
        request = commit("t", (0, 8), topic_id=T_ID)
        request.generation_id_or_member_epoch = 3
        answer = await client.send(request, version)
        assert answer.topics[0].partitions[0].error_code == ErrorCode.UNKNOWN_MEMBER_ID

    run(test)


@pytest.mark.parametrize("version", range(1, 11))
def test_offset_fetch(version: int) -> None:
    async def test(client: Client) -> None:
        await client.send(commit("t", (0, 5)), 9)

        async def fetch(group: str, topic: str | None, topic_id: bytes = T_ID) -> list[tuple[int, int, int]]:
            answer = await client.send(_fetch_request(version, group, topic, topic_id), version)
            return _fetched(answer, version)

        assert await fetch("g", "t") == [(0, 5, 0), (1, -1, 0)]
        assert await fetch("nogroup", "t") == [(0, -1, 0), (1, -1, 0)]
        if version < 10:
            assert await fetch("g", "nope", UNKNOWN_ID) == [(0, -1, 0), (1, -1, 0)]
        else:
            error = ErrorCode.UNKNOWN_TOPIC_ID
            assert await fetch("g", "nope", UNKNOWN_ID) == [(0, -1, error), (1, -1, error)]
        if version >= 2:
            assert await fetch("g", None) == [(0, 5, 0)]
            assert await fetch("nogroup", None) == []

    run(test)


def _fetch_request(version: int, group: str, topic: str | None, topic_id: bytes) -> OffsetFetchRequest:
    if version < 8:
        request = OffsetFetchRequest(group, topics=None)
        if topic is not None:
            request.topics = [OffsetFetchRequest.OffsetFetchRequestTopic(topic, [0, 1])]
        return request
    asked = OffsetFetchRequest.OffsetFetchRequestGroup(group, topics=None)
    if topic is not None:
        asked.topics = [OffsetFetchRequest.OffsetFetchRequestTopics(topic, topic_id, [0, 1])]
    return OffsetFetchRequest(groups=[asked])


def _fetched(answer: OffsetFetchResponse, version: int) -> list[tuple[int, int, int]]:
    topics: list[Any] = list(answer.topics) if version < 8 else list(answer.groups[0].topics)
    return [(p.partition_index, p.committed_offset, p.error_code) for topic in topics for p in topic.partitions]


@pytest.mark.parametrize("version", range(1, 11))
def test_offset_fetch_from_the_wrong_broker(version: int) -> None:
    async def test(client: Client) -> None:
        client.world.lead(offsets_topic(1, leader=2, leader_epoch=1))
        answer = await client.send(_fetch_request(version, "g", "t", T_ID), version)
        if version < 8:  # at every partition too: aiokafka looks nowhere else
            assert {error for _, _, error in _fetched(answer, version)} == {ErrorCode.NOT_COORDINATOR}
            assert version < 2 or answer.error_code == ErrorCode.NOT_COORDINATOR
        else:
            assert answer.groups[0].error_code == ErrorCode.NOT_COORDINATOR

    run(test)


def test_offsets_of_a_topic_that_was_created_again_are_not_its_own() -> None:
    async def test(client: Client) -> None:
        await client.send(commit("t", (0, 5)), 9)
        again = user_topic("t")
        again.id = b"new t".ljust(16)
        client.world.topics["t"] = again
        client.world.lead(offsets_topic(1))
        client.broker = client.world.broker()
        for version in (7, 9, 10):
            answer = await client.send(_fetch_request(version, "g", "t", again.id), version)
            assert _fetched(answer, version) == [(0, -1, 0), (1, -1, 0)]
        client.world.restart()
        client.broker = client.world.broker()
        for version in (7, 9, 10):
            answer = await client.send(_fetch_request(version, "g", None, again.id), version)
            assert not (answer.topics if version < 8 else answer.groups[0].topics)

    run(test)


def test_a_name_that_went_to_another_topic_while_the_answer_waited() -> None:
    async def test(client: Client) -> None:
        world = client.world
        await client.send(commit("t", (0, 5)), 9)
        world.partition.auto_commit = False
        writing = asyncio.ensure_future(client.send(commit("u", (0, 6)), 9))
        await asyncio.sleep(0)
        fetching = asyncio.ensure_future(client.send(_fetch_request(10, "g", None, bytes(16)), 10))
        await asyncio.sleep(0)
        again = user_topic("t")
        again.id = b"new t".ljust(16)
        client.broker.image = image_with(again, world.topics["u"])
        world.partition.commit()
        await writing
        answer = await fetching
        assert [topic.topic_id for topic in answer.groups[0].topics] == [world.topics["u"].id]

    run(test)


def test_offset_delete() -> None:
    async def test(client: Client) -> None:
        delete = OffsetDeleteRequest
        asked = delete.OffsetDeleteRequestTopic(
            "t", [delete.OffsetDeleteRequestPartition(0), delete.OffsetDeleteRequestPartition(9)]
        )
        nope = delete.OffsetDeleteRequestTopic("nope", [delete.OffsetDeleteRequestPartition(0)])
        answer = await client.send(delete("g", [asked]), 0)
        assert answer.error_code == ErrorCode.GROUP_ID_NOT_FOUND
        await client.send(commit("t", (0, 5)), 9)
        answer = await client.send(delete("g", [asked, nope]), 0)
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        found = [(t.name, p.partition_index, p.error_code) for t in answer.topics for p in t.partitions]
        assert found == [("t", 0, 0), ("t", 9, unknown), ("nope", 0, unknown)]
        answer = await client.send(_fetch_request(9, "g", None, T_ID), 9)
        assert _fetched(answer, 9) == []
        await client.stable_member("h")
        answer = await client.send(delete("h", [asked]), 0)
        assert answer.topics[0].partitions[0].error_code == ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC

    run(test)


@pytest.mark.parametrize("version", range(6))
def test_list_groups(version: int) -> None:
    async def test(client: Client) -> None:
        await client.send(commit("t", (0, 5)), 9)
        await client.stable_member("h")
        answer = await client.send(ListGroupsRequest(), version)
        assert sorted(group.group_id for group in answer.groups) == ["g", "h"]
        if version >= 4:
            answer = await client.send(ListGroupsRequest(states_filter=["STABLE"]), version)
            assert [(group.group_id, group.group_state) for group in answer.groups] == [("h", "Stable")]
        if version >= 5:
            assert [group.group_type for group in answer.groups] == ["classic"]
            assert (await client.send(ListGroupsRequest(types_filter=["share"]), version)).groups == []

    run(test)


@pytest.mark.parametrize("version", range(7))
def test_describe_groups(version: int) -> None:
    async def test(client: Client) -> None:
        joined = await client.stable_member()
        request = DescribeGroupsRequest(["g", "nogroup"], include_authorized_operations=version >= 3)
        answer = await client.send(request, version)
        known, unknown = answer.groups
        assert (known.group_state, known.protocol_type, known.protocol_data) == ("Stable", "consumer", "range")
        (member,) = known.members
        assert (member.member_id, member.client_id) == (joined.member_id, "c")
        assert (member.member_metadata, member.member_assignment) == (subscription("t"), b"x")
        assert unknown.group_state == "Dead"
        assert unknown.error_code == (ErrorCode.GROUP_ID_NOT_FOUND if version >= 6 else 0)
        if version >= 3:
            assert known.authorized_operations & (1 << Operation.DELETE)

    run(test)


@pytest.mark.parametrize("version", range(4))
def test_delete_groups(version: int) -> None:
    async def test(client: Client) -> None:
        await client.send(commit("t", (0, 5)), 9)
        await client.stable_member("h")
        answer = await client.send(DeleteGroupsRequest(["g", "h", "g", "nogroup"]), version)
        assert {result.group_id: result.error_code for result in answer.results} == {
            "g": 0,
            "h": ErrorCode.NON_EMPTY_GROUP,
            "nogroup": ErrorCode.GROUP_ID_NOT_FOUND,
        }
        assert len(answer.results) == 3

    run(test)


def test_every_coordinator_request_is_told_when_it_came_to_the_wrong_broker() -> None:
    async def test(client: Client) -> None:
        client.world.lead(offsets_topic(1, leader=2, leader_epoch=1))
        wrong = ErrorCode.NOT_COORDINATOR
        assert (await client.join(5)).error_code == wrong
        assert (await client.send(SyncGroupRequest("g", 1, "m"), 3)).error_code == wrong
        assert (await client.send(HeartbeatRequest("g", 1, "m"), 3)).error_code == wrong
        assert (await client.send(LeaveGroupRequest("g", "m"), 1)).error_code == wrong
        answer = await client.send(commit("t", (0, 1)), 5)
        assert answer.topics[0].partitions[0].error_code == wrong
        assert (await client.send(OffsetDeleteRequest("g"), 0)).error_code == wrong
        assert (await client.send(DescribeGroupsRequest(["g"]), 5)).groups[0].error_code == wrong
        assert (await client.send(DeleteGroupsRequest(["g"]), 2)).results[0].error_code == wrong
        assert (await client.send(ListGroupsRequest(), 5)).error_code == ErrorCode.NONE

    run(test)
