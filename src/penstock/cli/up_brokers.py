"""`penstock up --brokers N`: N cores of this host as N brokers behind one address, each a process of its own.

The listening socket of the shared address is made here, once, and handed to every broker: who accepts a connection
answers it. With the socket held here, connections wait in its queue while a broker is started again, and a second
`up` on the same port is refused (SO_REUSEPORT would let it take a share of the clients). Each broker also has a port
of its own, which is what clients are told.

    port      shared: clients begin here
    port + 1  the controller, of the first broker only
    port + 2… the brokers' own, in the order of their ids

The first broker keeps its data where a single one would, so a single broker grows by being started with --brokers 2;
the others have theirs below it, in `brokers/ID`. It alone votes: the host is one failure domain, so further voters on
it would add work and no safety. A broker that ends is started again.
"""

import asyncio
import os
import socket
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

from penstock import __version__
from penstock.cli.exits import USAGE, Failure, talk
from penstock.cli.members import Member, moved_settings, write_member
from penstock.cli.node_settings import BELOW, neighbours
from penstock.metadata.listeners import Listener
from penstock.metadata.settings import BrokerSettings
from penstock.model.ids import format_uuid, new_uuid
from penstock.model.ports import SystemRng
from penstock.node.identity import NodeRefused, stored_cluster_id

_BACKLOG = 1024
_LOCAL = "127.0.0.1"
_SESSION = "broker.session.timeout.ms"
_PATIENT_MS = 30_000
"""On one host a broker that is silent (the machine is overloaded) has nobody who could take over: fencing it would
only add to the trouble. One that has ended is noticed at once all the same, by its port."""


class HostPlan(NamedTuple):
    """What runs on this host. `settings` has, per member, what its configuration says beyond what was given."""

    shared: Listener
    members: list[Member]
    settings: list[dict[str, object]]
    new: list[int]
    """Ids of brokers that join a cluster that is there already."""


def plan_host(settings: BrokerSettings, brokers: int) -> HostPlan:
    """Raises `Failure` where what was given does not fit several brokers, or the data is of more of them."""
    shared, controller = _listeners(settings)
    first = settings.node_id
    ids = range(first, first + brokers)
    voters, votes = _voters(settings, controller, ids)
    stored = _stored_cluster_id(settings)
    cluster_id = stored or settings.cluster_id or (None if settings.controller_quorum_voters else _new_cluster_id())
    files = Path(settings.log_dirs[0]).absolute() / BELOW
    members = [Member(node_id, shared.port + 2 + node_id - first, files / f"{node_id}.toml") for node_id in ids]
    values = []
    for number, member in enumerate(members):
        is_first = number == 0
        own_directory = partial(_directory, member=member, first=first)
        listeners = [shared._replace(port=member.port)] + ([controller] if is_first and votes else [])
        own: dict[str, object] = {
            "node.id": member.node_id,
            "process.roles": ["broker", "controller"] if is_first and votes else ["broker"],
            "listeners": [str(listener) for listener in listeners],
            "controller.quorum.voters": voters,
            "broker.host": settings.broker_host or socket.gethostname(),
            "log.dirs": [own_directory(path) for path in settings.log_dirs],
            **moved_settings(settings, member, number, own_directory),
        }
        if cluster_id is not None:
            own["cluster.id"] = cluster_id
        if not settings.controller_quorum_voters and _SESSION not in settings.explicit_names:
            own[_SESSION] = _PATIENT_MS
        values.append(own)
    known = neighbours(settings.log_dirs[0]) if stored is not None else ids
    return HostPlan(shared, members, values, [node_id for node_id in ids[1:] if node_id not in known])


