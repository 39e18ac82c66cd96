"""One commit to a Delta table: files that come and go, and positions, all or nothing."""

from collections.abc import Sequence
from typing import Any

from penstock.pipeline.errors import JobFailed


def commit_to(
    table: Any, schema: Any, partition_columns: Sequence[str], actions: list[Any], positions: list[Any], meaning: str
) -> None:
    """`meaning` names the table and the job in the refusal that another writer causes."""
    from deltalake.exceptions import CommitFailedError
    from deltalake.transaction import CommitProperties

    properties = CommitProperties(app_transactions=positions)
    try:
        table.create_write_transaction(
            actions, "append", schema, list(partition_columns), commit_properties=properties
        )
    except CommitFailedError as error:
        raise JobFailed(
            f"somebody else changed {meaning} meanwhile ({error})",
            hint="let one job write to a table at a time, then run this again",
        ) from error
    table.update_incremental()
