"""Producers whose membership in a transaction is being asked for. (KIP-890)

Hard rule: an answer counts only if since its question no marker of that producer was written and the partition was
led by this broker all the time: else a record could slip in behind the end of its transaction.
"""

from weakref import WeakValueDictionary


class Question:
    """Of one producer, shared by all who ask at a time: an answer that is too late is so for each of them."""

    __slots__ = ("__weakref__",)


class Verifications:
    """Few at a time. Each is kept by those who ask and by nobody else: whatever becomes of them, also when their
    client closes its connection meanwhile, it is gone with the last of them."""

    __slots__ = ("_questions",)

    def __init__(self) -> None:
        self._questions: WeakValueDictionary[int, Question] = WeakValueDictionary()

    def begin(self, producer_id: int) -> Question:
        """To be kept until the answer is there."""
        question = self._questions.get(producer_id)
        if question is None:
            question = self._questions[producer_id] = Question()
        return question

    def is_open(self, producer_id: int, question: Question) -> bool:
        """Whether the answer counts."""
        return self._questions.get(producer_id) is question

    def marker_written(self, producer_id: int) -> None:
        self._questions.pop(producer_id, None)
