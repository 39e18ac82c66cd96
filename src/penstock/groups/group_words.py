"""Types and states of groups, as ListGroups and DescribeGroups name them."""

from enum import StrEnum


class GroupType(StrEnum):
    CLASSIC = "classic"
    CONSUMER = "consumer"


class GroupState(StrEnum):
    """Classic groups pass through the rebalances, consumer groups through Assigning and Reconciling."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"
    DEAD = "Dead"


CONSUMER_PROTOCOL_TYPE = "consumer"
