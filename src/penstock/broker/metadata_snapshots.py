"""When a snapshot of the metadata is taken: after so many bytes, or so much time while there are changes.

Each node takes its own, at a moment when all of its log is committed, and then drops the log in front of it.
"""

import asyncio
import logging
from typing import TYPE_CHECKING

from penstock.metadata.image import MetadataImage

if TYPE_CHECKING:
    from penstock.broker.metadata_driver import MetadataDriver

log = logging.getLogger("penstock.metadata")


class SnapshotSchedule:
    def __init__(self, driver: "MetadataDriver") -> None:
        self.bytes_since = 0
        """Bytes of records committed since the last snapshot."""
        self._driver = driver
        self._due: asyncio.TimerHandle | None = None
        self._is_wanted = False
        self._task: asyncio.Task[None] | None = None

    def consider(self) -> None:
        """Called with every commit."""
        driver = self._driver
        if self._task is not None or not self.bytes_since:
            return
        settings = driver.settings
        if self.bytes_since >= settings.metadata_log_max_record_bytes_between_snapshots:
            self._is_wanted = True
        loop = asyncio.get_running_loop()
        if self._is_wanted and driver.can_snapshot:
            self._is_wanted = False
            self.bytes_since = 0
            self._cancel_due()
            self._task = loop.create_task(self._take(driver.split_log()))
        elif self._due is None and settings.metadata_log_max_snapshot_interval_ms:
            self._due = loop.call_later(settings.metadata_log_max_snapshot_interval_ms / 1000, self._is_due)

    def wish(self) -> None:
        """As soon as all of the log is committed."""
        self._is_wanted = True
        self.bytes_since = max(self.bytes_since, 1)
        self.consider()

    def _is_due(self) -> None:
        self._due = None
        self._is_wanted = True
        self.consider()

    async def _take(self, image: MetadataImage) -> None:
        try:
            await self._driver.write_snapshot(image)
        except OSError as error:  # the log is still whole; the next one may succeed
            log.error("writing a metadata snapshot failed: %s", error)
        finally:
            self._task = None

    def _cancel_due(self) -> None:
        if self._due is not None:
            self._due.cancel()
            self._due = None

    async def stop(self) -> None:
        self._cancel_due()
        if self._task is not None:
            await self._task
