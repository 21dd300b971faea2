"""RecyclerShelf: the tables of successors that requests share, one per namespace, kept beside a memory."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

from zerodraft.lookup.memory.manifest import locked, recycler_path, remove_recycler
from zerodraft.lookup.memory.segment_file import MemoryFileError
from zerodraft.lookup.recycle.recycler_file import read_recycler, write_recycler
from zerodraft.lookup.recycle.token_recycler import TokenRecycler
from zerodraft.lookup.runtime.at_fork import FILES, held_at_fork

_log = logging.getLogger(__name__)


class RecyclerShelf:
    """The recyclers that requests share, one per namespace; the one used longest ago goes when there are too many.

    With a directory a namespace's table starts as the file left it, and ``save`` writes it back. Where several
    processes save, the last one's table stays: what it loses is learned again. Thread-safe.
    """

    def __init__(self, directory: Path | None = None, *, max_namespaces: int = 64, max_keys: int = 1 << 18) -> None:
        self._directory = directory
        self._max_namespaces, self._max_keys = max_namespaces, max_keys
        self._lock = held_at_fork(threading.Lock(), FILES)
        self._recyclers: dict[str | None, TokenRecycler] = {}

    def __getitem__(self, namespace: str | None) -> TokenRecycler:
        """The namespace's recycler, read or made when it is first asked for.

        A file that is cut, damaged, foreign or of another version is logged, and nothing of it used.
        """
        with self._lock:
            recycler = self._recyclers.pop(namespace, None)
            if recycler is None:
                recycler = self._read(namespace)
            self._recyclers[namespace] = recycler  # the one used last, last
            while len(self._recyclers) > self._max_namespaces:
                del self._recyclers[next(iter(self._recyclers))]
            return recycler

    def _read(self, namespace: str | None) -> TokenRecycler:
        kept = None
        if self._directory is not None:
            try:
                kept = read_recycler(recycler_path(self._directory, namespace), self._max_keys)
            except MemoryFileError as error:  # nothing but speed is lost
                _log.warning("starting without recycled tokens: %s", error)
        return TokenRecycler(self._max_keys) if kept is None else kept

    def save(self, directory: Path | None = None) -> None:
        """Write every table to the directory, which from now on is the shelf's; without one nothing is done.

        Raises:
            OSError: a file cannot be written; the earlier one is then still there.
        """
        with self._lock:
            self._directory = directory or self._directory
            recyclers = list(self._recyclers.items())
        if self._directory is not None:
            with locked(self._directory):
                for namespace, recycler in recyclers:
                    write_recycler(recycler_path(self._directory, namespace), recycler)

    def clear(self, namespace: str | None) -> None:
        """Forget the table of one namespace, its file too; requests that are running keep theirs to the end."""
        with self._lock:
            self._recyclers.pop(namespace, None)
            if self._directory is not None and self._directory.is_dir():
                with locked(self._directory):  # what another process is writing just now is not taken away from it
                    remove_recycler(self._directory, namespace)
