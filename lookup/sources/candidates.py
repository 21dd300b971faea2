"""Candidates: what the sources of one session propose at one step, on its way to the merge."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from zerodraft.lookup import _merge as core
from zerodraft.lookup._block import (
    CUSTOM,
    MATCH,
    NUM_ROWS,
    ORIGIN,
    PARENT,
    PRICE,
    PROB,
    SOURCE,
    SOURCE_NAMES,
    TOKEN,
    WINDOW,
)
from zerodraft.lookup._merge import Parts
from zerodraft.lookup._prices import Tables
from zerodraft.lookup.checks import int_in, number_in, shown
from zerodraft.lookup.draft import MAX_TOKEN_ID, Draft, IntArray, as_token_ids
from zerodraft.lookup.runtime._jit import direct

Numbers = Sequence[float] | npt.NDArray[np.floating]
MAX_PARTS: Final = 64  # proposals of one step
_join, _pick = direct(core.join), direct(core.pick)
_FLOAT32: Final = np.dtype(np.float32)


class Candidates:
    """The proposals of one step: sources add to them, the session merges them.

    Attributes:
        text: int32 (n,), the session's text so far: prediction, a barrier (-1), prompt, output. Valid during the step.
        max_nodes, max_depth: upper bounds on the nodes of the draft and on their depth.
        price: what an accepted token is worth where nothing else is known: what the last tokens of this request cost
            each, in forwards over one position; at most 1.
        tables: what forwards cost (``costs[r]``: over r positions), and what copies are believed to be worth.
        tree: int32 (NUM_ROWS, capacity), once all have proposed: one tree of all proposals, in its first ``num_nodes``
            columns, with room for ``max_nodes`` more.
    """

    def __init__(self, text: IntArray, max_nodes: int, max_depth: int, price: float, tables: Tables) -> None:
        self.text, self.max_nodes, self.max_depth, self.price, self.tables = text, max_nodes, max_depth, price, tables
        self.tree, self.num_nodes = np.empty((NUM_ROWS, 0), np.int32), 0
        self._proposed: list[IntArray] = []
        self._ends = np.zeros(MAX_PARTS + 1, np.int64)  # of the parts of the tree
        self._num_parts = 0
        self.cost = 0.0  # of all sources
        self._riders: tuple[Sequence[int], Sequence[int], float] = (), (), 0.0

    @property
    def num_parts(self) -> int:
        """Proposals so far."""
        return len(self._proposed)

    @property
    def first_prob(self) -> float:
        """Probability of the tree's first token, 0 where there is none."""
        return float(self.tree[PROB].view(_FLOAT32)[0]) if self.num_nodes else 0.0

    def add(
        self,
        token_ids: Sequence[int] | npt.NDArray[np.integer],
        parents: Sequence[int] | npt.NDArray[np.integer] | None = None,
        *,
        probs: Numbers,
        prices: Numbers | float | None = None,
        match_len: int = 0,
        source: int = CUSTOM,
        cost: float = 0.0,
    ) -> None:
        """Propose nodes, in the order in which they are to be taken: parents first, worth falling.

        Args:
            token_ids: (n,) ids.
            parents: (n,) as in a ``Draft``; None: a chain.
            probs: (n,) probability that each node is reached and right, never above its parent's.
            prices: (n,) forwards that are saved by having a node's token, or one number for all; None: ``price``.
            match_len: length of the match that is continued, if there is one.
            source: one of ``draft.SOURCE_NAMES`` by number.
            cost: what proposing them took, in forwards over one position, where that is worth saying: it counts as a
                part of what the request's tokens cost.

        Nodes deeper than ``max_depth`` are left out.

        Raises:
            ValueError: ids that are none, arrays of other lengths than ``token_ids``, what is no tree, or numbers that
                are no probabilities or prices.
        """
        ids = as_token_ids(token_ids, "token_ids")
        self.cost += number_in("cost", cost, 0.0)
        part = np.empty((NUM_ROWS, len(ids)), np.int32)
        up = part[PARENT]
        up[:] = np.arange(-1, len(ids) - 1) if parents is None else Draft.tree(ids, parents).parents
        part[TOKEN], part[ORIGIN] = ids, -1
        part[MATCH] = int_in("match_len", match_len, 0, MAX_TOKEN_ID)
        part[SOURCE] = int_in("source", source, 0, len(SOURCE_NAMES) - 1)
        chances = part[PROB].view(_FLOAT32)
        chances[:] = _numbers("probs", probs, len(ids))
        if (chances > np.where(up >= 0, chances[up], 1.0)).any():
            raise ValueError(f"probs must be at most 1 and never above the parent's, got {shown(chances.tolist())}")
        part[PRICE].view(_FLOAT32)[:] = self.price if prices is None else _numbers("prices", prices, len(ids))
        self.add_part(_within(part, self.max_depth) if len(ids) > self.max_depth else part)

    def add_part(self, part: IntArray) -> None:
        """``add`` for a block, int32 (NUM_ROWS, n), that is made as it should be."""
        if part.shape[1] and len(self._proposed) < MAX_PARTS - 2:
            self._proposed.append(part)

    def ride_along(self, token_ids: Sequence[int], parents: Sequence[int], worth: float) -> None:
        """Have nodes computed behind the draft that are never accepted: all of them, if they cost at most ``worth``.

        ``parents`` count from 0 at the first of them; -1 is the root.
        """
        self._riders = token_ids, parents, worth

    def parts(self, num_nodes: int) -> Parts:
        """All that was proposed side by side, ``num_parts`` parts, with room for ``num_nodes`` nodes more.

        Parents are counted over the whole block then.
        """
        ends = np.zeros(MAX_PARTS, np.int64)
        np.cumsum([part.shape[1] for part in self._proposed], out=ends[: self.num_parts])
        total = int(ends[self.num_parts - 1]) if self.num_parts else 0
        block = np.empty((NUM_ROWS, total + num_nodes), np.int32)
        for part, end in zip(self._proposed, ends.tolist()):
            first = end - part.shape[1]
            block[:, first:end] = part
            block[PARENT, first:end] += np.where(part[PARENT] >= 0, first, 0)
        return Parts(block, ends)

    def join(self, parts: Parts, num_parts: int) -> None:
        """Make ``tree`` of the first ``num_parts`` parts."""
        total = int(parts.ends[num_parts - 1]) if num_parts else 0
        self.tree = np.empty((NUM_ROWS, total + self.max_nodes), np.int32)
        self.num_nodes = _join(parts, num_parts, Parts(self.tree, self._ends)) if num_parts else 0
        self._num_parts = num_parts

    def grown(self, num_nodes: int) -> None:
        """The tree has so many nodes now: the new ones are a part of their own, in the order to take them."""
        if num_nodes > self.num_nodes:
            self._ends[self._num_parts] = self.num_nodes = num_nodes
            self._num_parts += 1

    def picked(self, states: Any, most: int) -> tuple[IntArray, int]:
        """The nodes that pay, ``most`` of them at most: (block, number of nodes)."""
        room = max(0, min(most, len(self.tables.costs) - 2))
        block, n = np.empty((NUM_ROWS, room), np.int32), 0
        if self.num_nodes:
            n = _pick(Parts(self.tree, self._ends), self._num_parts, room, self.tables.costs, states, block)
        return block, n

    def draft(self, states: Any) -> Draft:
        """The nodes that pay, and behind them those that ride along."""
        ids, parents, worth = self._riders
        block, n = self.picked(states, self.max_nodes - len(ids))
        draft, costs = Draft.from_block(block[:, :n]), self.tables.costs
        if not ids or costs[1 + n + len(ids)] - costs[1 + n] > worth:
            return draft
        return _with_riders(draft, ids, [parent + n if parent >= 0 else -1 for parent in parents])


