"""SharedTexts: texts on a shelf, and in a directory that any number of processes share."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Final

from zerodraft.lookup.memory import manifest as manifests
from zerodraft.lookup.memory.files import Stamp, list_files, merged_with_small, opened, path_of, stamp_of, write_new
from zerodraft.lookup.memory.manifest import MANIFEST, Manifest, TokenizerError
from zerodraft.lookup.memory.segment import Segment
from zerodraft.lookup.memory.segment_file import MemoryFileError, open_segment
from zerodraft.lookup.memory.shelf import Shelf
from zerodraft.lookup.runtime.at_fork import FILES, TEXTS, held_at_fork

_MAX_TOKENIZER: Final = 1024  # characters of a fingerprint
_NUM_REREADS: Final = 20


class SharedTexts:
    """What a ``DraftMemory`` holds, and how it is published and taken in. Thread-safe.

    Attributes:
        max_tokens: cap on the stored tokens.
        directory: where the texts are kept, None while they live in this process only.
        tokenizer: fingerprint of the tokenizer whose ids these are, None while nobody has said.
    """

    def __init__(self, max_tokens: int) -> None:
        self.max_tokens: Final = max_tokens
        self._lock = held_at_fork(threading.RLock(), TEXTS)  # the shelf; held for microseconds
        self._file_lock = held_at_fork(threading.Lock(), FILES)  # one save, refresh or clear of the directory at a time
        self._shelf = Shelf(self.max_tokens)
        self.directory: Path | None = None
        self._listed: dict[str, Segment] = {}  # files of the manifest as last read, those evicted here included
        self._manifest_stamp: Stamp | None = None
        self.tokenizer: str | None = None

    def bind_tokenizer(self, fingerprint: str) -> None:
        """Say whose ids these are; from then on nobody else's are taken. ``save`` writes it into the directory.

        The memory does not look into the text: whatever names the tokenizer by what decides its ids will do.
        ``zerodraft.integrations.vocabulary.fingerprint`` makes one.

        Raises:
            ValueError: no text of 1 to 1024 characters.
            TokenizerError: (a ValueError and a MemoryFileError) the memory is another tokenizer's. It is unchanged.
        """
        if not isinstance(fingerprint, str) or not 0 < len(fingerprint) <= _MAX_TOKENIZER:
            raise ValueError(f"tokenizer must be a text of 1 to {_MAX_TOKENIZER} characters, got {fingerprint!r:.80}")
        with self._lock:
            if self.tokenizer not in (None, fingerprint):
                where = "this memory" if self.directory is None else self.directory
                raise TokenizerError(f"{where}: holds ids of the tokenizer {self.tokenizer}, got {fingerprint}")
            self.tokenizer = fingerprint

    def save(self, directory: str | os.PathLike[str] | None = None) -> None:
        """Publish what was added since the last save, and take in what others published.

        A crash at any point leaves the directory as it was before or as it is after. Small segments are merged on the
        way, so the number of files stays logarithmic however often this is called.

        Args:
            directory: where to; needed once, if the memory was made without one.

        Raises:
            ValueError: no directory, or another one than before.
            MemoryFileError: the directory holds unsound files, or those of another tokenizer; what was added here stays
                and can be saved later. OSError: it cannot be written; likewise.
        """
        if directory is not None:
            self._bind(directory)
        if self.directory is None:
            raise ValueError("save needs a directory: none was given, here or before")
        with self._file_lock, manifests.locked(self.directory):
            with self._lock:
                ours = [segment for segment in self._shelf if segment.name is None]
                for segment in ours:
                    segment.name = ""  # sealed: what is added from now on goes into a new segment
            try:
                self._publish(self.directory, ours)
            except BaseException:
                for segment in ours:
                    segment.name = None
                raise

    def refresh(self) -> bool:
        """Take in what other processes published or removed; return whether anything changed. Cost if not: one stat.

        Raises:
            ValueError: the memory has no directory.
            MemoryFileError: unsound files; what was known before stays in use.
        """
        if self.directory is None:
            raise ValueError("refresh needs a memory with a directory")
        with self._file_lock:
            stamp = stamp_of(self.directory / MANIFEST)
            if stamp is not None and stamp == self._manifest_stamp:
                return False
            had_some, listed = bool(self._listed), self._open_listed(self.directory)
            self._show(listed, stamp, [])
            return had_some or bool(listed)

    def _bind(self, directory: str | os.PathLike[str]) -> None:
        path = path_of(directory).resolve()
        if self.directory not in (None, path):
            raise ValueError(f"this memory is kept in {self.directory}, got {path}")
        try:
            path.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError) as error:
            got = f"{os.fspath(directory)}: {error.filename} is not"
            raise ValueError(f"directory must be a folder, got {got}") from None
        manifests.read_manifest(path)  # what is not a memory's is refused before anything is written there
        self.directory = path

    def _open_listed(self, directory: Path) -> list[Segment]:
        """The segments of the manifest in its order; what was evicted or found damaged here stays so."""
        for attempt in range(_NUM_REREADS):
            time.sleep(0.001 * attempt)
            manifest = manifests.read_manifest(directory)
            if manifest.tokenizer is not None:
                self.bind_tokenizer(manifest.tokenizer)
            try:
                return [opened(directory, entry, self._listed) for entry in manifest.entries]
            except FileNotFoundError as error:  # removed between reading the manifest and opening: read it again
                missing = error
        raise MemoryFileError(f"{missing.filename}: listed, but missing")

    def _publish(self, directory: Path, ours: list[Segment]) -> None:
        """Write ``ours`` and the manifest that names them; the directory is locked."""
        shelf = Shelf(self.max_tokens, self._open_listed(directory))
        if not (directory / MANIFEST).exists():  # so that segment files without one always mean that it was lost
            manifests.write_manifest(directory, Manifest())
        for segment in ours:
            with self._lock:
                live = segment.copy()
            if not live.is_empty:
                shelf.append(open_segment(directory / write_new(directory, merged_with_small(shelf, live))))
        self._show(list(shelf), list_files(directory, shelf, self.tokenizer), ours)

    def _clear_files(self, directory: Path, namespace: str | None) -> None:
        with manifests.locked(directory):
            others = [segment for segment in self._open_listed(directory) if segment.namespace != namespace]
            shelf = Shelf(self.max_tokens, others)
            manifests.remove_recycler(directory, namespace)
            is_empty = not shelf.namespaces and not any(directory.glob("*.zdrec"))
            self._show(list(shelf), list_files(directory, shelf, None if is_empty else self.tokenizer), [])

    def _show(self, listed: list[Segment], stamp: Stamp | None, replaced: list[Segment]) -> None:
        """Draft from the listed segments and from those in memory that are not among them yet."""
        with self._lock:
            for segment in listed:  # what was evicted while the files were read stays evicted
                before = self._listed.get(segment.name or "")
                if before is not None:
                    segment.first_live = max(segment.first_live, before.first_live)
            unsaved = [segment for segment in self._shelf if segment.name in (None, "") and segment not in replaced]
            self._shelf = Shelf(self.max_tokens, (*listed, *unsaved))
            self._listed = {segment.name: segment for segment in listed if segment.name}
            self._manifest_stamp = stamp
