"""NgramIndex: every earlier occurrence of the end of a text, found without reading the text again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from zerodraft.lookup.checks import int_in
from zerodraft.lookup.copy import _text as core
from zerodraft.lookup.copy._text import Text
from zerodraft.lookup.draft import MAX_TOKEN_ID, IntArray, as_token_ids
from zerodraft.lookup.runtime._jit import direct, dtype_of

_MAX_LENGTH: Final = 2**31 - 2**20  # positions are int32
BULK: Final = 1 << 15  # from here on a text is indexed without the GIL; getting it back can take milliseconds
_FIRST: Final = 256  # positions, and slots of each table
_append, _append_bulk = direct(core.append), direct(core.append_bulk)
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

    __slots__ = ("_meta", "_one", "arrays")

    def __init__(self, meta: Any = None) -> None:
        """Start empty. ``meta``: a record array (1,) of ``_text.Meta``, zero, to count in; None: one of its own."""
        self._one = np.zeros(1, np.int32)  # a single new token on its way into the arena
        tokens, links_1, links_n = (np.empty(_FIRST, np.int32) for _ in range(3))
        heads_1, heads_n = (np.full(_FIRST, -1, np.int32) for _ in range(2))
        self.arrays = Text(tokens, links_1, links_n, heads_1, heads_n)
        self._meta: Any = np.zeros(1, dtype_of(core.Meta)) if meta is None else meta

    @classmethod
    def over(cls, arrays: Text, used: tuple[int, int]) -> NgramIndex:
        """An index that reads these arrays, as saved by another; read-only ones (a mapped file) are never written.

        Args:
            arrays: full to the last position, which is a barrier; the lengths of the tables are powers of two.
            used: occupied slots of both tables.
        """
        index = cls()
        index.arrays = arrays
        index._meta[0] = (len(arrays.tokens), *used, 0)
        return index

    @property
    def used(self) -> tuple[int, int]:
        """Occupied slots of the tables of single tokens and of 4-grams: the numbers of different ones."""
        return int(self._meta["used_1"][0]), int(self._meta["used_n"][0])

    def __len__(self) -> int:
        """Number of positions, barriers included."""
        length: int = self._meta["length"].item()
        return length

    @property
    def token_ids(self) -> IntArray:
        """Read-only view of the arena, int32 (len(self),); a barrier reads as -1. Valid until the next extend."""
        view = self.arrays.tokens[: len(self)]
        view.flags.writeable = False
        return view

    @property
    def nbytes(self) -> int:
        """Bytes held, spare capacity included."""
        return sum(array.nbytes for array in (*self.arrays, self._meta, self._one))

    def extend(self, ids: Sequence[int] | npt.NDArray[np.integer]) -> None:
        """Append tokens. Cost: amortised O(1) per token.

        Raises:
            ValueError: ids that are not integers in [0, 2**31 - 1], or more than 2**31 - 2**20 in all; the index is
                then unchanged.
        """
        capacity = len(self.arrays.tokens)
        if type(ids) is tuple and len(ids) == 1:  # most decode steps: a microsecond less than by way of an array
            token = ids[0]
            if type(token) is int and 0 <= token <= MAX_TOKEN_ID and capacity < _MAX_LENGTH:
                self._one[0] = token
                self._append(self._one)
                return
        tokens = as_token_ids(ids)
        if len(tokens) > _MAX_LENGTH - capacity and len(tokens) > _MAX_LENGTH - len(self):  # rarely true
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
        found = direct(core.list_matches)(self.arrays, len(self), out.shape[1], max_len, out)
        return Occurrences(out[0, :found], out[1, :found])

    def check_integrity(self) -> None:
        """Recount the whole index from its tokens; AssertionError if anything contradicts. Cost: O(n)."""
        faults = direct(core.count_faults)(self.arrays, self._meta)
        assert faults == 0, f"{faults} contradictions in the n-gram index"

    def reserve(self, num_tokens: int, num_grams: int) -> None:
        """Make room for so many tokens more, and so many n-grams that are new. Growth is amortised."""
        needed, capacity = len(self) + num_tokens, len(self.arrays.tokens)
        tokens, links_1, links_n, heads_1, heads_n = self.arrays
        if needed > capacity:
            capacity = max(needed + needed // 8 + 64, capacity * 5 // 4)
            tokens, links_1, links_n = (_grown(array, capacity, len(self)) for array in (tokens, links_1, links_n))
        used_1, used_n = self.used
        heads_1 = _rehashed(tokens, False, heads_1, used_1 + num_grams)
        heads_n = _rehashed(tokens, True, heads_n, used_n + num_grams)
        self.arrays = Text(tokens, links_1, links_n, heads_1, heads_n)

    def _append(self, ids: IntArray) -> None:
        done, append = 0, _append if len(ids) < BULK else _append_bulk
        while (done := append(ids, done, self.arrays, self._meta)) < len(ids):
            self.reserve(len(ids) - done, 1)


def _grown(array: IntArray, capacity: int, held: int) -> IntArray:
    larger = np.empty(capacity, np.int32)
    larger[:held] = array[:held]
    return larger


def _rehashed(tokens: IntArray, is_n: bool, heads: IntArray, num_used: int) -> IntArray:
    """The table, doubled until so many slots are three quarters of it."""
    size = len(heads)
    while num_used > size * 3 // 4:
        size *= 2
    if size == len(heads):
        return heads
    larger = np.full(size, -1, np.int32)
    core.rehash(tokens, is_n, heads, larger)
    return larger
