"""ListGroups, DescribeGroups and DeleteGroups: what administrators see and do."""

from collections.abc import Collection, Iterable

from penstock.groups.classic.group import ClassicGroup
from penstock.groups.classic.member import ClassicMember
from penstock.groups.committer import Group
from penstock.groups.group_words import GroupState
from penstock.model.errors import ErrorCode
from penstock.wire.generated.describe_groups import DescribeGroupsResponse
from penstock.wire.generated.list_groups import ListGroupsResponse

_GROUP_ID_NOT_FOUND_FROM = 6


def list_groups(
    groups: Iterable[Group], states: Collection[str], types: Collection[str]
) -> list[ListGroupsResponse.ListedGroup]:
    """Filters are case-insensitive; an empty filter lets everything through."""
    wanted_states = {state.strip().lower() for state in states}
    wanted_types = {kind.strip().lower() for kind in types}
    return [
        ListGroupsResponse.ListedGroup(
            group_id=group.group_id,
            protocol_type=group.protocol_type or "",
            group_state=state,
            group_type=group.type,
        )
        for group in groups
        if (not wanted_types or group.type in wanted_types)
        and ((state := group.state).lower() in wanted_states or not wanted_states)
    ]


def describe_group(group: Group | None, group_id: str, api_version: int) -> DescribeGroupsResponse.DescribedGroup:
    """A consumer group is not found here: it has an API of its own."""
    described = DescribeGroupsResponse.DescribedGroup(group_id=group_id, group_state=GroupState.DEAD)
    if not isinstance(group, ClassicGroup):
        if api_version >= _GROUP_ID_NOT_FOUND_FROM:
            what = "not found" if group is None else "is not a classic group"
            described.error_code = ErrorCode.GROUP_ID_NOT_FOUND
            described.error_message = f"Group {group_id} {what}."
        return described
    described.group_state = group.state
    described.protocol_type = group.protocol_type or ""
    if group.state is GroupState.STABLE:
        described.protocol_data = group.protocol_name or ""
    described.members = [_describe_member(member, described.protocol_data) for member in group.members.values()]
    return described


def _describe_member(member: ClassicMember, protocol: str) -> DescribeGroupsResponse.DescribedGroupMember:
    return DescribeGroupsResponse.DescribedGroupMember(
        member_id=member.member_id,
        group_instance_id=member.group_instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        member_metadata=member.protocols.get(protocol, b""),
        member_assignment=member.assignment,
    )
