"""`penstock topic create|list|describe|alter|delete`."""

import asyncio
from typing import Any

import click

from penstock.cli.exits import USAGE, Failure, talk
from penstock.cli.options import bootstrap_option, client_options, confirm, parse_assignments, yes_option
from penstock.cli.output import print_json, print_rows
from penstock.cli.running import admin, run

_OFFSETS_MS = 3_000
"""For an election that is under way; who is silent for longer is shown without offsets."""


@click.group()
def topic() -> None:
    """Create, look at, change and delete topics."""


@topic.command("create")
@click.argument("name")
@click.option("--partitions", type=click.IntRange(min=1), help="How many.  [default: the broker's num.partitions]")
@click.option("--replication-factor", type=click.IntRange(min=1), help="Copies of each.  [default: the broker's]")
@click.option("--config", "configs", multiple=True, metavar="NAME=VALUE", help="A topic setting; may be repeated.")
@click.option("--if-not-exists", is_flag=True, help="Succeed if there is a topic of this name.")
@click.option("--validate-only", is_flag=True, help="Only check whether it could be created.")
@client_options
def create(
    name: str,
    partitions: int | None,
    replication_factor: int | None,
    configs: tuple[str, ...],
    if_not_exists: bool,
    validate_only: bool,
    bootstrap: str,
    output: str,
) -> None:
    """Create a topic."""
    settings = parse_assignments(configs, "a topic setting")
    numbers = (partitions or -1, replication_factor or -1)
    run(_create(bootstrap, name, numbers, settings, if_not_exists, validate_only, output))


async def _create(
    bootstrap: str,
    name: str,
    numbers: tuple[int, int],
    settings: dict[str, str],
    if_not_exists: bool,
    validate_only: bool,
    output: str,
) -> None:
    from penstock.client.errors import TopicError
    from penstock.model.errors import ErrorCode

    async with admin(bootstrap) as client:
        try:
            made = await client.create_topic(name, *numbers, configs=settings, validate_only=validate_only)
        except TopicError as error:
            if if_not_exists and error.code == ErrorCode.TOPIC_ALREADY_EXISTS:
                talk(f"topic {name} exists")
                return
            raise
    if output == "json":
        print_json(made._asdict())
    else:
        verb = "could be created" if validate_only else "created"
        talk(f"topic {name} {verb}: {made.partitions} partitions, replication factor {made.replication_factor}")


@topic.command("list")
@click.option("--internal", is_flag=True, help="Also the cluster's own topics.")
@client_options
def list_(internal: bool, bootstrap: str, output: str) -> None:
    """List topics."""
    run(_list(bootstrap, internal, output))


async def _list(bootstrap: str, internal: bool, output: str) -> None:
    async with admin(bootstrap) as client:
        topics = await client.list_topics(include_internal=internal)
    rows = [found._asdict() for found in topics]
    columns = ["name", "partitions", "replication_factor", "topic_id"]
    print_rows(rows, [*columns, "is_internal"] if internal else columns, output, empty="no topics")


@topic.command("describe")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@client_options
def describe(names: tuple[str, ...], bootstrap: str, output: str) -> None:
    """Show a topic's partitions, offsets and settings."""
    run(_describe(bootstrap, names, output))


async def _describe(bootstrap: str, names: tuple[str, ...], output: str) -> None:
    described: list[dict[str, Any]] = []
    async with admin(bootstrap) as client:
        for name in names:
            found = await client.describe_topic(name)
            offsets = await _offsets(client, name, [p.partition for p in found.partitions if p.leader >= 0])
            partitions = [
                {
                    "partition": p.partition,
                    "leader": p.leader if p.leader >= 0 else None,
                    "leader_epoch": p.leader_epoch,
                    "replicas": list(p.replicas),
                    "isr": list(p.isr),
                    **offsets.get(p.partition, {"start_offset": None, "end_offset": None}),
                }
                for p in found.partitions
            ]
            configs = await client.describe_configs("topic", name)
            described.append(
                {
                    "name": name,
                    "topic_id": found.topic_id,
                    "is_internal": found.is_internal,
                    "configs": {c.name: c.value for c in configs if not c.is_default},
                    "partitions": partitions,
                }
            )
    if output == "json":
        print_json(described)
        return
    for one in described:
        settings = ", ".join(f"{name}={value}" for name, value in one["configs"].items())
        click.echo(f"topic {one['name']}  id {one['topic_id']}  settings {settings or 'all default'}")
        columns = ["partition", "leader", "leader_epoch", "replicas", "isr", "start_offset", "end_offset"]
        print_rows(one["partitions"], columns, output)


async def _offsets(client: Any, name: str, partitions: list[int]) -> dict[int, dict[str, int | None]]:
    """None where a leader does not tell: the rest is worth seeing all the same, then more than ever."""
    from penstock.client import EARLIEST, LATEST, TopicPartition

    wanted = [TopicPartition(name, p) for p in partitions]
    starts, ends = await asyncio.gather(
        client.list_known_offsets(dict.fromkeys(wanted, EARLIEST), timeout_ms=_OFFSETS_MS),
        client.list_known_offsets(dict.fromkeys(wanted, LATEST), timeout_ms=_OFFSETS_MS),
    )
    silent = [tp.partition for tp in wanted if tp not in starts or tp not in ends]
    if silent:
        numbers = ", ".join(map(str, silent))
        talk(f"topic {name}: the leaders of these partitions do not tell their offsets: {numbers}")
    return {
        tp.partition: {
            "start_offset": starts[tp].offset if tp in starts else None,
            "end_offset": ends[tp].offset if tp in ends else None,
        }
        for tp in wanted
    }


@topic.command("alter")
@click.argument("name")
@click.option("--partitions", type=click.IntRange(min=1), help="Grow to this many. Keys hash differently afterwards.")
@click.option("--config", "configs", multiple=True, metavar="NAME=VALUE", help="Set a setting; may be repeated.")
@click.option("--unset", "unset", multiple=True, metavar="NAME", help="Back to the default; may be repeated.")
@bootstrap_option
def alter(
    name: str, partitions: int | None, configs: tuple[str, ...], unset: tuple[str, ...], bootstrap: str
) -> None:
    """Add partitions, or change settings."""
    settings = parse_assignments(configs, "a topic setting")
    if partitions is None and not settings and not unset:
        raise Failure("nothing to change", hint="give --partitions, --config or --unset", exit_code=USAGE)
    run(_alter(bootstrap, name, partitions, settings, unset))


async def _alter(
    bootstrap: str, name: str, partitions: int | None, settings: dict[str, str], unset: tuple[str, ...]
) -> None:
    async with admin(bootstrap) as client:
        if settings or unset:
            await client.alter_configs("topic", name, settings, unset=unset)
        if partitions is not None:
            await client.create_partitions(name, partitions)
    talk(f"topic {name} altered")


@topic.command("delete")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@yes_option
@bootstrap_option
def delete(names: tuple[str, ...], yes: bool, bootstrap: str) -> None:
    """Delete topics with all their records."""
    confirm(f"delete {', '.join(names)} with all records?", yes)
    run(_delete(bootstrap, names))


async def _delete(bootstrap: str, names: tuple[str, ...]) -> None:
    async with admin(bootstrap) as client:
        outcomes = await client.delete_topics(names)
    for name, error in outcomes.items():
        if error is None:
            talk(f"topic {name} deleted")
    for error in outcomes.values():
        if error is not None:
            raise error
