"""The rows of a serving engine's batch."""

from __future__ import annotations


class EngineBatch:
    """A serving engine's batch as its proposer sees it: rows of one buffer that is never cleared.

    ``requests`` holds every request's text by number, ``order`` the request of every row. Requests enter, leave, swap
    and move; what a row held before stays in it behind the text that stands there now, as it does in the engine.
    """

    def __init__(self, max_rows: int, width: int) -> None:
        self.buffer = [[0] * width for _ in range(max_rows)]
        self.requests: dict[int, list[int]] = {}
        self.order: list[int] = []
        self.width = width

    def enter(self, number: int, text: list[int] | None = None) -> None:
        """A new request, or one that was out for a while, takes the next row."""
        if text is not None:
            self.requests[number] = list(text)
        self.order.append(number)
        self.write()

    def leave(self, row: int) -> None:
        """The request of a row goes; the last row moves into its place."""
        self.order[row] = self.order[-1]
        self.order.pop()
        self.write()

    def swap(self, a: int, b: int) -> None:
        self.order[a], self.order[b] = self.order[b], self.order[a]
        self.write()

    def sample(self, new: list[list[int]]) -> None:
        """Every row gets its new tokens."""
        for number, ids in zip(self.order, new):
            self.requests[number] += ids
        self.write()

    def write(self) -> None:
        for row, number in enumerate(self.order):
            text = self.requests[number]
            self.buffer[row][: len(text)] = text

    def lengths(self) -> list[int]:
        return [len(self.requests[number]) for number in self.order]
