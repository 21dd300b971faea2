"""JacobiWindow: the two-dimensional window of Lookahead decoding, its nodes in a draft, and how it moves on."""

from __future__ import annotations

import random
from collections.abc import Sequence

from zerodraft.lookup.draft import IntArray
from zerodraft.lookup.lookahead.ngram_pool import Gram

Columns = list[int]  # node of the draft that each column's last level is; -1 is the root


class JacobiWindow:
    """W columns and up to N - 1 levels of guessed tokens. Level l of column k is a guess for the position k + l after
    the current token, which is column 0 of level 0; its ancestors are the columns 1 to k of level 0 and the levels
    below it in its column.

    The first N - 2 steps fill the levels; from then on each step yields an n-gram per column. Level 0 starts with
    random tokens of the prompt, the same ones every time.
    """

    def __init__(self, window_size: int, ngram_size: int, text: Sequence[int]) -> None:
        self._max_levels = ngram_size - 1
        self._rng = random.Random(len(text))
        self._text = text if len(text) else (0,)
        columns = window_size + self._max_levels - 1  # each filling step uses one column up
        self._levels: list[list[int]] = [[self._any() for _ in range(columns)]]

    @property
    def levels(self) -> list[list[int]]:
        """The tokens, by level and column; column 0 of level 0 is overwritten by the current token."""
        return self._levels

    @property
    def is_full(self) -> bool:
        """True when every step yields n-grams."""
        return len(self._levels) == self._max_levels

    def size(self, columns: int) -> int:
        """Number of nodes of so many columns."""
        return max(0, columns * len(self._levels) - 1)

    def num_columns(self, max_nodes: int, max_depth: int) -> int:
        """How many whole columns fit; 0: none."""
        num_levels = len(self._levels)
        width = min(len(level) for level in self._levels)
        return max(0, min(width, (max_nodes + 1) // num_levels, max_depth - num_levels + 2))

    def nodes(self, columns: int, first: int) -> tuple[list[int], list[int], Columns]:
        """The window as nodes of a draft, the first of them number ``first``: (token ids, parents, last level)."""
        ids = self._levels[0][1:columns]
        trunk = [-1, *range(first, first + columns - 1)]
        parents = trunk[:-1]
        above = trunk
        for level in self._levels[1:]:
            place = first + len(ids)
            ids += level[:columns]
            parents += above
            above = list(range(place, place + columns))
        return ids, parents, above

    def advance(self, current: int, last: Columns, best: IntArray) -> list[Gram]:
        """Take the target's likeliest tokens after the last level, move by one position, return the new n-grams.

        Args:
            current: the token that stood at the root.
            last: as ``nodes`` returned it.
            best: int32 (1 + nodes of the draft,), the likeliest token after the root and after every node.
        """
        self._levels[0][0] = current
        width = min(len(level) for level in self._levels)
        new = [int(best[node + 1]) for node in last]
        grams = [(*(level[k] for level in self._levels), token) for k, token in enumerate(new)]
        new += self._levels[-1][len(new) : width]  # columns left out of this forward keep a stale token
        if self.is_full:
            self._levels = [*self._levels[1:], new]
            return grams
        self._levels.append(new)
        for level in self._levels:
            del level[0]
        return []

    def _any(self) -> int:
        return self._text[self._rng.randrange(len(self._text))]
