"""How a node's part in the quorum begins: who votes as far as disk and configuration tell, and how patiently.

The log's own voters come first, then the snapshot's, then those of `controller.quorum.voters`, whose directories are
not known (the first leader will write them down); without any of these the node is alone and votes for itself.
"""

from penstock.broker.metadata_store import LoadedMetadata, MetadataLogView
from penstock.metadata.settings import BrokerSettings
from penstock.model.ids import ZERO_UUID
from penstock.model.ports import Rng
from penstock.quorum.core import Quorum
from penstock.quorum.election_state import ReplicaKey
from penstock.quorum.timeouts import QuorumTimeouts
from penstock.quorum.voters import Endpoint, Voter, VoterHistory, VoterSet


def build_core(
    local: ReplicaKey,
    endpoints: tuple[Endpoint, ...],
    settings: BrokerSettings,
    loaded: LoadedMetadata,
    view: MetadataLogView,
    rng: Rng,
) -> Quorum:
    timeouts = QuorumTimeouts(
        settings.controller_quorum_fetch_timeout_ms,
        settings.controller_quorum_election_timeout_ms,
        settings.controller_quorum_retry_backoff_ms,
    )
    base = loaded.snapshot_voters or _first_voters(local, endpoints, settings)
    history = VoterHistory(base, loaded.voters, base_is_written=loaded.snapshot_voters is not None)
    return Quorum(local, history, loaded.election, view, rng, timeouts)


def reachable_endpoints(node_id: int, bound: tuple[Endpoint, ...], settings: BrokerSettings) -> tuple[Endpoint, ...]:
    """Where others reach this node: as `controller.quorum.voters` says, or else where it listens."""
    name = bound[0].name if bound else "CONTROLLER"
    listed = [Endpoint(name, voter.host, voter.port) for voter in settings.quorum_voter_list if voter.id == node_id]
    return tuple(listed) or bound


def _first_voters(local: ReplicaKey, endpoints: tuple[Endpoint, ...], settings: BrokerSettings) -> VoterSet:
    listed = settings.quorum_voter_list
    if not listed:
        return VoterSet([Voter(local, endpoints)])
    name = next(iter(settings.controller_listener_names), "CONTROLLER")
    return VoterSet(
        Voter(ReplicaKey(voter.id, ZERO_UUID), (Endpoint(name, voter.host, voter.port),)) for voter in listed
    )
