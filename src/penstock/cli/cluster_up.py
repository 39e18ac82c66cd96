"""`penstock cluster up`: a whole cluster on this machine, one process per broker, looked after by this one.

Restarts nothing by itself: a cluster is for seeing what happens when one is missing. Nothing is written before all
that was given is known to be right, and that no process uses the files: they may be those of a cluster that runs.
"""

import asyncio
import os
import re
import secrets
from base64 import urlsafe_b64encode
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from penstock import __version__
from penstock.cli import exits
from penstock.cli.exits import USAGE, Failure
from penstock.cli.members import Member, moved_settings, write_member
from penstock.cli.node_settings import has_own_data
from penstock.metadata.settings import BrokerSettings, SettingError
from penstock.node.identity import DirectoryLock, NodeRefused

_HOST = "127.0.0.1"
_CLUSTER_ID = "cluster.id"
_MEMBER = re.compile(r"broker-(\d+)")
_DECIDED_HERE = frozenset({"node.id", "listeners", "log.dirs", "controller.quorum.voters"})
"""Settings that differ from broker to broker, or say who the others are."""


def plan_members(brokers: int, port: int, data: Path) -> list[Member]:
    """Broker i listens on port + 2i, its controller one above (i from 0; node ids from 1)."""
    return [Member(i + 1, port + 2 * i, data / f"broker-{i + 1}.toml") for i in range(brokers)]


def plan_configuration(members: Sequence[Member], data: Path, settings: Mapping[str, str]) -> list[dict[str, object]]:
    """What the members' files will say. Raises `Failure` where a broker would not take it."""
    voters = [f"{member.node_id}@{_HOST}:{member.port + 1}" for member in members]
    cluster_id = _cluster_id(data, settings.get(_CLUSTER_ID))
    planned: list[dict[str, object]] = [
        {
            "node.id": member.node_id,
            "process.roles": ["broker", "controller"],
            "listeners": [f"PLAINTEXT://{_HOST}:{member.port}", f"CONTROLLER://{_HOST}:{member.port + 1}"],
            "controller.quorum.voters": voters,
            "log.dirs": [_directory(str(data), member)],
            **settings,
            _CLUSTER_ID: cluster_id,
        }
        for member in members
    ]
    try:
        for number, (member, values) in enumerate(zip(members, planned, strict=True)):
            chosen = BrokerSettings.from_mapping(values)
            values.update(moved_settings(chosen, member, number, partial(_directory, member=member)))
    except SettingError as error:
        raise Failure(str(error), hint="docs/settings.md lists every setting", exit_code=USAGE) from error
    return planned


def write_configuration(members: Sequence[Member], data: Path, settings: Mapping[str, str]) -> None:
    """Who a member is stays the same; what is set now is written into all files anew."""
    planned = plan_configuration(members, data, settings)
    data.mkdir(parents=True, exist_ok=True)
    (data / _CLUSTER_ID).write_text(f"{planned[0][_CLUSTER_ID]}\n")
    for member, values in zip(members, planned, strict=True):
        write_member(member, values)


def _cluster_id(data: Path, given: str | None) -> str:
    """The one that was drawn when the cluster was made; what is given counts only then."""
    path = data / _CLUSTER_ID
    stored = path.read_text().strip() if path.exists() else None
    if stored and given and stored != given:
        raise Failure(f"{data} has the data of cluster {stored}, but cluster.id is set to {given}", exit_code=USAGE)
    return stored or given or urlsafe_b64encode(secrets.token_bytes(16)).decode().rstrip("=")


def _directory(path: str, member: Member) -> str:
    return os.path.join(os.path.abspath(path), member.name)


def refuse_settings(settings: Mapping[str, str]) -> None:
    for name in sorted(settings.keys() & _DECIDED_HERE):
        raise Failure(
            f"{name} cannot be set for all brokers of a cluster at once",
            hint="--port, --data and --brokers decide it; `penstock broker` runs members with files of their own",
            exit_code=USAGE,
        )


def refuse_other_data(data: Path) -> None:
    """A cluster beside a single node's data would begin empty, and keep `penstock up` from that data ever after."""
    if has_own_data(str(data)) and not (data / "broker-1.toml").exists():
        raise Failure(
            f"{data} has the data of a single node, as `penstock up` makes it",
            hint=f"start it with `penstock up --data {data}`, or choose another --data for the cluster",
        )


def refuse_part_of_cluster(data: Path, brokers: int) -> None:
    """Whoever is left out still counts as a voter: the others may wait for it for ever."""
    left_out = [node_id for node_id in _with_data(data) if node_id > brokers]
    if not left_out:
        return
    last = left_out[-1]
    raise Failure(
        f"{data} also has data of broker {', '.join(map(str, left_out))}, which would be left out",
        hint=f"use --brokers {last}. To have fewer, while all run: `penstock cluster drain {last}`, stop the process "
        f"of broker {last}, `penstock cluster remove {last}`, and so on down; then stop, and move their files away",
    )


def _with_data(data: Path) -> list[int]:
    """Ids of the brokers that have stored something below this directory."""
    if not data.is_dir():
        return []
    found = (_MEMBER.fullmatch(path.name) for path in data.iterdir() if has_own_data(str(path)))
    return sorted(int(match[1]) for match in found if match is not None)


def _lock(directory: str) -> DirectoryLock:
    try:
        return DirectoryLock(directory)
    except (NodeRefused, OSError) as error:
        raise Failure(str(error)) from error


def _write_unused(members: Sequence[Member], data: Path, settings: Mapping[str, str]) -> None:
    """Members may run that were started by hand; their files must stay as they are."""
    with ExitStack() as locks:
        for directory in (_directory(str(data), member) for member in members):
            if os.path.isdir(directory):
                locks.callback(_lock(directory).release)
        write_configuration(members, data, settings)


def run_cluster(brokers: int, port: int, data: str, settings: Mapping[str, str]) -> int:
    from penstock.cli.supervisor import Supervisor

    place = Path(data)
    members = plan_members(brokers, port, place)
    refuse_settings(settings)
    refuse_other_data(place)
    refuse_part_of_cluster(place, brokers)
    plan_configuration(members, place, settings)  # what is wrong with it is said before a directory is made
    bootstrap = ",".join(f"{_HOST}:{member.port}" for member in members)

    def announce() -> None:
        exits.talk(f"penstock {__version__} cluster ready: kafka on {bootstrap}, data in {data}")

    async def supervise() -> int:
        return await Supervisor([members], announce).run()

    with ExitStack() as locks:
        locks.callback(_lock(data).release)  # until the end: a second command would look after the same members
        _write_unused(members, place, settings)
        return asyncio.run(supervise())
