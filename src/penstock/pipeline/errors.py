"""What the pipeline refuses: one sentence that says what, why, and what to do."""


class PipelineError(Exception):
    """A job or query cannot run as asked."""


class DataLost(PipelineError):
    """Offsets that a query still had to read are no longer in the topic."""
