"""What `penstock up` runs: configuration in, a node until it is told to stop, an exit code out."""

import asyncio
import contextlib
import gc
import logging
import os
import resource
import signal
import socket
import sys
from typing import NamedTuple

from penstock import __version__
from penstock.metadata.settings import BrokerSettings
from penstock.node.identity import NodeRefused
from penstock.node.log_lines import configure_log_lines
from penstock.node.node import Node, event_loop_factory

log = logging.getLogger("penstock.node")

EXIT_OK = 0
EXIT_REFUSED = 1


class Supervision(NamedTuple):
    """What a node has of the process that started it and its neighbours."""

    is_supervised: bool = False
    """The other end of stdin is that process: when it is gone, this node stops."""
    bootstrap_fds: tuple[int, ...] = ()
    """Listening sockets that all of them share."""


_ON_ITS_OWN = Supervision()


def run_node(
    settings: BrokerSettings, supervision: Supervision = _ON_ITS_OWN, *, is_meant_as_member: bool = False
) -> int:
    """Runs a node until SIGTERM or SIGINT."""
    configure_log_lines(settings.log_format, settings.log_level)
    if is_meant_as_member and not settings.controller_quorum_voters:
        log.warning(
            "controller.quorum.voters is not set: node %d is a cluster of its own, and joins no other",
            settings.node_id,
        )
    _raise_file_limit()
    with asyncio.Runner(loop_factory=event_loop_factory()) as runner:
        return runner.run(_serve(settings, supervision))


def _raise_file_limit() -> None:
    """Connections and segments are descriptors; the usual soft limit of 1,024 is for programs that have few."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = hard if hard != resource.RLIM_INFINITY else 1 << 20
    with contextlib.suppress(OSError, ValueError):  # the system's own maximum may be lower
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


async def _serve(settings: BrokerSettings, supervision: Supervision) -> int:
    node = Node(settings, bootstrap=[socket.socket(fileno=fd) for fd in supervision.bootstrap_fds])
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
    if supervision.is_supervised:
        _stop_when_alone(loop, stopping)
    _announce(node)
    node.failed.add_done_callback(lambda _: stopping.set())
    await stopping.wait()
    if node.failed.done():
        return EXIT_REFUSED
    log.info("stopping")
    await node.stop()
    log.info("stopped")
    return EXIT_OK


def _stop_when_alone(loop: asyncio.AbstractEventLoop, stopping: asyncio.Event) -> None:
    stdin = sys.stdin.fileno()
    os.set_blocking(stdin, False)

    def look() -> None:
        with contextlib.suppress(BlockingIOError):
            if not os.read(stdin, 4096):
                log.warning("the process that started this node is gone")
                loop.remove_reader(stdin)
                stopping.set()

    loop.add_reader(stdin, look)


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
