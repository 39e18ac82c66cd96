"""What kcat is asked to do."""

import subprocess

from tests.external import kcat

_SECONDS = 5


def call_kcat(bootstrap: str) -> None:
    _run(["-b", bootstrap, "-L"])
    _run(["-b", bootstrap, "-P", "-t", "golden", "-k", "key"], stdin=b"value\n")
    _run(["-b", bootstrap, "-Q", "-t", "golden:0:-1"])
    _run(["-b", bootstrap, "-C", "-t", "golden", "-o", "beginning", "-e"])
    _run(["-b", bootstrap, "-G", "golden-group", "golden", "-X", "heartbeat.interval.ms=200"])


def _run(arguments: list[str], stdin: bytes = b"") -> None:
    # A consumer that waits for more is ended by SIGTERM, so that it leaves its group.
    process = subprocess.Popen(
        [kcat(), "-X", "client.id=golden", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        process.communicate(stdin, timeout=_SECONDS)
    except subprocess.TimeoutExpired:
        process.terminate()
        process.communicate()