def _numbers(name: str, given: Numbers | float, n: int) -> npt.NDArray[np.float32]:
    """One number or n of them, none below 0, or a ValueError."""
    try:
        numbers = np.asarray(given, _FLOAT32)
    except (TypeError, ValueError):
        raise ValueError(f"{name} must be numbers, got {shown(given)}") from None
    if numbers.shape not in ((), (n,)) or not np.isfinite(numbers).all() or (numbers < 0).any():
        raise ValueError(f"{name} must be one or {n} numbers, at least 0, got {shown(numbers.tolist())}")
    return numbers


def _within(part: IntArray, max_depth: int) -> IntArray:
    """A part without its nodes deeper than ``max_depth``."""
    depths: list[int] = []
    for parent in part[PARENT].tolist():
        depths.append(depths[parent] + 1 if parent >= 0 else 1)
    kept = np.array(depths) <= max_depth
    place = np.cumsum(kept, dtype=np.int32) - 1
    part = part[:, kept]
    part[PARENT] = np.where(part[PARENT] >= 0, place[part[PARENT]], -1)
    return part


def _with_riders(draft: Draft, ids: Sequence[int], parents: Sequence[int]) -> Draft:
    """The draft with these nodes behind its own, not to be verified."""
    n, count = len(draft), len(ids)
    block = np.zeros((NUM_ROWS, n + count), np.int32)
    block[TOKEN], block[PARENT] = (*draft.token_ids, *ids), (*draft.parents, *parents)
    block[PROB, :n], block[MATCH, :n] = draft.probs.view(np.int32), draft.match_len
    block[ORIGIN], block[SOURCE] = -1, WINDOW
    block[ORIGIN, :n], block[SOURCE, :n] = draft.origin, draft.source
    return dataclasses.replace(Draft.from_block(block), verify=np.arange(n + count) < n)
