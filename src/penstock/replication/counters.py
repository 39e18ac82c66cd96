"""What replication counts, as plain numbers."""


class ReplicationCounters:
    """Since the start of this broker. What holds at the moment is asked of the partitions; see `survey`."""

    __slots__ = (
        "corrupt_batches",
        "fetch_errors",
        "isr_expands",
        "isr_shrinks",
        "replicated_bytes",
        "truncations",
        "truncations_below_watermark",
    )

    def __init__(self) -> None:
        self.isr_shrinks = 0
        self.isr_expands = 0
        self.replicated_bytes = 0
        self.truncations = 0
        self.truncations_below_watermark = 0
        """Only after an unclean election: committed records were given up."""
        self.fetch_errors = 0
        self.corrupt_batches = 0
