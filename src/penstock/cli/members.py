"""Members of a cluster that one command runs: who they are, and the configuration each has beside its data.

The files let a member be started by hand: `penstock broker --config FILE`.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from penstock.cli.exits import USAGE, Failure
from penstock.metadata.settings import BrokerSettings


class Member(NamedTuple):
    node_id: int
    port: int
    config_file: Path

    @property
    def name(self) -> str:
        return f"broker-{self.node_id}"


def moved_settings(
    settings: BrokerSettings, member: Member, number: int, directory: Callable[[str], str]
) -> dict[str, object]:
    """Settings that no two processes of a host can share, as this member has them; `number` counts from 0.

    `directory` answers the member's own of one that was given for all.
    """
    moved: dict[str, object] = {}
    if settings.metadata_log_dir:
        moved["metadata.log.dir"] = directory(settings.metadata_log_dir)
    if settings.metrics_listener:
        moved["metrics.listener"] = _moved_port(settings.metrics_listener, number)
    if settings.advertised_listeners:
        own = [listener._replace(port=member.port) for listener in settings.advertised_listener_list]
        moved["advertised.listeners"] = [str(listener) for listener in own]
    return moved


def _moved_port(address: str, by: int) -> str:
    host, _, port = address.rpartition(":")
    if not port.isdecimal():
        raise Failure(
            f"metrics.listener={address} is not host:port", hint="write it as 127.0.0.1:9404", exit_code=USAGE
        )
    return f"{host}:{int(port) + by if int(port) else 0}"


def write_member(member: Member, values: Mapping[str, object]) -> None:
    member.config_file.parent.mkdir(parents=True, exist_ok=True)
    member.config_file.write_text("".join([f'"{name}" = {_toml(value)}\n' for name, value in values.items()]))


def _toml(value: object) -> str:
    if isinstance(value, list):
        return f"[{', '.join(_toml(item) for item in value)}]"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return str(value)
    text = str(value).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'
