"""TokenRecycler: what the target nearly said before, kept as a table of successors and drafted as a tree."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from zerodraft.lookup._block import NUM_ROWS
from zerodraft.lookup.checks import bounds, int_in, shown
from zerodraft.lookup.draft import MAX_TOKEN_ID, Draft, IntArray, Outcome
from zerodraft.lookup.recycle import _recycling_core as core
from zerodraft.lookup.runtime._jit import direct, dtype_of
from zerodraft.lookup.runtime.at_fork import TEXTS, held_at_fork

NUM_TOPK: Final = core.K
MAX_KEYS: Final = 1 << 22
MIN_PROB: Final = 0.002  # a node less likely than this is never drafted
MAX_READ: Final = 4096
MAX_COUNTED: Final = 256
_grow, _learn, _write = direct(core.grow), direct(core.learn), direct(core.write)
_read, _fill = direct(core.read), direct(core.fill)
_POSITION: Final = dtype_of(core.Position)
_FIRST_PLACES: Final = 1 << 10
# How often the next token stood at each rank of a list, by the classes of _recycling_core: lists of one token and of
# two by how often their head had stayed the same, then the rest. Each starts with the weight of _PRIOR_WEIGHT tokens.
_PRIOR_WEIGHT: Final = 24.0
_PRIORS: Final = (
    (0.36, 0.10, 0.06, 0.04, 0.03, 0.03, 0.02, 0.02),
    (0.45, 0.10, 0.06, 0.04, 0.03, 0.02, 0.02, 0.02),
    (0.55, 0.10, 0.05, 0.03, 0.03, 0.02, 0.02, 0.02),
    (0.70, 0.08, 0.04, 0.03, 0.02, 0.02, 0.01, 0.01),
    (0.55, 0.13, 0.06, 0.04, 0.03, 0.02, 0.02, 0.02),
    (0.65, 0.11, 0.05, 0.03, 0.02, 0.02, 0.01, 0.01),
    (0.75, 0.09, 0.04, 0.02, 0.02, 0.01, 0.01, 0.01),
    (0.85, 0.06, 0.02, 0.01, 0.01, 0.01, 0.01, 0.01),
    (0.06, 0.03, 0.02, 0.02, 0.01, 0.01, 0.01, 0.01),
    (0.10, 0.07, 0.05, 0.04, 0.03, 0.03, 0.02, 0.02),
    (0.03, 0.02, 0.02, 0.01, 0.01, 0.01, 0.01, 0.01),
)


class Lists(NamedTuple):
    """What a table holds: n lists by the time they were written, and how often each rank of each kind was right."""

    keys: npt.NDArray[np.int64]  # (n,)
    levels: npt.NDArray[np.int64]  # (n,)
    rows: IntArray  # (n, NUM_TOPK)
    counts: npt.NDArray[np.float64]  # (classes, NUM_TOPK + 1)


class TokenRecycler:
    """The target's top-k successors as last seen, after one token and after two, and how far they can be trusted.

    Fed with ``Outcome.topk`` of every computed position, rejected ones included: what the target would have said after
    a wrong token is often what it says when that token comes. A list is overwritten whenever its key is computed again.
    Probabilities start from shipped priors and follow the text. One object may be shared by sessions and threads.

    Source: Token Recycling (arXiv:2408.08696); its adjacency matrix is the one-token half of this table, its fixed tree
    is replaced by a best-first one.

    >>> recycler = TokenRecycler()
    >>> topk = np.array([[5, 9, 2, 3, 4, 6, 7, 8]], np.int32)
    >>> recycler.update((1, 4), Draft.empty(), Outcome(path=(), new_ids=(5,), stop="full", topk=topk))
    >>> recycler.propose((7, 4), 2).token_ids.tolist()
    [5, 9]
    """

    def __init__(self, max_keys: int = 1 << 17) -> None:
        """Make an empty table.

        Args:
            max_keys: upper bound on the number of lists kept, rounded down to a power of two, at least 4; the one
                written longest ago in its set makes room. Memory: 56 bytes for each, allocated as it fills.

        Raises:
            ValueError: max_keys outside [4, 2**22].
        """
        max_keys = int_in("max_keys", max_keys, core.WAYS, MAX_KEYS)
        self._max_places = 1 << (max_keys.bit_length() - 1)
        self._lock = held_at_fork(threading.Lock(), TEXTS)
        self._lists = _table(min(_FIRST_PLACES, self._max_places))
        prior = np.array([[*row, 1.0 - sum(row)] for row in _PRIORS])
        self._counts = prior * _PRIOR_WEIGHT
        self._came: Counter[int] = Counter()
        self._common = np.full(core.K, -1, np.int32)

    def __len__(self) -> int:
        """Number of lists held."""
        return int(self._lists.state[core.HELD])

    @property
    def nbytes(self) -> int:
        """Bytes of the table."""
        return sum(array.nbytes for array in self._lists[:-1])

    def successors(self, before: int, last: int) -> list[int]:
        """The list of two tokens, else of the second alone, likeliest first; [] where neither is known.

        ``before`` -1: no token there.
        """
        int_in("before", before, -1, MAX_TOKEN_ID)
        int_in("last", last, 0, MAX_TOKEN_ID)
        place = core.find(self._lists.keys, core.pair_key(before, last))
        if place < 0:
            place = core.find(self._lists.keys, last)
        return [] if place < 0 else [token for token in self._lists.rows[place].tolist() if token >= 0]

    def read(self, text: IntArray) -> None:
        """Store what follows what in a text, such as a prompt; its last ``MAX_READ`` tokens. Cost: O(tokens)."""
        text = np.ascontiguousarray(text[-MAX_READ:], np.int32)
        with self._lock:
            self._make_room(2 * len(text))
            _read(self._lists, text)

    def update(self, context: tuple[int, int], draft: Draft, outcome: Outcome) -> None:
        """Learn from a forward: the successors at every computed position, and which of the known ones came.

        Args:
            context: the last two tokens before the draft; -1 where there is none.
            draft, outcome: what was computed and what became of it; without ``outcome.topk`` nothing is stored.

        Raises:
            ValueError: a ``topk`` of another shape than (1 + len(draft), 8), or a path that is not in the draft.
        """
        topk, n = outcome.topk, len(draft)
        before, last = context
        if last < 0:
            return
        if topk is not None and topk.shape != (n + 1, core.K):
            raise ValueError(f"topk must have shape {(n + 1, core.K)}, got {topk.shape}")
        if outcome.path and not 0 <= min(outcome.path) <= max(outcome.path) < n:
            raise ValueError(f"path must hold nodes of the draft, in [0, {n - 1}], got {outcome.path}")
        with self._lock:
            came = np.array(outcome.new_ids, np.int32)
            _learn(self._lists, self._common, before, last, came, self._counts)
            self._count(outcome.new_ids)
            if topk is None:
                return
            self._make_room(2 * (n + 1))
            path = np.array(outcome.path, np.int64)
            ids, parents = np.ascontiguousarray(draft.token_ids), np.ascontiguousarray(draft.parents)
            _write(self._lists, before, last, ids, parents, path, np.ascontiguousarray(topk, np.int32))

    def propose(self, context: tuple[int, int], max_tokens: int, max_depth: int | None = None) -> Draft:
        """Draft the ``max_tokens`` likeliest nodes after two tokens, whatever they cost; -1: no token there."""
        max_tokens, max_depth = bounds(max_tokens, max_depth)
        if not isinstance(context, (tuple, list)) or len(context) != 2:
            raise ValueError(f"context must be the last two tokens, got {shown(context)}")
        before, last = (int_in("context", token, -1, MAX_TOKEN_ID) for token in context)
        depth = max_tokens if max_depth is None else max_depth
        block = np.empty((NUM_ROWS, max_tokens), np.int32)
        n = self.grow((before, last), block, 0, max_tokens, depth, 1.0, np.zeros(max_tokens + 2))
        return Draft.from_block(block[:, :n])

    def grow(
        self,
        context: tuple[int, int],
        tree: IntArray,
        num_held: int,
        max_new: int,
        max_depth: int,
        price: float,
        slopes: npt.NDArray[np.float64],
    ) -> int:
        """Hang recycled successors below the ``num_held`` nodes of a tree, as far as they can pay.

        Args:
            context: the last two tokens of the text, -1: none there.
            tree: int32 (NUM_ROWS, >= num_held + max_new), as in ``_block``.
            max_new, max_depth: upper bounds on the nodes that are added and on their depth.
            price: what one more accepted token saves, in forwards over one position.
            slopes: as in ``_prices.Tables``; at least ``max_new + 2``.

        Returns:
            The number of nodes then. Cost: O(nodes²), 64 nodes take some tens of microseconds.
        """
        before, last = context
        if last < 0:
            return num_held
        with self._lock:
            chances = self._counts[:, : core.K] / self._counts.sum(1, keepdims=True)
            known = core.Known(self._lists, self._common, chances)
            limits = core.Limits(max_new, max_depth, price, MIN_PROB, slopes)
            positions: Any = np.zeros(num_held + max_new + 1, _POSITION)
            return _grow(known, before, last, tree, num_held, limits, positions)

    def lists(self) -> Lists:
        """A copy of everything that is worth keeping."""
        with self._lock:
            return self._held()._replace(counts=self._counts.copy())

    @classmethod
    def from_lists(cls, lists: Lists, max_keys: int = 1 << 17) -> TokenRecycler:
        """A table that holds these; where it is too small, the ones written last.

        Raises:
            ValueError: lists that no table ever held, from wherever they come.
        """
        made = cls(max_keys)
        keys, levels, rows, counts = lists
        is_end = rows < 0
        is_sound = (keys >= 0).all() and ((levels >= 0) & (levels < core.NUM_LEVELS)).all() and (rows >= -1).all()
        if not is_sound or is_end[:, :1].any() or (is_end[:, :-1] & ~is_end[:, 1:]).any():
            raise ValueError("expected keys, levels and successors as a table writes them")
        if not (np.isfinite(counts) & (counts >= 0) & (counts <= core.COUNT_CAP)).all() or not counts.sum(1).all():
            raise ValueError("expected counts as a table keeps them")
        made._make_room(len(keys))
        long_keys, long_levels = (np.ascontiguousarray(numbers, np.int64) for numbers in (keys, levels))
        _fill(made._lists, long_keys, long_levels, np.ascontiguousarray(rows, np.int32))
        made._counts[:] = counts
        return made

    def check_integrity(self) -> None:
        """Recount everything; raise AssertionError where the table contradicts itself. Cost: one Python pass."""
        keys, levels = self._lists.keys, self._lists.levels
        held = np.flatnonzero(keys >= 0)
        assert len(held) == len(self) <= self._max_places
        assert len(set(keys[held].tolist())) == len(held)
        for place in held.tolist():
            start = core.home(keys, keys.item(place))
            assert start <= place < start + core.WAYS
            assert (keys[start:place] >= 0).all()
        assert (self._counts >= 0).all()
        assert ((levels >= 0) & (levels < core.NUM_LEVELS)).all()

    def _count(self, tokens: tuple[int, ...]) -> None:
        """Keep the tokens that came most often, among equals those that came first."""
        self._came.update(tokens)
        common = [token for token, _ in self._came.most_common(core.K)]
        self._common[: len(common)] = common
        if len(self._came) > MAX_COUNTED:
            halves: Any = {token: count * 0.5 for token, count in self._came.most_common(MAX_COUNTED // 2)}
            self._came = Counter(halves)

    def _make_room(self, num_new: int) -> None:
        """Double the table until it would be at most half full, or as large as it may be."""
        places = len(self._lists.keys)
        while 2 * (len(self) + num_new) > places < self._max_places:
            places *= 2
        if places > len(self._lists.keys):
            self._lists = _table(places, self._held())

    def _held(self) -> Lists:
        """All that is held, by the time it was written."""
        held = np.flatnonzero(self._lists.keys >= 0)
        held = held[np.argsort(self._lists.stamps[held])]
        return Lists(self._lists.keys[held], self._lists.levels[held], self._lists.rows[held], self._counts)


def _table(places: int, lists: Lists | None = None) -> core.Table:
    """A table of so many places that holds these lists, the ones written last if it is too small for all."""
    keys, stamps, levels, state = (
        np.full(places, -1, np.int64),
        *(np.zeros(n, np.int64) for n in (places, places, core.NUM_STATE)),
    )
    table = core.Table(keys, stamps, np.full((places, core.K), -1, np.int32), levels, state)
    if lists is not None:
        _fill(table, lists.keys, lists.levels, lists.rows)
    return table
