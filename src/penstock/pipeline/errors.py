"""What the pipeline refuses: one sentence that says what, why, and what to do."""


class PipelineError(Exception):
    """A job or query cannot run as asked. `hint` is what to do, where the sentence does not say it already."""

    exit_code = 2
    """What a command ends with: 2 for what was refused before it began, 1 for what failed on the way."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}; {self.hint}" if self.hint else self.message


class DataLost(PipelineError):
    """Offsets that a query still had to read are no longer in the topic."""

    exit_code = 1


class JobFailed(PipelineError):
    """A job that had begun could not go on. Run again it resumes where it was."""

    exit_code = 1


class BrokerAway(JobFailed):
    """The broker could not be reached or was not ready: trying again later may help."""

    exit_code = 3
