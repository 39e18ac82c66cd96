"""Settings of what the active controller does by the clock."""

from typing import Annotated

from penstock.metadata.settings.quorum_settings import QuorumSettings
from penstock.metadata.settings.setting import CLUSTER_WIDE, Bool, BrokerIds, Int, Long


class ControllerSettings(QuorumSettings, frozen=True, kw_only=True):
    """Spreading of load over brokers that join."""

    cluster_balance_enable: Annotated[
        bool,
        Bool(
            "Move replicas and leaderships by themselves until every broker has as many as the others. Without it "
            "`penstock cluster balance` does so when asked.",
            update=CLUSTER_WIDE,
        ),
    ] = False
    cluster_balance_interval_ms: Annotated[
        int, Long("How often the spread of replicas is looked at.", at_least=100, update=CLUSTER_WIDE)
    ] = 10_000
    cluster_balance_max_moves: Annotated[
        int, Int("Most partitions that are on the move for it at a time.", at_least=1, update=CLUSTER_WIDE)
    ] = 20
    cluster_drained_brokers: Annotated[
        tuple[str, ...],
        BrokerIds(
            "Ids of brokers that are to hold no replicas: they get none of new topics, and balancing moves what they "
            "have to others. `penstock cluster drain` adds to it, `drain --cancel` and `remove` take from it. It "
            "counts as a setting of all brokers that is made while they run, and not in a broker's file.",
            update=CLUSTER_WIDE,
        ),
    ] = ()
