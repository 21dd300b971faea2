"""The oracle: every rule of zerodraft once more, in plain Python, importing nothing of the code under test.

Slow and obvious on purpose. Tests compare the fast code with this file, never this file with itself.
"""

from __future__ import annotations

# ---- lookup: n-gram index, copy choice, session ----------------------------------------------------------------------

BARRIER = -1
LONG_GRAM = 4


def match_length(tokens: list[int], position: int, max_len: int) -> int:
    """How many tokens before ``position`` equal the end of the text, at most ``max_len``; a barrier equals nothing."""
    n = 0
    while n < min(position, max_len) and tokens[-1 - n] == tokens[position - 1 - n] and tokens[-1 - n] != BARRIER:
        n += 1
    return n


def matches(tokens: list[int], limit: int, max_len: int) -> list[tuple[int, int]]:
    """(position, match length) of the newest occurrences of the end of the text, long matches first."""
    places = [(p, match_length(tokens, p, 10**9)) for p in range(len(tokens) - 1, 0, -1)]
    places = [(p, n) for p, n in places if n >= 1]
    long = [(p, n) for p, n in places if n >= LONG_GRAM and tokens[p] != BARRIER]
    short = [(p, n) for p, n in places[:limit] if n < LONG_GRAM and tokens[p] != BARRIER]
    return [(p, min(n, max_len)) for p, n in (long + short)[:limit]]


def find_copy(
    tokens: list[int], pointer: int, window: int, limit: int, min_len: int, max_len: int, score_cap: int = 32
) -> tuple[int, int]:
    """The position to copy from and its match length; (-1, 0) if there is none."""
    from fractions import Fraction

    places = [(p, match_length(tokens, p, max_len)) for p in range(1, len(tokens))]
    places = [(p, n) for p, n in places if n >= 1]
    near = [p for p, _ in places if abs(p - pointer) <= window]
    newest = [p for p, _ in places][-limit:]
    long = [p for p in range(1, len(tokens)) if match_length(tokens, p, LONG_GRAM) == LONG_GRAM][-limit:]
    length_at = {p: match_length(tokens, p, max_len) for p in {*near, *newest, *long}}
    allowed = [p for p, n in length_at.items() if n >= min_len and tokens[p] != BARRIER]
    if not allowed:
        return -1, 0

    def score(p: int) -> tuple[Fraction, int]:
        return Fraction(32 ** min(length_at[p], score_cap), 1 + abs(p - pointer)), p

    best = max(allowed, key=score)
    return best, length_at[best]


def copy_on(tokens: list[int], position: int, length: int) -> list[int]:
    """``length`` tokens from ``position`` on, going on into the copy itself, ended by a barrier."""
    text = list(tokens)
    copied: list[int] = []
    while len(copied) < length and text[position + len(copied)] != BARRIER:
        copied.append(text[position + len(copied)])
        text.append(copied[-1])
    return copied


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
