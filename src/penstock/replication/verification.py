"""Producers whose membership in a transaction is being asked for. (KIP-890)

Hard rule: an answer counts only if since its question no marker of that producer was written and the partition was
led by this broker all the time: else a record could slip in behind the end of its transaction.
"""


class Verifications:
    """Few at a time; each is gone with its answer."""

    __slots__ = ("_questions",)

    def __init__(self) -> None:
        self._questions: dict[int, list[object]] = {}

    def begin(self, producer_id: int) -> object:
        """What is returned stands for the question."""
        question = object()
        self._questions.setdefault(producer_id, []).append(question)
        return question

    def end(self, producer_id: int, question: object) -> bool:
        """Whether the answer still counts."""
        questions = self._questions.get(producer_id)
        if questions is None or question not in questions:
            return False
        questions.remove(question)
        if not questions:
            del self._questions[producer_id]
        return True

    def marker_written(self, producer_id: int) -> None:
        self._questions.pop(producer_id, None)
