"""A broker whose heartbeat connection is lost is looked after at once, not when its session ends (D6).

Refused connections mean that its process is gone: the controller fences that incarnation now. Anything else means
nothing; the session decides.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from penstock.broker.peers import Address

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

_PAUSES_S = (0.0, 0.05, 0.2)  # a dying process closes its connections before its listeners, or after
_TIMEOUT_MS = 1_000.0


class BrokerProbes:
    """`dead(broker_id, epoch)` is what the active controller does about one that is gone."""

    def __init__(self, broker: "Broker", dead: Callable[[int, int], Awaitable[None]]) -> None:
        self._broker = broker
        self._dead = dead
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_stopped = False

    def connection_lost(self, broker_id: int, epoch: int) -> None:
        if self._is_stopped or self._address(broker_id, epoch) is None:
            return
        task = asyncio.get_running_loop().create_task(self._probe(broker_id, epoch))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def term_began(self, is_active: bool) -> None:
        """A new controller has no connections yet that could be lost: it looks after everybody."""
        if is_active:
            for which in self._broker.image.brokers.values():
                if which.id != self._broker.node_id:
                    self.connection_lost(which.id, which.epoch)

    async def stop(self) -> None:
        """Nobody is looked after any more: a node that stops loses all its connections."""
        self._is_stopped = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _probe(self, broker_id: int, epoch: int) -> None:
        for pause_s in _PAUSES_S:
            await asyncio.sleep(pause_s)
            address = self._address(broker_id, epoch)
            if address is None:
                return
            if await self._broker.peers.probe(address, _TIMEOUT_MS) == "refused":
                await self._dead(broker_id, epoch)
                return

    def _address(self, broker_id: int, epoch: int) -> Address | None:
        """Where that incarnation listens, while it is this node's business."""
        broker = self._broker
        which = broker.image.brokers.get(broker_id)
        if not broker.driver.is_active or which is None or which.epoch != epoch or which.fenced:
            return None
        listener = which.listener(broker.settings.inter_broker_listener or "") or next(iter(which.listeners), None)
        return (listener.host, listener.port) if listener is not None else None
