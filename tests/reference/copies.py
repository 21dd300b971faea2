"""Where a text may be copied on from: by the fixed rule, and for the adaptive one with the evidence beside it."""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

from reference.text import BARRIER, LONG_GRAM, match_length

SINGLE, PAIR, MANY, CONTESTED, OUTVOTED = range(5)


class Run(NamedTuple):
    """A copy that was right so far: where it goes on, for how many tokens it was, what of a replacement is to come."""

    length: int
    at: int
    match: int
    left: int = 0
    back: int = 0


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


def find_copies(
    tokens: list[int], pointer: int, window: int, limit: int, min_len: int, max_len: int, room: int, run: Run
) -> list[tuple[int, int, int]]:
    """(position, match length, evidence) of the best place to copy from for each next token, best first."""
    cap = min(max_len, 32)
    length_at = {p: match_length(tokens, p, cap) for p in range(1, len(tokens)) if tokens[p] != BARRIER}
    going = run.at if run.length == len(tokens) and run.at in length_at and 0 < run.match >= min_len else -1
    seen_at = dict(length_at)
    if going >= 0:
        length_at[going] = min(run.match, cap)

    def whole_length(p: int) -> int:
        return max(match_length(tokens, p, max_len), min(run.match, max_len) if p == going else 0)

    def score(p: int) -> tuple[Fraction, int]:
        return Fraction(32 ** length_at[p], 1 + abs(p - pointer)), p

    def best_per_token(places: set[int]) -> list[int]:
        best: list[int] = []
        for p in sorted(places, key=score, reverse=True):
            if length_at[p] >= max(min_len, 1) and tokens[p] not in [tokens[q] for q in best]:
                best.append(p)
        return best[:room]

    near: set[int] = {going} - {-1}
    for distance in range(window + 1):
        best = best_per_token(near)
        if best and length_at[best[0]] == cap:
            break
        near |= {p for p in (pointer - distance, pointer + distance) if p in length_at}
    best = best_per_token(near)
    if best and length_at[best[0]] == cap:
        return [(best[0], whole_length(best[0]), SINGLE)]
    ends = [p for p in range(1, len(tokens)) if match_length(tokens, p, 1)]
    newest = [p for p in ends[-limit:] if p in length_at]
    long = [p for p in [p for p in ends if match_length(tokens, p, LONG_GRAM) == LONG_GRAM][-limit:] if p in length_at]
    found = []
    for p in best_per_token({*near, *newest, *long}):
        rivals = [q for q in (long if length_at[p] >= LONG_GRAM else newest) if q != p and seen_at[q] >= length_at[p]]
        same = 1 + sum(tokens[q] == tokens[p] for q in rivals)
        different = sum(tokens[q] != tokens[p] for q in rivals)
        if length_at[p] == 32 or (not different and same == 1):
            evidence = SINGLE
        elif not different:
            evidence = PAIR if same == 2 else MANY
        else:
            evidence = CONTESTED if same >= different else OUTVOTED
        found.append((p, whole_length(p) if length_at[p] == 32 else length_at[p], evidence))
    return found
