"""Where a client is told to find a broker.

This broker: the advertised address of the listener the client came by, else the very address by which it came, so
that localhost, LAN and container networks need no configuration. Other brokers: as they registered; those that share
an address with this one (`penstock up --brokers N`) at the same host, by their own ports.
"""

from typing import TYPE_CHECKING, NamedTuple

from penstock.metadata.image import BrokerImage

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.context import RequestContext


class Endpoint(NamedTuple):
    host: str
    port: int


def endpoint_of(broker: "Broker", context: "RequestContext", which: BrokerImage) -> Endpoint | None:
    """None when that broker has no listener of the name by which the client came."""
    settings = broker.settings
    if which.id == broker.node_id:
        for listener in settings.advertised_listener_list:
            if listener.name == context.listener_name:
                return Endpoint(listener.host, listener.port)
        return Endpoint(*context.local_address)
    registered = which.listener(context.listener_name)
    if registered is None:
        return None
    if broker.shares_address and which.host == settings.broker_host and not settings.advertised_listeners:
        return Endpoint(context.local_address[0], registered.port)
    return Endpoint(registered.host, registered.port)


def reachable_brokers(broker: "Broker", context: "RequestContext") -> list[tuple[BrokerImage, Endpoint]]:
    """Brokers that serve and that this client can be sent to, by id."""
    found = []
    for which in sorted(broker.image.brokers.values()):
        endpoint = None if which.fenced else endpoint_of(broker, context, which)
        if endpoint is not None:
            found.append((which, endpoint))
    return found


def controller_for(broker: "Broker", brokers: list[tuple[BrokerImage, Endpoint]]) -> int:
    """Whom a client should ask to change the cluster: the active controller where it is one of these brokers.

    Otherwise any of them: each forwards. -1 when there is none.
    """
    ids = [which.id for which, _ in brokers]
    for choice in (broker.driver.leader_id, broker.node_id):
        if choice in ids:
            return choice
    return ids[0] if ids else -1


def peer_address(broker: "Broker", broker_id: int) -> tuple[str, int] | None:
    """Where another broker serves its peers; None while it is not known."""
    return peer_address_of(broker, broker.image.brokers.get(broker_id))


def peer_address_of(broker: "Broker", which: BrokerImage | None) -> tuple[str, int] | None:
    name = broker.static_settings.inter_broker_listener
    listener = which.listener(name) if which is not None and name is not None else None
    return (listener.host, listener.port) if listener is not None else None
