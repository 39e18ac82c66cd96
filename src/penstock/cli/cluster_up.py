"""`penstock cluster up`: a whole cluster on this machine, one process per broker, looked after by this one.

Restarts nothing by itself: a cluster is for seeing what happens when one is missing.
"""

import asyncio
import secrets
from base64 import urlsafe_b64encode
from collections.abc import Mapping, Sequence
from pathlib import Path

from penstock import __version__
from penstock.cli import exits
from penstock.cli.members import Member, write_member
from penstock.cli.node_settings import has_own_data

_HOST = "127.0.0.1"


def plan_members(brokers: int, port: int, data: Path) -> list[Member]:
    """Broker i listens on port + 2i, its controller one above (i from 0; node ids from 1)."""
    return [Member(i + 1, port + 2 * i, data / f"broker-{i + 1}.toml") for i in range(brokers)]


def write_configuration(members: Sequence[Member], data: Path, settings: Mapping[str, str]) -> None:
    """Who a member is stays the same; what is set now is written into all files anew."""
    data.mkdir(parents=True, exist_ok=True)
    voters = [f"{member.node_id}@{_HOST}:{member.port + 1}" for member in members]
    cluster_id = _cluster_id(data / "cluster.id")
    for member in members:
        values = {
            "node.id": member.node_id,
            "cluster.id": cluster_id,
            "process.roles": ["broker", "controller"],
            "listeners": [f"PLAINTEXT://{_HOST}:{member.port}", f"CONTROLLER://{_HOST}:{member.port + 1}"],
            "controller.quorum.voters": voters,
            "log.dirs": [str((data / member.name).absolute())],
            **settings,
        }
        write_member(member, values)


def _cluster_id(path: Path) -> str:
    if not path.exists():
        path.write_text(urlsafe_b64encode(secrets.token_bytes(16)).decode().rstrip("=") + "\n")
    return path.read_text().strip()


def refuse_other_data(data: Path) -> None:
    """A cluster beside a single node's data would begin empty, and keep `penstock up` from that data ever after."""
    if has_own_data(str(data)) and not (data / "broker-1.toml").exists():
        raise exits.Failure(
            f"{data} has the data of a single node, as `penstock up` makes it",
            hint=f"start it with `penstock up --data {data}`, or choose another --data for the cluster",
        )


def run_cluster(brokers: int, port: int, data: str, settings: Mapping[str, str]) -> int:
    from penstock.cli.supervisor import Supervisor

    members = plan_members(brokers, port, Path(data))
    refuse_other_data(Path(data))
    write_configuration(members, Path(data), settings)
    bootstrap = ",".join(f"{_HOST}:{member.port}" for member in members)

    def announce() -> None:
        exits.talk(f"penstock {__version__} cluster ready: kafka on {bootstrap}, data in {data}")

    async def supervise() -> int:
        return await Supervisor([members], announce).run()

    return asyncio.run(supervise())
