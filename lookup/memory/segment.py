"""Segment: texts of one namespace in one indexed arena, oldest first, forgotten from the front."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from zerodraft.lookup.copy._text import BARRIER
from zerodraft.lookup.copy.ngram_index import NgramIndex
from zerodraft.lookup.draft import IntArray
from zerodraft.lookup.memory._stored import TRUSTED

_serials: Final = itertools.count(1)


class Blocks:
    """Which parts of an arena have been checked: all of one that this process wrote itself, as here.

    Attributes:
        checked: uint8 (num_blocks,), 1 where the block's checksum was found right.
        bases: int64 (5,), byte offsets of tokens, links_1, links_n, heads_1 and heads_n in a file.
        shift: log2 of the block size in bytes.
    """

    checked: npt.NDArray[np.uint8] = np.ones(1, np.uint8)
    bases: npt.NDArray[np.int64] = np.zeros(5, np.int64)
    shift = TRUSTED

    def check(self, block: int) -> None:
        """Mark the block as checked, or raise MemoryFileError."""

    def check_all(self) -> None:
        """Check every block that has not been checked yet."""


_TRUSTED: Final = Blocks()


class _TextDigests:
    """Which texts an arena holds, by content; one for all copies of a segment, filled when it is first asked."""

    def __init__(self) -> None:
        self.num_texts = 0
        self.newest: dict[bytes, int] = {}  # digest of a text: the last text that has it


class Segment:
    """Texts, each followed by a barrier, in one NgramIndex; the oldest are dropped by moving a floor upwards.

    Chains run from new to old, so a search ends at the floor: dropping a text costs the same whatever it holds, and its
    bytes are freed with the whole segment. A segment read from a file is never added to.

    Attributes:
        namespace: whose texts these are; None: the common ones.
        index: text, barrier, text, barrier ...
        ends: arena position of the barrier after each text (num_texts,).
        stamps: time.time_ns() when each text was added (num_texts,).
        first_live: number of dropped texts.
        name: file name, None while the segment is only in memory.
        serial: a number that no other segment of this process has, but for copies.
    """

    __slots__ = ("_digests", "blocks", "ends", "first_live", "index", "name", "namespace", "serial", "stamps")

    def __init__(
        self,
        namespace: str | None,
        index: NgramIndex | None = None,
        ends: Sequence[int] | npt.NDArray[np.int64] | None = None,
        stamps: Sequence[int] | npt.NDArray[np.int64] | None = None,
        *,
        blocks: Blocks = _TRUSTED,
        name: str | None = None,
    ) -> None:
        self.namespace = namespace
        self.index = NgramIndex() if index is None else index
        self.ends = [] if ends is None else ends
        self.stamps = [] if stamps is None else stamps
        self.first_live = 0
        self.blocks = blocks
        self.name = name
        self.serial = next(_serials)
        self._digests = _TextDigests()

    @property
    def num_texts(self) -> int:
        """Number of texts, the dropped ones included."""
        return len(self.ends)

    @property
    def floor(self) -> int:
        """First arena position that is still alive."""
        return int(self.ends[self.first_live - 1]) + 1 if self.first_live else 0

    @property
    def num_live_tokens(self) -> int:
        """Tokens of the texts that are still alive, barriers not counted."""
        return len(self.index) - self.floor - (self.num_texts - self.first_live)

    @property
    def oldest_stamp(self) -> int:
        """When the oldest live text was added."""
        return int(self.stamps[self.first_live])

    @property
    def is_empty(self) -> bool:
        """True if no text is alive."""
        return self.first_live == self.num_texts

    def add(self, ids: IntArray, stamp: int) -> None:
        """Append one text."""
        assert isinstance(self.ends, list)
        assert isinstance(self.stamps, list)
        self.index.extend(ids)
        self.ends.append(len(self.index))
        self.stamps.append(stamp)
        self.index.add_barrier()

    def drop_oldest(self) -> int:
        """Forget the oldest live text; return its number of tokens. Cost: O(1)."""
        floor = self.floor
        self.first_live += 1
        return self.floor - floor - 1

    def live_texts(self) -> Iterator[tuple[IntArray, int]]:
        """Yield (token ids, stamp) of every live text, oldest first, after checking all of a file."""
        self.blocks.check_all()
        for text in range(self.first_live, self.num_texts):
            yield self._text(text), int(self.stamps[text])

    def copy(self) -> Segment:
        """The same texts with a floor of its own."""
        twin = Segment(self.namespace, self.index, self.ends, self.stamps, blocks=self.blocks, name=self.name)
        twin.first_live = self.first_live
        twin.serial, twin._digests = self.serial, self._digests
        return twin

    def holds(self, digest: bytes) -> bool:
        """True if a live text has this ``text_digest``.

        Cost: once, all texts are read (some 15 ns per token, and 130 bytes are kept per text); then one table lookup.

        Raises:
            MemoryFileError: a block of the file is damaged.
        """
        known = self._digests
        if known.num_texts < self.num_texts:
            self.blocks.check_all()
        for text in range(known.num_texts, self.num_texts):
            known.newest[text_digest(self._text(text))] = text
        known.num_texts = self.num_texts
        return known.newest.get(digest, -1) >= self.first_live

    def check_integrity(self) -> None:
        """Recount everything; AssertionError if something contradicts."""
        self.blocks.check_all()
        self.index.check_integrity()
        barriers = np.flatnonzero(self.index.token_ids == BARRIER)
        assert barriers.tolist() == [int(end) for end in self.ends], "text ends are not where the barriers are"
        assert len(self.stamps) == self.num_texts, "every text has one stamp"
        assert 0 <= self.first_live <= self.num_texts, "more texts dropped than there are"
        live = sum(len(ids) for ids, _ in self.live_texts())
        assert live == self.num_live_tokens, f"{live} live tokens, counted as {self.num_live_tokens}"

    def _text(self, text: int) -> IntArray:
        start = int(self.ends[text - 1]) + 1 if text else 0
        return self.index.token_ids[start : int(self.ends[text])]


def text_digest(ids: IntArray) -> bytes:
    """What tells texts apart by content: 16 bytes of BLAKE2b over the ids."""
    return hashlib.blake2b(np.ascontiguousarray(ids, "<i4").tobytes(), digest_size=16).digest()
