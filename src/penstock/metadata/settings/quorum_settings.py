"""Settings of the metadata quorum: its first voters and how long they wait for each other."""

from typing import Annotated, NamedTuple

from penstock.metadata.settings.coordination_settings import CoordinationSettings
from penstock.metadata.settings.setting import Bool, Int, List, SettingError


class VoterAddress(NamedTuple):
    id: int
    host: str
    port: int


class QuorumSettings(CoordinationSettings, frozen=True, kw_only=True):
    """Who votes about metadata, and how patiently."""

    controller_quorum_voters: Annotated[
        tuple[str, ...],
        List(
            "The controllers of a new cluster as id@host:port, each at its controller listener. Later it only says "
            "where to look first: who votes is kept in the metadata itself. Without it this node is alone.",
            kafka_default="",
        ),
    ] = ()
    controller_quorum_fetch_timeout_ms: Annotated[
        int,
        Int(
            "A follower without an answer of the leader for this long looks for another; a leader that a majority "
            "has not asked for half as long again resigns.",
            at_least=10,
            kafka_default="2000",
        ),
    ] = 1_000
    controller_quorum_election_timeout_ms: Annotated[
        int,
        Int(
            "How long a candidate waits for votes; up to as much again is added by chance.",
            at_least=10,
            kafka_default="1000",
        ),
    ] = 500
    controller_quorum_election_backoff_max_ms: Annotated[
        int,
        Int(
            "Longest pause after a lost election.",
            at_least=1,
            no_effect="the pause is at most controller.quorum.election.timeout.ms",
        ),
    ] = 1_000
    controller_quorum_request_timeout_ms: Annotated[
        int, Int("How long a request between voters may take.", at_least=10)
    ] = 2_000
    controller_quorum_retry_backoff_ms: Annotated[
        int, Int("Pause before a request between voters is sent again.", at_least=1)
    ] = 20

    controller_quorum_auto_join_enable: Annotated[
        bool,
        Bool(
            "Whether a node that its own controller.quorum.voters lists becomes a voter by itself when it is none: "
            "after its disk was replaced by an empty one, the voter it was is removed and it is added as a new one.",
            kafka_default="false",
        ),
    ] = True

    @property
    def quorum_voter_list(self) -> tuple[VoterAddress, ...]:
        return tuple(_parse_voter(entry, self.controller_quorum_voters) for entry in self.controller_quorum_voters)

    def check_quorum(self) -> None:
        """Raises `SettingError`."""
        shown = ",".join(self.controller_quorum_voters)
        voters = self.quorum_voter_list
        if len({voter.id for voter in voters}) != len(voters):
            raise SettingError("controller.quorum.voters", shown, "it names a node twice")


def _parse_voter(entry: str, entries: tuple[str, ...]) -> VoterAddress:
    number, at, address = entry.partition("@")
    host, colon, port = address.rpartition(":")
    if not (at and colon and number.strip().isdigit() and host and port.isdigit() and 0 < int(port) <= 65_535):
        reason = f"{entry!r} is not id@host:port"
        raise SettingError("controller.quorum.voters", ",".join(entries), reason)
    return VoterAddress(int(number), host.strip("[]"), int(port))
