"""Small questions to other brokers, of which there are many at a time: those to one broker share requests.

One request is in flight to each broker; what comes meanwhile waits and shares the next one. A question is answered
once: when the image names another broker for it, it is recalled, and whatever the first broker says later is not
heard any more. So nobody waits for a broker that has stopped once the cluster has replaced it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Sequence
from functools import partial
from typing import Generic, Protocol, TypeVar

from penstock.broker.background import report_fault
from penstock.model.errors import ErrorCode
from penstock.wire.struct import ApiMessage

R = TypeVar("R", bound=ApiMessage)

# Questions in one request: what keeps it within a few hundred kilobytes.
_MOST_IN_REQUEST = 2_000


class AskBroker(Protocol):
    """Sends a request to a broker of this cluster. Raises `PeerUnreachable`, also when it has no known address."""

    async def __call__(
        self, broker_id: int, request: ApiMessage, response_type: type[R], timeout_ms: float, *, channel: str
    ) -> R: ...


class Question:
    """One of those that share a request.

    `subject` is what the request says of several questions in common. Its first field is what answers are found by,
    so two subjects that agree in it never share a request.
    """

    __slots__ = ("_told", "subject")

    def __init__(self, subject: Sequence[Hashable], told: Callable[[ErrorCode], None]) -> None:
        self.subject = subject
        self._told: Callable[[ErrorCode], None] | None = told

    @property
    def is_open(self) -> bool:
        return self._told is not None

    def tell(self, error: ErrorCode) -> None:
        """Only the first answer counts."""
        told, self._told = self._told, None
        if told is not None:
            told(error)


QuestionT = TypeVar("QuestionT", bound=Question)


class PeerBatches(Generic[QuestionT]):
    """Changed only on the event loop."""

    def __init__(self, carry: Callable[[int, Sequence[QuestionT]], Awaitable[None]]) -> None:
        """`carry` takes questions to a broker in one request and tells each of them its answer; it does not raise."""
        self._carry = carry
        self._waiting: dict[int, list[QuestionT]] = {}
        self._in_flight: dict[int, Sequence[QuestionT]] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}

    def put(self, broker_id: int, question: QuestionT) -> None:
        self._waiting.setdefault(broker_id, []).append(question)
        if broker_id not in self._tasks:
            # The task begins in the next turn of the loop: what is put in this turn shares the first request.
            task = self._tasks[broker_id] = asyncio.get_running_loop().create_task(self._run(broker_id))
            task.add_done_callback(partial(report_fault, message="carrying questions to another broker failed"))

    def recall(self, still_for: Callable[[int, QuestionT], bool], error: ErrorCode) -> None:
        """Tells `error` to all questions that are not for the broker any more that they were put to."""
        for broker_id in list(self._tasks):
            questions = [*self._in_flight.get(broker_id, ()), *self._waiting.get(broker_id, ())]
            for question in questions:
                if question.is_open and not still_for(broker_id, question):
                    question.tell(error)

    async def _run(self, broker_id: int) -> None:
        abandoned: list[QuestionT] = []
        try:
            while questions := self._next(broker_id):
                self._in_flight[broker_id] = questions
                await self._carry(broker_id, questions)
        except Exception:  # an edge: whoever asks must not wait for ever because of a bug, which is reported
            abandoned = [*self._in_flight.get(broker_id, ()), *self._waiting.pop(broker_id, ())]
            raise
        finally:
            self._in_flight.pop(broker_id, None)
            del self._tasks[broker_id]
            for question in abandoned:
                question.tell(ErrorCode.NETWORK_EXCEPTION)

    def _next(self, broker_id: int) -> list[QuestionT]:
        subjects: dict[Hashable, Sequence[Hashable]] = {}
        taken: list[QuestionT] = []
        left: list[QuestionT] = []
        for question in self._waiting.pop(broker_id, ()):
            if not question.is_open:
                continue
            subject = question.subject
            fits = len(taken) < _MOST_IN_REQUEST and subjects.setdefault(subject[0], subject) == subject
            (taken if fits else left).append(question)
        if left:
            self._waiting[broker_id] = left
        return taken
