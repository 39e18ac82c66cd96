"""A node that can be controller tells the active one where it listens as such (KIP-919)."""

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.broker.background import carry_on
from penstock.broker.controller_channel import ControllerUnavailable
from penstock.metadata.features import SUPPORTED_FEATURES
from penstock.metadata.listeners import Listener
from penstock.model.errors import ErrorCode, describe_error
from penstock.wire.generated.controller_registration import (
    ControllerRegistrationRequest,
    ControllerRegistrationResponse,
)

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

log = logging.getLogger("penstock.controller")

_TIMEOUT_MS = 30_000.0
_PAUSE_S = 5.0


class ControllerPresence:
    """Tries until it is heard; nothing waits for it."""

    def __init__(self, broker: "Broker", incarnation_id: bytes, listeners: Sequence[Listener]) -> None:
        self._broker = broker
        row = ControllerRegistrationRequest
        self._request = ControllerRegistrationRequest(
            controller_id=broker.node_id,
            incarnation_id=incarnation_id,
            listeners=[row.Listener(at.name, at.host, at.port, at.security_protocol_code) for at in listeners],
            features=[row.Feature(name, low, high) for name, (low, high) in SUPPORTED_FEATURES.items()],
        )
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(carry_on(self._tell, "registering as a controller"))

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _tell(self) -> None:
        while True:
            with contextlib.suppress(ControllerUnavailable):
                answer = await self._broker.channel.send(self._request, ControllerRegistrationResponse, _TIMEOUT_MS)
                if answer.error_code == ErrorCode.NONE:
                    return
                log.warning("this controller is not registered: %s", describe_error(answer.error_code))
            await asyncio.sleep(_PAUSE_S)
