"""DraftMemory: texts of earlier requests, to draft from in later ones; capped, namespaced, persistent, shared."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
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
from zerodraft.lookup.memory.files import path_of
from zerodraft.lookup.memory.manifest import NoMemoryError
from zerodraft.lookup.memory.segment import Segment, text_digest
from zerodraft.lookup.memory.segment_file import MAX_NAMESPACE, MemoryFileError
from zerodraft.lookup.memory.shared_texts import SharedTexts
from zerodraft.lookup.memory.shelf import Shelf
from zerodraft.lookup.memory.view import MemoryView
from zerodraft.lookup.runtime._jit import direct

_MAX_VIEWS: Final = 64
_draft: Final = direct(core.draft)

TokenIds = Sequence[int] | npt.NDArray[np.integer]


class StoredMatch(NamedTuple):
    """Where the end of a context occurred in a memory: copy from ``position`` of ``segment``."""

    segment: Segment
    position: int
    match_len: int


class DraftMemory(SharedTexts):
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
        super().__init__(int_in("max_tokens", max_tokens, 1, 2**30))
        self.min_match_len: Final = int_in("min_match_len", min_match_len, 1, MAX_MATCH)
        if self.max_tokens <= self.min_match_len:
            lengths = f"{self.max_tokens} and {self.min_match_len}"
            raise ValueError(f"max_tokens must be above min_match_len, or nothing is ever drafted, got {lengths}")
        self.min_prob: Final = number_in("min_prob", min_prob, 0, 1)
        self._views: dict[str | None, tuple[Shelf, int, MemoryView]] = {}
        self._last_stamp = 0
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
