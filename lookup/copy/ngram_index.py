"""NgramIndex: every earlier occurrence of the end of a text, found without reading the text again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from zerodraft.lookup.checks import int_in
from zerodraft.lookup.copy import _ngram_core as core
from zerodraft.lookup.draft import MAX_TOKEN_ID, IntArray, as_token_ids
from zerodraft.lookup.runtime.jit import direct

_MAX_LENGTH: Final = 2**31 - 2**20  # positions are int32
BULK: Final = 1 << 15  # from here on a text is indexed without the GIL; getting it back can take milliseconds
_FIRST_CAPACITY: Final = 256
_FIRST_SLOTS: Final = 256
_extend, _extend_bulk = direct(core.extend), direct(core.extend_bulk)
_BARRIER: Final = np.array([core.BARRIER], np.int32)


class Occurrences(NamedTuple):
    """Earlier occurrences of the end of a text.

    Attributes (n occurrences):
        positions: int32 (n,), where the text goes on after the occurrence: the tokens to draft start here.
        match_lens: int32 (n,), how many tokens before it equal the end of the text.
    """

    positions: IntArray
    match_lens: IntArray


class NgramIndex:
    """A text that only grows, indexed by its single tokens and its 4-grams.

    Memory: 12 bytes per token and two tables of 4 bytes per slot, growing by doubling. Not thread-safe.

    >>> index = NgramIndex()
    >>> index.extend([1, 2, 3, 9, 1, 2])
    >>> index.match(8).positions.tolist(), index.match(8).match_lens.tolist()
    ([2], [2])
    """

    __slots__ = ("_heads_1", "_heads_n", "_links", "_meta", "_one", "_tokens")

    def __init__(self) -> None:
        self._one = np.zeros(1, np.int32)  # a single new token on its way into the arena
        self._tokens = np.empty(_FIRST_CAPACITY, np.int32)
        self._links = np.empty((2, _FIRST_CAPACITY), np.int32)
        self._heads_1 = np.full(_FIRST_SLOTS, -1, np.int32)
        self._heads_n = np.full(_FIRST_SLOTS, -1, np.int32)
        self._meta = np.zeros(4, np.int64)

    @classmethod
    def over(
        cls, *, tokens: IntArray, links: IntArray, heads_1: IntArray, heads_n: IntArray, used: tuple[int, int]
    ) -> NgramIndex:
        """An index that reads these arrays, as saved by another; read-only ones (a mapped file) are never written.

        Args:
            tokens, links: int32 (n,) and (2, n), full to the last position, which is a barrier.
            heads_1, heads_n: int32, the tables; their lengths are powers of two.
            used: occupied slots of both tables.
        """
        index = object.__new__(cls)
        index._one = np.zeros(1, np.int32)
        index._tokens, index._links, index._heads_1, index._heads_n = tokens, links, heads_1, heads_n
        index._meta = np.array([len(tokens), *used, 0], np.int64)
        return index

    @property
    def used(self) -> tuple[int, int]:
        """Occupied slots of the tables of single tokens and of 4-grams: the numbers of different ones."""
        return int(self._meta[core.USED_1]), int(self._meta[core.USED_N])

    def __len__(self) -> int:
        """Number of positions, barriers included."""
        length: int = self._meta.item(core.LENGTH)
        return length

    @property
    def token_ids(self) -> IntArray:
        """Read-only view of the arena, int32 (len(self),); a barrier reads as -1. Valid until the next extend."""
        view = self._tokens[: len(self)]
        view.flags.writeable = False
        return view

    @property
    def nbytes(self) -> int:
        """Bytes held, spare capacity included."""
        return sum(getattr(self, name).nbytes for name in self.__slots__)

    def extend(self, ids: Sequence[int] | npt.NDArray[np.integer]) -> None:
        """Append tokens. Cost: amortised O(1) per token.

        Raises:
            ValueError: ids that are not integers in [0, 2**31 - 1], or more than 2**31 - 2**20 in all; the index is
                then unchanged.
        """
        if type(ids) is tuple and len(ids) == 1:  # most decode steps: a microsecond less than by way of an array
            token = ids[0]
            if type(token) is int and 0 <= token <= MAX_TOKEN_ID and len(self._tokens) < _MAX_LENGTH:
                self._one[0] = token
                self._append(self._one)
                return
        tokens = as_token_ids(ids)
        if len(tokens) > _MAX_LENGTH - len(self._tokens) and len(tokens) > _MAX_LENGTH - len(self):  # rarely true
            raise ValueError(f"an n-gram index holds at most {_MAX_LENGTH} tokens, got {len(self) + len(tokens)}")
        self._append(tokens)

    def add_barrier(self) -> None:
        """Append a position that never matches and is never drafted: a text ends here, another one begins."""
        self._append(_BARRIER)

    def match(self, limit: int, *, max_len: int = 64) -> Occurrences:
        """Return the newest earlier occurrences of the end of the text.

        First those that share at least 4 tokens, newest first; then, from the ``limit`` newest occurrences of the last
        token, those that share fewer; ``limit`` in all. Does not modify the index. Cost: O(limit · max_len).

        Args:
            limit: upper bound on the number of occurrences, at least 1.
            max_len: matches are measured up to this many tokens, at least 1.

        Raises:
            ValueError: limit or max_len below 1.
        """
        int_in("limit", limit, 1, None)
        int_in("max_len", max_len, 1, None)
        if len(self) == 0:
            return Occurrences(np.empty(0, np.int32), np.empty(0, np.int32))
        out = np.empty((2, min(limit, len(self))), np.int32)
        found = core.list_matches(self._tokens, self._links, len(self), out.shape[1], max_len, out)
        return Occurrences(out[0, :found], out[1, :found])

    def check_integrity(self) -> None:
        """Recount the whole index from its tokens; AssertionError if anything contradicts. Cost: O(n)."""
        faults = core.count_faults(self._tokens, self._links, self._heads_1, self._heads_n, self._meta)
        assert faults == 0, f"{faults} contradictions in the n-gram index"

    def _append(self, ids: IntArray) -> None:
        done, extend = 0, _extend if len(ids) < BULK else _extend_bulk
        while True:
            done = extend(ids, done, self._tokens, self._links, self._heads_1, self._heads_n, self._meta)
            if done == len(ids):
                return
            self._reserve(len(self) + len(ids) - done)
            self._grow_tables()

    def _reserve(self, length: int) -> None:
        """Make room for ``length`` positions and a part more, so that growth is amortised."""
        if length <= len(self._tokens):
            return
        capacity = max(length + length // 8 + 64, len(self._tokens) * 5 // 4)
        tokens, links = np.empty(capacity, np.int32), np.empty((2, capacity), np.int32)
        held = len(self)
        tokens[:held] = self._tokens[:held]
        links[:, :held] = self._links[:, :held]
        self._tokens, self._links = tokens, links

    def _grow_tables(self) -> None:
        if self._meta[core.USED_1] >= len(self._heads_1) * 3 // 4:
            self._heads_1 = self._doubled(self._heads_1, False)
        if self._meta[core.USED_N] >= len(self._heads_n) * 3 // 4:
            self._heads_n = self._doubled(self._heads_n, True)

    def _doubled(self, heads: IntArray, is_n: bool) -> IntArray:
        larger = np.full(2 * len(heads), -1, np.int32)
        core.rehash(self._tokens, is_n, heads, larger)
        return larger
