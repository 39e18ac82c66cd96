"""The producer: records into batches, batches into requests, answers into futures.

`producer` is the face, `accumulator` the bounded buffer, `batch` one batch, `sender` what goes out when and what
an answer means, `identity` the idempotent producer's ids.
"""

from penstock.client.producer.producer import Producer

__all__ = ["Producer"]
