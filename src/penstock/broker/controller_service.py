"""The active controller: takes decisions one after the other and answers each when it is committed.

decide -> append -> commit -> replay -> answer (D8). Decisions are taken in turns, but one does not wait for the disk
before the next is taken: they share a sync.
"""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from penstock.broker.metadata_driver import MetadataDriver, MetadataUnavailable, NotController
from penstock.controller.brokers import Registration, decide_bootstrap, decide_register_broker
from penstock.controller.decision import Decision, View
from penstock.model.errors import ErrorCode, Refusal
from penstock.model.ports import Clock

AnswerT = TypeVar("AnswerT")


class ControllerService:
    """What handlers ask to change the cluster."""

    def __init__(self, driver: MetadataDriver, clock: Clock) -> None:
        self._driver = driver
        self._clock = clock
        self._turn = asyncio.Lock()

    async def submit(
        self,
        decide: Callable[[View], Decision[AnswerT]],
        unavailable: Callable[[Refusal], AnswerT] | None = None,
    ) -> AnswerT:
        """Takes a decision and answers when it is committed.

        An answer without records counts from when everything it looked at is committed. When the metadata log takes
        no records (its disk is full), or this node is not the active controller (`NOT_CONTROLLER`), `unavailable`
        makes the answer; without it `MetadataUnavailable` or `NotController` is raised.
        """
        try:
            answer, end_offset = await self._append(decide)
            await self._driver.committed(end_offset)
        except MetadataUnavailable as error:
            if unavailable is None:
                raise
            code = ErrorCode.NOT_CONTROLLER if isinstance(error, NotController) else ErrorCode.KAFKA_STORAGE_ERROR
            return unavailable(Refusal(code, str(error)))
        return answer

    async def _append(self, decide: Callable[[View], Decision[AnswerT]]) -> tuple[AnswerT, int]:
        async with self._turn:
            now_ms = self._clock.now_ms()
            decision = decide(View(self._driver.pending, self._driver.end_offset, now_ms))
            return decision.answer, await self._driver.append(decision.records, now_ms)

    async def register(self, registration: Registration) -> int | Refusal:
        """The first decisions of a start: feature levels of a new cluster, and this broker. One commit for both."""
        await self._append(lambda view: decide_bootstrap(view.image, self._driver.static_settings))
        return await self.submit(lambda view: decide_register_broker(view, registration, self._driver.settings))
