"""What `penstock up` runs: configuration in, a node until it is told to stop, an exit code out."""

import asyncio
import contextlib
import gc
import logging
import os
import resource
import signal
import sys
import tomllib
from collections.abc import Mapping

from penstock import __version__
from penstock.metadata.settings import BrokerSettings, SettingError
from penstock.metadata.settings.broker_settings import flatten
from penstock.node.identity import NodeRefused
from penstock.node.log_lines import configure_log_lines
from penstock.node.node import Node, event_loop_factory

log = logging.getLogger("penstock.node")

EXIT_OK = 0
EXIT_REFUSED = 1
EXIT_USAGE = 2


def run_node(overrides: Mapping[str, str], config_file: str | None = None) -> int:
    """Runs a node until SIGTERM or SIGINT. `overrides` are settings that go before those of the file."""
    try:
        settings = read_settings(overrides, config_file)
    except (OSError, tomllib.TOMLDecodeError, SettingError) as error:
        print(f"error: {error}", file=sys.stderr)
        print("hint: docs/settings.md lists every setting", file=sys.stderr)
        return EXIT_USAGE
    configure_log_lines(settings.log_format, settings.log_level)
    _raise_file_limit()
    with asyncio.Runner(loop_factory=event_loop_factory()) as runner:
        return runner.run(_serve(settings))


def read_settings(overrides: Mapping[str, str], config_file: str | None) -> BrokerSettings:
    given: dict[str, object] = {}
    if config_file is not None:
        with open(config_file, "rb") as file:
            given.update(flatten(tomllib.load(file)))
    given.update(overrides)
    return BrokerSettings.from_mapping(given)


def _raise_file_limit() -> None:
    """Connections and segments are descriptors; the usual soft limit of 1,024 is for programs that have few."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = hard if hard != resource.RLIM_INFINITY else 1 << 20
    with contextlib.suppress(OSError, ValueError):  # the system's own maximum may be lower
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


async def _serve(settings: BrokerSettings) -> int:
    node = Node(settings)
    try:
        await node.start()
    except NodeRefused as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_REFUSED
    # What was made so far stays: the collector need not look at it again.
    gc.collect()
    gc.freeze()
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    _announce(node)
    node.failed.add_done_callback(lambda _: stopping.set())
    await stopping.wait()
    if node.failed.done():
        return EXIT_REFUSED
    log.info("stopping")
    await node.stop()
    log.info("stopped")
    return EXIT_OK


def _announce(node: Node) -> None:
    controllers = node.settings.controller_listener_set
    addresses: dict[str, list[str]] = {"kafka": [], "controller": []}
    for listener, port in zip(node.settings.listener_list, node.ports, strict=True):
        host = listener.host if listener.host not in ("", "0.0.0.0") else "127.0.0.1"
        addresses["controller" if listener.name in controllers else "kafka"].append(f"{host}:{port}")
    places = ", ".join(f"{kind} on {', '.join(found)}" for kind, found in addresses.items() if found)
    data = ", ".join(os.path.relpath(path) if not os.path.isabs(path) else path for path in node.settings.log_dirs)
    with contextlib.suppress(BrokenPipeError):
        print(
            f"penstock {__version__} ready: {places}, data in {data}, flush.mode={node.settings.flush_mode}",
            file=sys.stderr,
            flush=True,
        )