def _listeners(settings: BrokerSettings) -> tuple[Listener, Listener]:
    """The one that is shared, and the controller's."""
    controllers = settings.controller_listener_set
    clients = [listener for listener in settings.listener_list if listener.name not in controllers]
    if len(clients) != 1 or not settings.is_broker:
        raise Failure(
            "--brokers needs exactly one listener for clients",
            hint='name one besides the controller\'s in `listeners`, and "broker" among process.roles',
            exit_code=USAGE,
        )
    if not clients[0].port:
        raise Failure(
            "--brokers needs a port, 0 will not do",
            hint="the brokers have the ports that follow it, and keep them when they are started again",
            exit_code=USAGE,
        )
    given = [listener for listener in settings.listener_list if listener.name in controllers]
    name = next(iter(settings.controller_listener_names), "CONTROLLER").upper()
    return clients[0], given[0] if given else Listener(name, _LOCAL, clients[0].port + 1)


def _voters(settings: BrokerSettings, controller: Listener, ids: range) -> tuple[list[str], bool]:
    """`controller.quorum.voters`, and whether the first broker of this host is one of them."""
    if not settings.controller_quorum_voters:
        host = controller.host if controller.host not in ("", "0.0.0.0", "::") else _LOCAL
        return [f"{ids[0]}@{host}:{controller.port}"], True
    here = [voter.id for voter in settings.quorum_voter_list if voter.id in ids]
    if here not in ([], [ids[0]]):
        raise Failure(
            f"controller.quorum.voters names nodes {', '.join(map(str, here))}, which all are on this host",
            hint=f"list only node {ids[0]} of them: they fail together, so one of them votes",
            exit_code=USAGE,
        )
    if here and controller.name not in settings.controller_listener_set:
        raise Failure(
            f"node {ids[0]} votes and has no listener for it",
            hint=f"add {controller.name}://:PORT to `listeners`, with the port that controller.quorum.voters says",
            exit_code=USAGE,
        )
    return list(settings.controller_quorum_voters), bool(here)


def _stored_cluster_id(settings: BrokerSettings) -> str | None:
    try:
        return stored_cluster_id(os.path.abspath(settings.log_dirs[0]))
    except NodeRefused as error:
        raise Failure(str(error)) from error


def _new_cluster_id() -> str:
    """Not left to the list of voters, as members on hosts of their own do: it is the same for every first cluster."""
    return format_uuid(new_uuid(SystemRng().random_bytes))


def _directory(path: str, member: Member, first: int) -> str:
    whole = os.path.abspath(path)
    return whole if member.node_id == first else os.path.join(whole, BELOW, str(member.node_id))


def listen(shared: Listener) -> list[socket.socket]:
    """The sockets of the shared address: one, or one for each address that the host's name stands for."""
    family = socket.AF_UNSPEC if shared.host else socket.AF_INET
    found: list[socket.socket] = []
    try:
        for kind, _, _, _, address in socket.getaddrinfo(
            shared.host or None, shared.port, family, socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        ):
            found.append(socket.create_server(address[:2], family=kind, backlog=_BACKLOG))
    except OSError as error:
        for each in found:
            each.close()
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise Failure(f"cannot listen on {shared.host or '*'}:{shared.port}: {reason}") from error
    return found


def run_brokers(brokers: int, settings: BrokerSettings, given: Mapping[str, object]) -> int:
    """`given`: what the settings were made of, by name."""
    from penstock.cli.supervisor import Supervisor

    plan = plan_host(settings, brokers)
    sockets = listen(plan.shared)
    for member, own in zip(plan.members, plan.settings, strict=True):
        write_member(member, {**given, **own})

    def announce() -> None:
        host = plan.shared.host if plan.shared.host not in ("", "0.0.0.0") else _LOCAL
        ports = ", ".join(str(member.port) for member in plan.members)
        talk(
            f"penstock {__version__} ready: kafka on {host}:{plan.shared.port}, {brokers} brokers on ports {ports}, "
            f"data in {settings.log_dirs[0]}"
        )
        if plan.new:
            talk("new brokers hold nothing yet; `penstock cluster balance` gives them their share")

    async def supervise() -> int:
        # The others first: they hand over to the controller, which is the first's.
        waves = [plan.members[1:], plan.members[:1]]
        fds = [each.fileno() for each in sockets]
        return await Supervisor(waves, announce, restarts=True, bootstrap_fds=fds).run()

    return asyncio.run(supervise())
