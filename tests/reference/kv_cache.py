"""The ragged cache as lists."""

from __future__ import annotations


class RaggedLists:
    """The ragged cache as lists of entries: per row what is committed, and the last forward's entries."""

    def __init__(self, num_rows: int) -> None:
        self.committed: list[list[object]] = [[] for _ in range(num_rows)]
        self.fresh: list[list[object]] = [[] for _ in range(num_rows)]

    def update(self, entries: list[list[object]]) -> None:
        self.fresh = [list(row) for row in entries]

    def keep(self, row: int, places: list[int]) -> None:
        self.committed[row] += [self.fresh[row][place] for place in places]
        self.fresh[row] = []

    def select_rows(self, rows: list[int]) -> None:
        self.committed = [list(self.committed[row]) for row in rows]
        self.fresh = [[] for _ in rows]
