"""What an error of Spark is about: an exception of ours arrives as text inside one of Java's, with two stacks."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from penstock.client.errors import ClientError
from penstock.pipeline.errors import BrokerAway, DataLost, JobFailed, PipelineError

_OURS = re.compile(r"penstock\.pipeline\.errors\.(\w+): (.+)")
_OURS_BY_NAME = {cls.__name__: cls for cls in (PipelineError, DataLost, JobFailed, BrokerAway)}
_STACK = re.compile(r"\n\s*(JVM stacktrace:|at org\.|at java\.|at scala\.|Traceback \(most recent)")
_LONGEST = 600


@contextmanager
def explained() -> Iterator[None]:
    """Errors of Spark become what caused them. `ClientError` passes: it says what to do by itself."""
    try:
        yield
    except (PipelineError, ClientError, KeyboardInterrupt):
        raise
    except Exception as error:  # the edge to Spark: anything may come out of it
        found = explain(error)
        if found is None:
            raise
        raise found from error


def explain(error: BaseException) -> PipelineError | None:
    """What an error of Spark is about: the sentence of ours inside it, else Spark's own without its stack."""
    module = type(error).__module__.split(".")[0]
    if module not in ("pyspark", "py4j"):
        return None
    text = str(error)
    found = _OURS.findall(text)
    if found:
        name, message = found[-1]
        return _OURS_BY_NAME.get(name, JobFailed)(message.strip())
    first = _STACK.split(text, maxsplit=1)[0].strip()
    return JobFailed(f"Spark stopped the job: {first[:_LONGEST]}", hint="run it again to go on where it was")
