"""`python -m tests.golden.capture [client …]`: runs clients against the recorder, writes what they sent.

Frames go to tests/golden/<client>/<api>_v<N>.hex, without the size prefix. Clients are run once per captured
release; tests only read the files.
"""

import asyncio
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

from tests.golden.calls_aiokafka import call_aiokafka
from tests.golden.calls_confluent import call_confluent
from tests.golden.calls_java import call_java
from tests.golden.calls_kafka_python import call_kafka_python
from tests.golden.calls_kcat import call_kcat
from tests.golden.recorder import Recorder

DIRECTORY = Path(__file__).parent


CLIENTS: dict[str, Callable[[str], None]] = {
    "confluent_kafka": call_confluent,
    "kafka_python": call_kafka_python,
    "aiokafka": lambda bootstrap: asyncio.run(call_aiokafka(bootstrap)),
    "kcat": call_kcat,
    "java": call_java,
}


def capture(client: str, calls: Callable[[str], None]) -> int:
    with Recorder() as recorder:
        calls(recorder.bootstrap)
        frames = dict(recorder.frames)
    directory = DIRECTORY / client
    directory.mkdir(exist_ok=True)
    for (api, version), frame in frames.items():
        text = "\n".join(textwrap.wrap(frame.hex(), 96)) + "\n"
        (directory / f"{api}_v{version}.hex").write_text(text)
    return len(frames)


def main() -> None:
    wanted = sys.argv[1:] or list(CLIENTS)
    for client in wanted:
        calls = CLIENTS[client]
        print(f"{client}: {capture(client, calls)} frames", file=sys.stderr)


if __name__ == "__main__":
    main()
