"""MemorySync: a thread that keeps a memory and its directory in step, so that no request waits for the disk."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final

from zerodraft.lookup.memory.draft_memory import DraftMemory
from zerodraft.lookup.memory.segment_file import MemoryFileError

_log = logging.getLogger(__name__)


class MemorySync:
    """Publishes what was added to a memory and takes in what others published, every so many seconds.

    What the directory refuses is logged, each message once, and tried again; drafting goes on with what is known.

    Attributes:
        num_failures: times the directory could not be read or written.
    """

    def __init__(self, memory: DraftMemory, seconds: float, before: Callable[[], None] | None = None) -> None:
        """Start the thread; the memory has a directory. It is a daemon: call ``close`` to publish the rest.

        Args:
            before: called in the thread before every turn, to add what is ready.
        """
        self.num_failures = 0
        self._before: Final = before
        self._memory: Final = memory
        self._seconds: Final = seconds
        self._told: set[str] = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="zerodraft-memory-sync", daemon=True)
        self._thread.start()

    def sync(self) -> None:
        """Publish and take in now."""
        try:
            if self._memory.has_unsaved:
                self._memory.save()
            else:
                self._memory.refresh()
        except (MemoryFileError, OSError) as error:
            self.num_failures += 1
            if str(error) not in self._told:
                self._told.add(str(error))
                _log.warning("the memory's directory is out of step: %s", error)

    def close(self) -> None:
        """End the thread, then publish what is left. Closing twice does nothing more."""
        if not self._stop.is_set():
            self._stop.set()
            self._thread.join(timeout=60)
            self.sync()

    def _run(self) -> None:
        while not self._stop.wait(self._seconds):
            if self._before is not None:
                self._before()
            self.sync()
