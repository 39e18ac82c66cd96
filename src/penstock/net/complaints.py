"""Log lines that clients can cause: written at a bounded rate, so that nobody can fill the disk with them."""

import asyncio
import logging

_PER_SECOND = 10


class Complaints:
    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._second = 0
        self._written = 0
        self._left_out = 0

    def warn(self, message: str, *arguments: object) -> None:
        second = int(asyncio.get_running_loop().time())
        if second != self._second:
            if self._left_out:
                self._logger.warning("%d more lines like the last ones were left out", self._left_out)
            self._second, self._written, self._left_out = second, 0, 0
        if self._written >= _PER_SECOND:
            self._left_out += 1
            return
        self._written += 1
        self._logger.warning(message, *arguments)
