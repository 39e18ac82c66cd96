"""Members of a cluster that one command runs: who they are, and the configuration each has beside its data.

The files let a member be started by hand: `penstock broker --config FILE`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple


class Member(NamedTuple):
    node_id: int
    port: int
    config_file: Path

    @property
    def name(self) -> str:
        return f"broker-{self.node_id}"


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
