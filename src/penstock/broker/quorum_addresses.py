"""Where the nodes of the quorum listen: told by the configuration, by the voter set, and by other nodes' answers.

Nodes know less of how others reach them than an operator does, so what they say of themselves counts last. What
cannot be reached goes to the back, because nodes move and records stay.
"""

from collections.abc import Iterable
from typing import NamedTuple

from penstock.quorum.voters import Endpoint, VoterSet

METADATA_TOPIC_ID = bytes(15) + b"\x01"  # Kafka's well-known one

Address = tuple[str, int]


class Sender(NamedTuple):
    """What every request says of who sends it."""

    cluster_id: str | None
    endpoints: tuple[Endpoint, ...]


class Place(NamedTuple):
    """Where a node is, as answers and the configuration tell it."""

    node_id: int
    host: str
    port: int


class AddressBook:
    def __init__(self, configured: Iterable[Place]) -> None:
        self._known: dict[int, list[Address]] = {}
        self._heard: dict[int, Address] = {}
        for place in configured:
            self._known.setdefault(place.node_id, []).append((place.host, place.port))

    def find(self, node_id: int, voters: VoterSet) -> Address | None:
        voter = voters.by_id.get(node_id)
        known = self._known.setdefault(node_id, [])
        for endpoint in voter.endpoints if voter is not None else ():
            if (endpoint.host, endpoint.port) not in known:
                known.append((endpoint.host, endpoint.port))
        return known[0] if known else self._heard.get(node_id)

    def learn(self, node_id: int, address: Address) -> None:
        """A node says where it, or the leader, is."""
        self._heard[node_id] = address

    def learn_all(self, places: Iterable[Place]) -> None:
        for place in places:
            if place.host and place.port > 0:
                self.learn(place.node_id, (place.host, place.port))

    def failed(self, node_id: int, address: Address) -> None:
        """Next time another one is tried, if there is one."""
        known = self._known.setdefault(node_id, [])
        heard = self._heard.get(node_id)
        if heard is not None and heard not in known:
            known.append(heard)
        if len(known) > 1 and known[0] == address:
            known.append(known.pop(0))
