"""`penstock group list|describe|reset|delete`."""

from typing import Any

import click

from penstock.cli.exits import USAGE, Failure, talk
from penstock.cli.options import bootstrap_option, client_options, confirm, yes_option
from penstock.cli.output import print_json, print_rows
from penstock.cli.running import admin, run
from penstock.cli.times import parse_time_ms


@click.group()
def group() -> None:
    """Look at consumer groups, move their offsets, delete them."""


@group.command("list")
@client_options
def list_(bootstrap: str, output: str) -> None:
    """List groups."""
    run(_list(bootstrap, output))


async def _list(bootstrap: str, output: str) -> None:
    async with admin(bootstrap) as client:
        groups = await client.list_groups()
    columns = ["group_id", "state", "protocol_type", "group_type"]
    print_rows([found._asdict() for found in groups], columns, output, empty="no groups")


@group.command("describe")
@click.argument("group_id", metavar="GROUP")
@client_options
def describe(group_id: str, bootstrap: str, output: str) -> None:
    """Show a group's members, committed offsets and lag."""
    run(_describe(bootstrap, group_id, output))


async def _describe(bootstrap: str, group_id: str, output: str) -> None:
    async with admin(bootstrap) as client:
        found = await client.describe_group(group_id)
        rows = await _partition_rows(client, group_id, found)
    members = [
        {
            "member_id": m.member_id,
            "instance_id": m.instance_id,
            "client_id": m.client_id,
            "host": m.client_host.lstrip("/"),
            "partitions": len(m.assignment),
        }
        for m in found.members
    ]
    lags = [row["lag"] for row in rows if row["lag"] is not None]
    facts = {
        "group_id": group_id,
        "state": found.state,
        "assignor": found.assignor,
        "coordinator": found.coordinator,
        "lag": sum(lags),
    }
    if output == "json":
        print_json({**facts, "members": members, "partitions": rows})
        return
    click.echo(
        f"group {group_id}  state {found.state}  assignor {found.assignor or '-'}  "
        f"coordinator {found.coordinator}  lag {sum(lags)}"
    )
    columns = ["topic", "partition", "committed", "end_offset", "lag", "client_id", "host"]
    print_rows(rows, columns, output, empty="no offsets committed and no partitions assigned")


async def _partition_rows(client: Any, group_id: str, found: Any) -> list[dict[str, Any]]:
    from penstock.client import LATEST

    committed = await client.group_offsets(group_id)
    readers = {tp: member for member in found.members for tp in member.assignment}
    partitions = sorted({*committed, *readers})
    # A topic may be gone while its committed offset is not.
    counts = {topic.name: topic.partitions for topic in await client.list_topics(include_internal=True)}
    there = [tp for tp in partitions if tp.partition < counts.get(tp.topic, 0)]
    ends = {tp: found.offset for tp, found in (await client.list_offsets(dict.fromkeys(there, LATEST))).items()}
    rows = []
    for tp in partitions:
        end = ends.get(tp)
        offset = committed[tp].offset if tp in committed else None
        member = readers.get(tp)
        rows.append(
            {
                "topic": tp.topic,
                "partition": tp.partition,
                "committed": offset,
                "end_offset": end,
                "lag": max(0, end - offset) if end is not None and offset is not None else None,
                "member_id": member.member_id if member else None,
                "client_id": member.client_id if member else None,
                "host": member.client_host.lstrip("/") if member else None,
            }
        )
    return rows


@group.command("reset")
@click.argument("group_id", metavar="GROUP")
@click.option("--topic", "topics", multiple=True, help="Only this topic; may be repeated.  [default: all committed]")
@click.option("--to-earliest", is_flag=True, help="To the first record there is.")
@click.option("--to-latest", is_flag=True, help="Behind the last record.")
@click.option("--to-time", metavar="TIME", help="To the first record of a time: 2026-01-31T12:00Z, or -1h for ago.")
@click.option("--to-offset", type=click.IntRange(min=0), help="To this offset, in every partition.")
@click.option("--shift", type=int, help="By so many records: forth, or back if negative.")
@click.option("--dry-run", is_flag=True, help="Only show what would happen.")
@client_options
def reset(
    group_id: str,
    topics: tuple[str, ...],
    to_earliest: bool,
    to_latest: bool,
    to_time: str | None,
    to_offset: int | None,
    shift: int | None,
    dry_run: bool,
    bootstrap: str,
    output: str,
) -> None:
    """Move a group's offsets. The group must have no members."""
    targets = [to_earliest or None, to_latest or None, to_time, to_offset, shift]
    if sum(target is not None for target in targets) != 1:
        raise Failure(
            "say where to move the offsets",
            hint="give one of --to-earliest, --to-latest, --to-time, --to-offset, --shift",
            exit_code=USAGE,
        )
    where = {
        "to_earliest": to_earliest,
        "to_latest": to_latest,
        "to_time_ms": parse_time_ms(to_time) if to_time is not None else None,
        "to_offset": to_offset,
        "shift": shift,
    }
    run(_reset(bootstrap, group_id, topics, where, dry_run, output))


async def _reset(
    bootstrap: str, group_id: str, topics: tuple[str, ...], where: dict[str, Any], dry_run: bool, output: str
) -> None:
    async with admin(bootstrap) as client:
        moves = await client.reset_group_offsets(group_id, topics=topics, dry_run=dry_run, **where)
    rows = [
        {"topic": m.partition.topic, "partition": m.partition.partition, "before": m.before, "after": m.after}
        for m in moves
    ]
    print_rows(rows, ["topic", "partition", "before", "after"], output)
    talk("dry run: nothing was changed" if dry_run else f"group {group_id}: {len(moves)} partitions moved")


@group.command("delete")
@click.argument("group_ids", nargs=-1, required=True, metavar="GROUP...")
@yes_option
@bootstrap_option
def delete(group_ids: tuple[str, ...], yes: bool, bootstrap: str) -> None:
    """Delete groups with their offsets. They must have no members."""
    confirm(f"delete {', '.join(group_ids)} with all committed offsets?", yes)
    run(_delete(bootstrap, group_ids))


async def _delete(bootstrap: str, group_ids: tuple[str, ...]) -> None:
    async with admin(bootstrap) as client:
        outcomes = await client.delete_groups(group_ids)
    for group_id, error in outcomes.items():
        if error is None:
            talk(f"group {group_id} deleted")
    for error in outcomes.values():
        if error is not None:
            raise error
