"""Why a node cannot start, in a sentence for its operator: which directory, what is wrong, what to do.

A start that waits for a disk that will not answer would wait for ever, so it is given up when one of these is true.
A full disk is not a broken one: nothing is lost by it, and the same start succeeds when there is room.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.log.sync import NO_SPACE_ERRORS

if TYPE_CHECKING:
    from penstock.broker.metadata_driver import MetadataDriver
    from penstock.log.store import LogStore


def full_disk(directory: str) -> str:
    return (
        f"the disk of {directory} is full, and a node writes a little when it starts; free some space there (nothing "
        "that is Penstock's needs to go), or grow the disk, and start the node again: nothing was lost"
    )


def broken_disk(directory: str, error: OSError) -> str:
    reason = error.strerror or str(error)
    return (
        f"log directory {directory} cannot be used ({reason}); repair the disk, or give the node an empty directory: "
        "what has replicas is fetched from them"
    )


def describe_os_error(error: OSError, directories: Sequence[str]) -> str:
    """For an error that nobody expected where it came up."""
    name = error.filename if isinstance(error.filename, str) else None
    where = next((path for path in directories if name is not None and name.startswith(path)), name or directories[0])
    return full_disk(where) if error.errno in NO_SPACE_ERRORS else broken_disk(where, error)


def trouble_while_starting(
    failed: OSError | None, logs: "LogStore", driver: "MetadataDriver", metadata_directory: str
) -> str | None:
    """None: the start may still succeed."""
    failures = [(directory.path, directory.failure) for directory in logs.directories]
    broken = [broken_disk(path, error) for path, error in failures if error is not None]
    if len(broken) == len(failures):
        return "; ".join(broken)
    if failed is not None:
        return describe_os_error(failed, [metadata_directory])
    if driver.lacks_room and driver.is_sole_voter:  # with other voters the cluster goes on, and this node waits
        return full_disk(metadata_directory)
    return None
