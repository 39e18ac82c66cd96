"""What `penstock up` and `penstock broker` make of their options and file.

Part of every start, and all that a process needs that only looks after others: imports nothing of the broker.
"""

import os
import tomllib
from collections.abc import Mapping

from penstock.cli.exits import USAGE, Failure
from penstock.metadata.settings import BrokerSettings, SettingError
from penstock.metadata.settings.broker_settings import flatten

BELOW = "brokers"
"""Where, below the first broker's data directory, its neighbours of the same host are."""

_OF_A_NODE = ("meta.properties", "__cluster_metadata-0")


def read_settings(
    overrides: Mapping[str, str], config_file: str | None
) -> tuple[BrokerSettings, Mapping[str, object]]:
    """The settings, and what was given for them by name; `overrides` go before the file."""
    given = {**_read_file(config_file), **overrides} if config_file is not None else {**overrides}
    try:
        return BrokerSettings.from_mapping(given), given
    except SettingError as error:
        where = f"{config_file}: " if config_file is not None and error.name not in overrides else ""
        raise Failure(f"{where}{error}", hint="docs/settings.md lists every setting", exit_code=USAGE) from error


def _read_file(path: str) -> dict[str, object]:
    try:
        with open(path, "rb") as file:
            return {**flatten(tomllib.load(file))}
    except OSError as error:
        raise Failure(f"cannot read {path}: {error.strerror}", exit_code=USAGE) from error
    except ValueError as error:  # not TOML, or not even text
        hint = 'a setting is a line such as "node.id" = 1; docs/operations.md shows a whole file'
        raise Failure(f"{path} is not TOML: {error}", hint=hint, exit_code=USAGE) from error


def refuse_part_of_data(settings: BrokerSettings, brokers: int) -> None:
    """Data that more brokers have written, or a cluster of another kind, must not be started in part."""
    data, first = settings.log_dirs[0], settings.node_id
    if os.path.exists(os.path.join(data, "broker-1.toml")):
        hint = "start it with that, or choose another --data"
        if has_own_data(data):
            hint += f"; what `penstock up` has stored is back when {data}/broker-* and cluster.id are moved away"
        raise Failure(f"{data} was made by `penstock cluster up`", hint=hint)
    left_out = [node_id for node_id in neighbours(data) if not first <= node_id < first + brokers]
    if not left_out:
        return
    ids, places = " ".join(map(str, left_out)), ", ".join(os.path.join(data, BELOW, f"{each}*") for each in left_out)
    raise Failure(
        f"{data} also has data of broker {', '.join(map(str, left_out))}, which would be left out",
        hint=f"use --brokers {max(left_out) - first + 1}. To have fewer: `penstock cluster drain {ids}`, stop, move "
        f"{places} away, start with fewer brokers, and `penstock cluster remove` what is gone",
    )


def has_own_data(data: str) -> bool:
    """Whether a node has stored something here itself, not only in directories below."""
    return any(os.path.exists(os.path.join(data, name)) for name in _OF_A_NODE)


def neighbours(data: str) -> list[int]:
    """Ids of the brokers whose configuration lies below this data directory."""
    try:
        names = os.listdir(os.path.join(data, BELOW))
    except OSError:
        return []
    return sorted(int(stem) for stem, dot, end in (name.partition(".") for name in names) if end == "toml")
