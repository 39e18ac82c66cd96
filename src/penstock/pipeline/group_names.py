"""The group under which a query's progress is shown, named after the query.

Spark tells a stream's reader on the driver neither the query's name nor its id, but it tells every task. So a task of
the query's first batch tells the reader, by the only thing that both can reach: the broker. The reader gives the task
a token; the task commits an offset in a group of that token, with the query's name as the commit's remark; the reader
finds it there and deletes the group.
"""

from penstock.client.admin.groups import delete_group
from penstock.client.cluster import Cluster
from penstock.client.errors import ClientError
from penstock.client.group_offsets import Committer, commit_offsets, fetch_offsets
from penstock.client.options import ConnectionOptions
from penstock.client.types import OffsetAndMetadata, TopicPartition

_GROUP_PREFIX = "penstock-spark-asks-"
_TIMEOUT_MS = 5_000
_NAME_CHARACTERS = 200


async def tell_name(bootstrap: str, token: str, name: str, tp: TopicPartition) -> None:
    """On an executor. `tp` is any partition that exists: an offset is always of one."""
    cluster = Cluster(ConnectionOptions(bootstrap, client_id="penstock-spark"))
    await cluster.start()
    try:
        remark = {tp: OffsetAndMetadata(0, name[:_NAME_CHARACTERS])}
        await commit_offsets(cluster, Committer(_GROUP_PREFIX + token), remark, _TIMEOUT_MS)
    finally:
        await cluster.stop()


async def learn_name(cluster: Cluster, token: str) -> str | None:
    found = await fetch_offsets(cluster, _GROUP_PREFIX + token, None, _TIMEOUT_MS)
    return next((position.metadata for position in found.values()), None)


async def forget_name(cluster: Cluster, token: str) -> None:
    """An empty group is in nobody's way for long: if it cannot be deleted now it expires."""
    try:
        await delete_group(cluster, _GROUP_PREFIX + token, _TIMEOUT_MS)
    except ClientError:
        return


def name_of(description: str | None, query_id: str | None) -> str | None:
    """The query's name from the description of its jobs; its id, which lives as long as its checkpoint, without one.

    Spark describes the jobs of a query as `name`, `id = …`, `runId = …`, `batch = …`, one to a line.
    """
    first = (description or "").split("\n", 1)[0].strip()
    if first and not first.startswith(("id =", "batch =")):
        return first
    return query_id
