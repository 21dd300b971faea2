"""A session under the fixed rule."""

from __future__ import annotations

from reference.copies import find_copy
from reference.text import BARRIER, copy_on


class Session:
    """The session's rules: one arena, one pointer."""

    def __init__(self, prompt: list[int], prediction: list[int], window: int, limit: int) -> None:
        self.tokens = [*prediction, BARRIER, *prompt] if prediction else list(prompt)
        self.num_predicted = len(prediction)
        self.pointer = 0
        self.window, self.limit = window, limit

    def propose(self, room: int, max_draft: int, factor: float, min_len: int, max_len: int) -> dict[str, list[int]]:
        """Token ids, origins, match lengths and whether they come from the prediction."""
        position, n = find_copy(self.tokens, self.pointer, self.window, self.limit, min_len, max_len)
        if position < 0:
            return {"token_ids": [], "origin": [], "match_len": [], "predicted": []}
        copied = copy_on(self.tokens, position, min(room, max_draft, max(1, int(factor * n))))
        return {
            "token_ids": copied,
            "origin": [position + i for i in range(len(copied))],
            "match_len": [n] * len(copied),
            "predicted": [int(position < self.num_predicted)] * len(copied),
        }

    def commit(self, origin: list[int], path: list[int], new_ids: list[int]) -> None:
        """Append what was emitted; the pointer follows the accepted copy."""
        self.tokens += new_ids
        if path and origin[path[-1]] >= 0:
            self.pointer = origin[path[-1]] + 1
