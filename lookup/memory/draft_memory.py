"""DraftMemory: texts of earlier requests, to draft from in later ones; capped, namespaced, persistent, shared."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from zerodraft.lookup._block import NUM_ROWS
from zerodraft.lookup.checks import flag, int_in, number_in
from zerodraft.lookup.copy._text import MAX_MATCH
from zerodraft.lookup.copy.ngram_index import BULK
from zerodraft.lookup.draft import Draft, IntArray, as_token_ids
from zerodraft.lookup.memory import _stored as core
from zerodraft.lookup.memory import manifest as manifests
from zerodraft.lookup.memory._stored import MAX_CHAIN
from zerodraft.lookup.memory.files import Stamp, list_files, merged_with_small, opened, path_of, stamp_of, write_new
from zerodraft.lookup.memory.manifest import MANIFEST, Manifest, NoMemoryError, TokenizerError
from zerodraft.lookup.memory.segment import Segment, text_digest
from zerodraft.lookup.memory.segment_file import MAX_NAMESPACE, MemoryFileError, open_segment
from zerodraft.lookup.memory.shelf import Shelf
from zerodraft.lookup.memory.view import MemoryView
from zerodraft.lookup.runtime._jit import direct
from zerodraft.lookup.runtime.at_fork import FILES, TEXTS, held_at_fork

_MAX_TOKENIZER: Final = 1024  # characters of a fingerprint
_NUM_REREADS: Final = 20
_MAX_VIEWS: Final = 64
_draft: Final = direct(core.draft)

TokenIds = Sequence[int] | npt.NDArray[np.integer]


class StoredMatch(NamedTuple):
    """Where the end of a context occurred in a memory: copy from ``position`` of ``segment``."""

    segment: Segment
    position: int
    match_len: int


class DraftMemory:
    """Finished texts of earlier requests, drafted from when the end of the current text occurs in one of them.

    Never more than ``max_tokens`` tokens: the oldest texts go first, at a cost that does not depend on what is stored.
    A text is only ever drafted in the namespace it was added to; ``None`` is a namespace like any other. Thread-safe.

    With a directory the memory outlives the process and is shared: ``save`` publishes what was added here, ``refresh``
    takes in what others published. Any number of processes may read and write one directory; files are never changed
    once they are written, only added and removed. A file is checked before its content is used, so a directory from a
    stranger can at worst draft nonsense (which the target model rejects) or raise MemoryFileError. The one thing a
    stranger must not do is to shorten a file while it is mapped.

    Attributes:
        directory: where the memory is kept, None while it lives in this process only.
        tokenizer: fingerprint of the tokenizer whose ids these are, None while nobody has said.

    >>> memory = DraftMemory(max_tokens=100)
    >>> memory.add([1, 2, 3, 4, 5, 6, 7], namespace="alice")
    True
    >>> memory.propose([2, 3, 4, 5], max_tokens=8, namespace="alice").token_ids.tolist()
    [6, 7]
    >>> memory.propose([2, 3, 4, 5], max_tokens=8, namespace="bob").token_ids.tolist()
    []
    """

    def __init__(
        self,
        max_tokens: int = 1_000_000,
        *,
        min_match_len: int = 1,
        min_prob: float = 0.05,
        directory: str | os.PathLike[str] | None = None,
        tokenizer: str | None = None,
    ) -> None:
        """Start empty, or with what ``directory`` holds; it is created where it does not exist.

        Args:
            max_tokens: cap on the stored tokens, up to 2**30; more than ``min_match_len``, or nothing could be drafted.
            min_match_len: shortest match that is drafted from, 1 to 4096; below 4 the last token alone is looked up
                too.
            min_prob: nodes with a lower estimated probability, in [0, 1], are not drafted.
            directory: where the memory is kept; it then holds at most ``max_tokens`` too.
            tokenizer: fingerprint of the tokenizer whose ids these are, as ``bind_tokenizer`` takes it.

        Raises:
            ValueError: an option of another type or outside its range, or a directory that is a file.
            MemoryFileError: the directory holds a file that is cut, damaged, foreign or of another version.
            TokenizerError: (both of these) the directory's ids are of another tokenizer.
        """
        self.max_tokens: Final = int_in("max_tokens", max_tokens, 1, 2**30)
        self.min_match_len: Final = int_in("min_match_len", min_match_len, 1, MAX_MATCH)
        if self.max_tokens <= self.min_match_len:
            lengths = f"{self.max_tokens} and {self.min_match_len}"
            raise ValueError(f"max_tokens must be above min_match_len, or nothing is ever drafted, got {lengths}")
        self.min_prob: Final = number_in("min_prob", min_prob, 0, 1)
        self._lock = held_at_fork(threading.RLock(), TEXTS)  # the shelf; held for microseconds
        self._file_lock = held_at_fork(threading.Lock(), FILES)  # one save, refresh or clear of the directory at a time
        self._shelf = Shelf(self.max_tokens)
        self._views: dict[str | None, tuple[Shelf, int, MemoryView]] = {}
        self._last_stamp = 0
        self.directory: Path | None = None
        self._listed: dict[str, Segment] = {}  # files of the manifest as last read, those evicted here included
        self._manifest_stamp: Stamp | None = None
        self.tokenizer: str | None = None
        if tokenizer is not None:
            self.bind_tokenizer(tokenizer)
        if directory is not None:
            self._bind(directory)
            self.refresh()

    @classmethod
    def load(
        cls,
        directory: str | os.PathLike[str],
        max_tokens: int = 1_000_000,
        *,
        min_match_len: int = 1,
        min_prob: float = 0.05,
        tokenizer: str | None = None,
        verify: bool = False,
    ) -> DraftMemory:
        """Open a saved memory; with ``verify`` every byte is checked now, otherwise each block when it is first used.

        Raises:
            ValueError: as the constructor.
            MemoryFileError: there is no memory, or its files are not sound.
        """
        flag("verify", verify)
        if not manifests.is_memory(path_of(directory)):
            raise NoMemoryError(f"{os.fspath(directory)}: no memory here")
        memory = cls(
            max_tokens, min_match_len=min_match_len, min_prob=min_prob, directory=directory, tokenizer=tokenizer
        )
        if verify:
            for segment in memory._shelf:
                segment.blocks.check_all()
        return memory

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

    @property
    def num_tokens(self) -> int:
        """Tokens that can be drafted from."""
        return self._shelf.num_tokens

    @property
    def has_unsaved(self) -> bool:
        """True if texts were added that no ``save`` has published yet."""
        with self._lock:
            return any(segment.name is None for segment in self._shelf)

    @property
    def nbytes(self) -> int:
        """Bytes of all indexes, those mapped from files included."""
        with self._lock:
            return sum(segment.index.nbytes for segment in self._shelf)

    @property
    def namespaces(self) -> tuple[str | None, ...]:
        """Namespaces that hold something."""
        with self._lock:
            return self._shelf.namespaces

    def add(self, ids: TokenIds, namespace: str | None = None, *, skip_known: bool = False) -> bool:
        """Store one text, dropping the oldest ones where the cap asks for it; return whether it was stored.

        Of a text longer than the whole memory the end is kept. Cost: O(len(ids)), tens of nanoseconds per token.

        Args:
            skip_known: leave a text alone that the namespace holds already (``contains``); its age stays the same.

        Raises:
            ValueError: ids that are not integers in [0, 2**31 - 1]; the memory is then unchanged.
            MemoryFileError: with ``skip_known``, a file turned out to be damaged; it is not used again.
        """
        tokens = as_token_ids(ids)
        check_namespace(namespace)
        flag("skip_known", skip_known)
        if len(tokens) == 0 or (skip_known and self.contains(tokens, namespace)):
            return False
        built = Segment(namespace) if len(tokens) >= BULK else None
        if built is not None:  # a segment of its own, so that nobody waits for the lock while it is indexed
            built.add(tokens[-self.max_tokens :], 0)
        with self._lock:
            self._last_stamp = max(time.time_ns(), self._last_stamp + 1)
            if built is None:
                self._shelf.add(tokens, namespace, self._last_stamp)
            else:
                built.stamps = [self._last_stamp]
                self._shelf.append(built)
        return True

    def contains(self, ids: TokenIds, namespace: str | None = None) -> bool:
        """True if exactly these ids, of a text longer than the memory the end of them, are one text of the namespace.

        Cost: the first call reads all texts of the namespace, some 15 ns per token, while others wait, and keeps 130
        bytes for each; after that O(len(ids)), likewise.

        Raises:
            ValueError: bad ids. MemoryFileError: a file turned out to be damaged; it is not used again.
        """
        check_namespace(namespace)
        digest = text_digest(as_token_ids(ids)[-self.max_tokens :])
        with self._lock:
            for segment in self._shelf.of(namespace)[::-1]:
                with self._dropped_if_damaged(segment):
                    if segment.holds(digest):
                        return True
        return False

    def preload(
        self,
        texts: Iterable[TokenIds],
        namespace: str | None = None,
        *,
        skip_known: bool = False,
        progress: Callable[[int, int | None], None] | None = None,
    ) -> int:
        """Store many texts, such as a code base; return the number of tokens read.

        ``progress(done, total)`` is called after every text, counted in texts; total is None for a generator. With
        ``skip_known`` texts that the namespace holds are left alone, as ``add`` does.

        Raises:
            ValueError: no iterable of texts, a progress that cannot be called, or as ``add``: texts before it are kept.
        """
        if not isinstance(texts, Iterable):
            raise ValueError(f"texts must be an iterable of texts of token ids, got {texts!r}")
        if progress is not None and not callable(progress):
            raise ValueError(f"progress must be a function of two numbers, got {progress!r}")
        check_namespace(namespace)
        flag("skip_known", skip_known)
        total = len(texts) if isinstance(texts, Sized) else None
        num_tokens = 0
        for done, text in enumerate(texts, 1):
            tokens = as_token_ids(text)
            self.add(tokens, namespace, skip_known=skip_known)
            num_tokens += len(tokens)
            if progress is not None:
                progress(done, total)
        return num_tokens

    def evict(self, num_tokens: int) -> int:
        """Drop the oldest texts until ``num_tokens`` tokens are gone; return how many went. Cost: O(texts dropped)."""
        int_in("num_tokens", num_tokens, 0, 2**62)
        with self._lock:
            before = self._shelf.num_tokens
            self._shelf.evict_to(max(0, before - num_tokens))
            return before - self._shelf.num_tokens

    def clear(self, namespace: str | None) -> int:
        """Drop everything of one namespace, from the directory too; return the number of tokens dropped here.

        Other processes go on drafting from what they have mapped until they refresh.
        """
        check_namespace(namespace)
        with self._file_lock:
            before = sum(segment.num_live_tokens for segment in self._shelf.of(namespace))
            if self.directory is not None:
                self._clear_files(self.directory, namespace)
            with self._lock:
                self._shelf.clear(namespace)
            return before

    def match(self, context: TokenIds, namespace: str | None = None) -> StoredMatch | None:
        """Find the longest match of the end of ``context``, the newest among equals and among those of 32 and more.

        None if there is none.

        Raises:
            MemoryFileError: a file turned out to be damaged; it is not used again.
        """
        check_namespace(namespace)
        return self._find(as_token_ids(context)[-MAX_MATCH:], namespace, np.empty((NUM_ROWS, 0), np.int32))[1]

    def propose(self, context: TokenIds, max_tokens: int, namespace: str | None = None) -> Draft:
        """Draft what followed the longest match of the end of ``context``, as a chain of source MEMORY.

        Cost: a microsecond per segment of the namespace, of which there are about ten.

        Raises:
            ValueError: max_tokens below 0, or bad ids.
            MemoryFileError: a file turned out to be damaged; it is not used again.
        """
        int_in("max_tokens", max_tokens, 0, 2**31)
        check_namespace(namespace)
        block = np.empty((NUM_ROWS, min(max_tokens, MAX_CHAIN)), np.int32)
        n, _ = self._find(as_token_ids(context)[-MAX_MATCH:], namespace, block)
        return Draft.from_block(block[:, :n])

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

    def check_integrity(self) -> None:
        """Recount everything; AssertionError if something contradicts. Cost: O(number of tokens)."""
        with self._lock:
            self._shelf.check_integrity()

    def view(self, namespace: str | None) -> MemoryView:
        """What can be drafted from in a namespace just now, for kernels. Cost while nothing changes: a table lookup."""
        shelf = self._shelf
        known = self._views.get(namespace)
        if known is None or known[0] is not shelf or known[1] != shelf.version:
            with self._lock:
                shelf = self._shelf
                if len(self._views) >= _MAX_VIEWS:
                    self._views.clear()
                known = self._views[namespace] = shelf, shelf.version, MemoryView(shelf.of(namespace))
        return known[2]

    def check(self, segment: Segment, block: int) -> None:
        """Check a block of a segment's file that a kernel wants to read.

        Raises:
            MemoryFileError: it is damaged; the segment is not used again.
        """
        with self._dropped_if_damaged(segment):
            segment.blocks.check(block)

    @contextlib.contextmanager
    def _dropped_if_damaged(self, segment: Segment) -> Iterator[None]:
        """Do not use a segment again whose file turns out to be damaged."""
        try:
            yield
        except MemoryFileError:
            with self._lock:
                self._shelf.discard(segment)
            raise

    def _find(self, context: IntArray, namespace: str | None, block: IntArray) -> tuple[int, StoredMatch | None]:
        """Fill the block with what followed the best match of a context: (number of nodes, where they come from)."""
        best = np.empty(5, np.int64)
        while True:
            view = self.view(namespace)
            n = _draft(context, view.records, self.min_match_len, self.min_prob, block, best)
            position, match, _, number, to_check = best.tolist()
            if number < 0:
                return 0, None
            if to_check < 0:
                return n, StoredMatch(view.segments[number], position, match)
            self.check(view.segments[number], to_check)

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


def check_namespace(namespace: object) -> None:
    """Raise a ValueError unless this can be a namespace: None, or text that UTF-8 can hold in 65,535 bytes."""
    if namespace is None:
        return
    if not isinstance(namespace, str):
        raise ValueError(f"namespace must be a string or None, got {namespace!r}")
    try:
        size = len(namespace.encode())
    except UnicodeEncodeError:
        raise ValueError(f"namespace must be text that UTF-8 can hold, got {namespace!r}") from None
    if size >= MAX_NAMESPACE:
        raise ValueError(f"namespace must be shorter than {MAX_NAMESPACE} bytes, got {size}")
