"""TokenRecycler: what the target nearly said before, kept as a table of successors and drafted as a tree."""

from __future__ import annotations

import heapq
import threading
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from zerodraft.lookup.checks import bounds, int_in, shown
from zerodraft.lookup.draft import BLOCK_ROWS, MAX_TOKEN_ID, Draft, IntArray, Outcome
from zerodraft.lookup.recycle import _recycling_core as core
from zerodraft.lookup.runtime.at_fork import TEXTS, held_at_fork

NUM_TOPK: Final = core.K
MAX_KEYS: Final = 1 << 22
SURE: Final = 0.9  # a copy whose first token is that likely is not filled up
MIN_PROB: Final = 0.002  # a node less likely than this is never drafted
MAX_READ: Final = 4096
MAX_COUNTED: Final = 256
NO_BLOCK: Final = np.empty((len(BLOCK_ROWS), 0), np.int32)
_FIRST_PLACES: Final = 1 << 10
_PACE_PRIOR: Final = (8.0, 4.0)  # tokens emitted, cost of their forwards: what a request starts with
_PACE_DECAY: Final = 0.95
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
        self._state = np.zeros(core.NUM_STATE, np.int64)
        self._allocate(min(_FIRST_PLACES, self._max_places))
        prior = np.array([[*row, 1.0 - sum(row)] for row in _PRIORS])
        self._counts = prior * _PRIOR_WEIGHT
        self._came: dict[int, float] = {}
        self._common = np.full(core.K, -1, np.int32)

    def __len__(self) -> int:
        """Number of lists held."""
        return int(self._state[core.HELD])

    @property
    def nbytes(self) -> int:
        """Bytes of the table."""
        return self._keys.nbytes + self._stamps.nbytes + self._rows.nbytes + self._levels.nbytes

    def successors(self, before: int, last: int) -> list[int]:
        """The list of two tokens, else of the second alone, likeliest first; [] where neither is known.

        ``before`` -1: no token there.
        """
        int_in("before", before, -1, MAX_TOKEN_ID)
        int_in("last", last, 0, MAX_TOKEN_ID)
        place = core.find(self._keys, core.pair_key(before, last))
        if place < 0:
            place = core.find(self._keys, last)
        return [] if place < 0 else [token for token in self._rows[place].tolist() if token >= 0]

    def read(self, text: IntArray) -> None:
        """Store what follows what in a text, such as a prompt; its last ``MAX_READ`` tokens. Cost: O(tokens)."""
        text = np.ascontiguousarray(text[-MAX_READ:], np.int32)
        with self._lock:
            self._make_room(2 * len(text))
            core.read(self._keys, self._stamps, self._rows, self._levels, self._state, text)

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
            core.learn(self._keys, self._rows, self._levels, self._common, before, last, came, self._counts)
            self._count(outcome.new_ids)
            if topk is None:
                return
            self._make_room(2 * (n + 1))
            core.write(
                self._keys,
                self._stamps,
                self._rows,
                self._levels,
                self._state,
                before,
                last,
                np.ascontiguousarray(draft.token_ids),
                np.ascontiguousarray(draft.parents),
                np.array(outcome.path, np.int64),
                np.ascontiguousarray(topk, np.int32),
                n,
            )

    def propose(self, context: tuple[int, int], max_tokens: int, max_depth: int | None = None) -> Draft:
        """Draft the ``max_tokens`` likeliest nodes after two tokens, whatever they cost; -1: no token there."""
        max_tokens, max_depth = bounds(max_tokens, max_depth)
        if not isinstance(context, (tuple, list)) or len(context) != 2:
            raise ValueError(f"context must be the last two tokens, got {shown(context)}")
        before, last = (int_in("context", token, -1, MAX_TOKEN_ID) for token in context)
        depth = max_tokens if max_depth is None else max_depth
        block, n = self.grow((before, last), NO_BLOCK, 0, max_tokens, depth, np.zeros(max_tokens + 2), 1.0)
        return Draft.from_block(block[:, :n]) if n else Draft.empty()

    def grow(
        self,
        context: tuple[int, int],
        held: IntArray,
        num_held: int,
        max_nodes: int,
        max_depth: int,
        costs: npt.NDArray[np.float64],
        price: float,
    ) -> tuple[IntArray, int]:
        """Fill up a draft with recycled successors, as far as they pay.

        Args:
            held, num_held: the draft so far, an int32 block as in ``draft.BLOCK_ROWS``; none of its nodes is deeper
                than ``max_depth``.
            max_nodes, max_depth: upper bounds; with fewer nodes than the draft has, its least likely ones are left out.
            costs: (>= max_nodes + 2,) cost of a forward by its number of positions.
            price: what one more accepted token saves, in forwards over one position.

        Returns:
            (block, number of nodes). Cost: O(nodes²), 64 nodes take some tens of microseconds.
        """
        max_nodes = min(max_nodes, len(costs) - 2)
        out = np.empty((len(BLOCK_ROWS), max(max_nodes, 0)), np.int32)
        before, last = context
        if last < 0 or max_nodes <= 0 or max_depth <= 0:
            return held, num_held
        with self._lock:
            chances = self._counts[:, : core.K] / self._counts.sum(1, keepdims=True)
            n = core.grow(
                self._keys,
                self._rows,
                self._levels,
                self._common,
                chances,
                before,
                last,
                held,
                num_held,
                max_nodes,
                max_depth,
                costs,
                price,
                MIN_PROB,
                out,
            )
        return out, n

    def lists(self) -> Lists:
        """A copy of everything that is worth keeping."""
        with self._lock:
            held = np.flatnonzero(self._keys >= 0)
            held = held[np.argsort(self._stamps[held])]
            return Lists(self._keys[held], self._levels[held], self._rows[held], self._counts.copy())

    @classmethod
    def from_lists(cls, lists: Lists, max_keys: int = 1 << 17) -> TokenRecycler:
        """A table that holds these; where it is too small, the ones written last.

        Raises:
            ValueError: lists that no table ever held, from wherever they come.
        """
        made = cls(max_keys)
        keys, levels, rows, counts = lists
        is_end = rows < 0
        if (
            (keys < 0).any()
            or ((levels < 0) | (levels >= core.NUM_LEVELS)).any()
            or (rows < -1).any()
            or is_end[:, :1].any()
            or (is_end[:, :-1] & ~is_end[:, 1:]).any()
        ):
            raise ValueError("expected keys, levels and successors as a table writes them")
        if not (np.isfinite(counts) & (counts >= 0) & (counts <= core.COUNT_CAP)).all() or not counts.sum(1).all():
            raise ValueError("expected counts as a table keeps them")
        made._make_room(len(keys))
        state, new = made._state, (made._keys, made._stamps, made._rows, made._levels)
        core.fill(
            *new,
            state,
            np.ascontiguousarray(keys, np.int64),
            np.ascontiguousarray(levels, np.int64),
            np.ascontiguousarray(rows, np.int32),
        )
        made._counts[:] = counts
        return made

    def source(self, prompt: IntArray) -> RecycledSource:
        """This table as a source of one session, with the session's prompt read into it."""
        return RecycledSource(self, prompt)

    def check_integrity(self) -> None:
        """Recount everything; raise AssertionError where the table contradicts itself. Cost: one Python pass."""
        held = np.flatnonzero(self._keys >= 0)
        assert len(held) == len(self) <= self._max_places
        assert len(set(self._keys[held].tolist())) == len(held)
        for place in held.tolist():
            start = core.home(self._keys, self._keys.item(place))
            assert start <= place < start + core.WAYS
            assert (self._keys[start:place] >= 0).all()
        assert (self._counts >= 0).all()
        assert ((self._levels >= 0) & (self._levels < core.NUM_LEVELS)).all()

    def _count(self, tokens: tuple[int, ...]) -> None:
        """Keep the tokens that came most often, among equals those that came first."""
        for token in tokens:
            self._came[token] = self._came.get(token, 0.0) + 1.0
        common = heapq.nlargest(core.K, self._came, key=self._came.__getitem__)
        self._common[: len(common)] = common
        if len(self._came) > MAX_COUNTED:
            kept = sorted(self._came, key=self._came.__getitem__, reverse=True)[: MAX_COUNTED // 2]
            self._came = {token: self._came[token] * 0.5 for token in kept}

    def _allocate(self, places: int) -> None:
        self._keys = np.full(places, -1, np.int64)
        self._stamps = np.zeros(places, np.int64)
        self._rows = np.full((places, core.K), -1, np.int32)
        self._levels = np.zeros(places, np.int64)

    def _make_room(self, num_new: int) -> None:
        """Double the table until it would be at most half full, or as large as it may be."""
        while 2 * (len(self) + num_new) > len(self._keys) < self._max_places:
            keys, stamps, rows, levels = self._keys, self._stamps, self._rows, self._levels
            self._allocate(2 * len(keys))
            core.move(keys, stamps, rows, levels, self._keys, self._stamps, self._rows, self._levels)


class RecycledSource:
    """One session's view of a recycler: fills up its drafts, and keeps the pace that says what a token is worth."""

    __slots__ = ("_cost", "_recycler", "_tokens")
    num_topk: Final = core.K

    def __init__(self, recycler: TokenRecycler, prompt: IntArray) -> None:
        self._recycler = recycler
        recycler.read(prompt)
        self._tokens, self._cost = _PACE_PRIOR

    def merge(
        self,
        own: IntArray,
        num_own: int,
        context: IntArray,
        room: int,
        max_depth: int,
        costs: npt.NDArray[np.float64] | None,
    ) -> tuple[IntArray, int]:
        """Fill up the session's draft with recycled successors, unless it is sure by itself.

        Args:
            own: int32 (len(BLOCK_ROWS), >= num_own), the draft so far.
            context: int32 (n,), the end of the text.
            room, max_depth: upper bounds on nodes and depth.
            costs: cost of a forward by its number of positions; None: nothing has to pay.

        Returns:
            (block, number of nodes).
        """
        if num_own and own[core.ROW_PROB].view(np.float32)[0] >= SURE:
            return own, num_own
        price = self._cost / max(self._tokens, self._cost)
        if costs is None:
            costs = np.zeros(room + 2)
        return self._recycler.grow(_last_two(context), own, num_own, room, max_depth, costs, price)

    def learn(self, context: IntArray, draft: Draft, outcome: Outcome, costs: npt.NDArray[np.float64] | None) -> None:
        """Store what the target said; ``context`` is the end of the text before it."""
        self._recycler.update(_last_two(context), draft, outcome)
        num_positions = 1 + len(draft)
        cost = 1.0 if costs is None else float(costs[min(num_positions, len(costs) - 1)])
        self._tokens = _PACE_DECAY * self._tokens + len(outcome.new_ids)
        self._cost = _PACE_DECAY * self._cost + cost


def _last_two(context: IntArray) -> tuple[int, int]:
    n = len(context)
    return (context.item(n - 2) if n > 1 else -1), (context.item(n - 1) if n else -1)
