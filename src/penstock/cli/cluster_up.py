"""`penstock cluster up`: a whole cluster on this machine, one process per broker, looked after by this one.

Writes each member's configuration beside its data, so that a member can be started again by hand. Restarts nothing by
itself: a cluster is for seeing what happens when one is missing.
"""

import asyncio
import os
import secrets
import signal
import sys
from base64 import urlsafe_b64encode
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from penstock import __version__
from penstock.cli import exits

_STOP_SECONDS = 30.0
_HOST = "127.0.0.1"


class Member(NamedTuple):
    node_id: int
    port: int
    config_file: Path

    @property
    def name(self) -> str:
        return f"broker-{self.node_id}"


def plan_members(brokers: int, port: int, data: Path) -> list[Member]:
    """Broker i listens on port + 2i, its controller one above (i from 0; node ids from 1)."""
    return [Member(i + 1, port + 2 * i, data / f"broker-{i + 1}.toml") for i in range(brokers)]


def write_configuration(members: Sequence[Member], data: Path, settings: Mapping[str, str]) -> None:
    """Files that are there stay: they say who a member is. What is set now is written into all of them anew."""
    data.mkdir(parents=True, exist_ok=True)
    voters = [f"{member.node_id}@{_HOST}:{member.port + 1}" for member in members]
    cluster_id = _cluster_id(data / "cluster.id")
    for member in members:
        values: dict[str, object] = {
            "node.id": member.node_id,
            "cluster.id": cluster_id,
            "process.roles": ["broker", "controller"],
            "listeners": [f"PLAINTEXT://{_HOST}:{member.port}", f"CONTROLLER://{_HOST}:{member.port + 1}"],
            "controller.quorum.voters": voters,
            "log.dirs": [str((data / member.name).absolute())],
            **settings,
        }
        lines = [f'"{name}" = {_toml(value)}\n' for name, value in values.items()]
        member.config_file.write_text("".join(lines))


def _cluster_id(path: Path) -> str:
    if not path.exists():
        path.write_text(urlsafe_b64encode(secrets.token_bytes(16)).decode().rstrip("=") + "\n")
    return path.read_text().strip()


def _toml(value: object) -> str:
    if isinstance(value, list):
        return f"[{', '.join(_toml(item) for item in value)}]"
    if isinstance(value, int):
        return str(value)
    text = str(value).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'


class Supervisor:
    """Starts the members, passes on what they say, and stops them together."""

    def __init__(self, members: Sequence[Member], data: Path) -> None:
        self._members = members
        self._data = data
        self._processes: dict[int, asyncio.subprocess.Process] = {}
        self._ready: set[int] = set()
        self._stopping = asyncio.Event()
        self._ended: set[int] = set()

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopping.set)
        watchers = [loop.create_task(self._watch(member)) for member in self._members]
        await self._stopping.wait()
        exits.talk("stopping")
        for node_id, process in self._processes.items():
            if node_id not in self._ended:
                process.send_signal(signal.SIGTERM)
        _, late = await asyncio.wait(watchers, timeout=_STOP_SECONDS)
        for node_id, process in self._processes.items():
            if node_id not in self._ended:
                exits.talk(f"broker-{node_id} did not stop in {_STOP_SECONDS:.0f} s and is killed")
                process.kill()
        await asyncio.gather(*late)
        codes = [process.returncode for process in self._processes.values()]
        return exits.OK if len(codes) == len(self._members) and not any(codes) else exits.FAILED

    async def _watch(self, member: Member) -> None:
        """One member from its start to its end."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "penstock",
            "broker",
            "--config",
            str(member.config_file),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is for the supervisor, which stops them in order
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        self._processes[member.node_id] = process
        assert process.stdout is not None
        while line := await process.stdout.readline():
            text = line.decode(errors="replace").rstrip("\n")
            exits.talk(f"{member.name} | {text}")
            if " ready: " in text:
                self._note_ready(member)
        code = await process.wait()
        self._ended.add(member.node_id)
        if not self._stopping.is_set():
            exits.talk(f"{member.name} ended with {code}; start it again: penstock broker -c {member.config_file}")
            if len(self._ended) == len(self._members):
                self._stopping.set()

    def _note_ready(self, member: Member) -> None:
        self._ready.add(member.node_id)
        if len(self._ready) == len(self._members):
            bootstrap = ",".join(f"{_HOST}:{each.port}" for each in self._members)
            exits.talk(f"penstock {__version__} cluster ready: kafka on {bootstrap}, data in {self._data}")


def run_cluster(brokers: int, port: int, data: str, settings: Mapping[str, str]) -> int:
    members = plan_members(brokers, port, Path(data))
    write_configuration(members, Path(data), settings)

    async def supervise() -> int:
        return await Supervisor(members, Path(data)).run()

    return asyncio.run(supervise())
