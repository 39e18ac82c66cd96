"""The gate every request passes: quota, then verdict, then the handler.

With security off the gate is there and allows all; it is never bolted on later.
"""

from penstock.broker.context import RequestContext
from penstock.security.verdicts import CLUSTER_NAME, SUPPORTED_OPERATIONS, Authorizer, Operation, ResourceType

_TOPIC = ResourceType.TOPIC


class Gate:
    def __init__(self, authorizer: Authorizer) -> None:
        self._verdict = authorizer.allows

    def allows_topic(self, context: RequestContext, operation: Operation, name: str) -> bool:
        return self._verdict(context.principal, context.client_host, operation, _TOPIC, name)

    def allows_group(self, context: RequestContext, operation: Operation, name: str) -> bool:
        return self._allows(context, operation, ResourceType.GROUP, name)

    def allows_transaction(
        self, context: RequestContext, transactional_id: str, operation: Operation = Operation.WRITE
    ) -> bool:
        return self._allows(context, operation, ResourceType.TRANSACTIONAL_ID, transactional_id)

    def allows_cluster(self, context: RequestContext, operation: Operation) -> bool:
        return self._allows(context, operation, ResourceType.CLUSTER, CLUSTER_NAME)

    def authorized_operations(self, context: RequestContext, resource: ResourceType, name: str) -> int:
        """The bit field of Metadata, DescribeCluster and DescribeGroups: bit n set = operation n allowed."""
        bits = 0
        for operation in SUPPORTED_OPERATIONS[resource]:
            if self._allows(context, operation, resource, name):
                bits |= 1 << operation
        return bits

    def _allows(self, context: RequestContext, operation: Operation, resource: ResourceType, name: str) -> bool:
        return self._verdict(context.principal, context.client_host, operation, resource, name)
