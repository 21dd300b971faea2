"""Which lines of a text became which: an alignment that is never quadratic, and the unified diff made of it."""

from __future__ import annotations

import bisect
import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from typing import Final, NamedTuple

_CONTEXT: Final = 3  # lines around a change, as in every unified diff
_MOST_CELLS: Final = 1 << 16  # a gap of so many pairs of lines is left to difflib, whose cost grows with them


class Piece(NamedTuple):
    """Lines [old_start, old_end) of the old text that are the new one's [new_start, new_end), or became them."""

    is_same: bool
    old_start: int
    old_end: int
    new_start: int
    new_end: int


def align(old: Sequence[str], new: Sequence[str]) -> list[Piece]:
    """Return the pieces of two texts in order, those that are the same and those that are not in turn.

    Lines that stand once in both texts are matched first, in the longest run that keeps their order (patience diff of
    Bram Cohen); what is between them is matched by difflib where it is small, and line by line where it is large.
    Cost: n log n for n lines, and what difflib takes for gaps of at most 256 by 256 lines.

    >>> [tuple(piece) for piece in align(["a", "b", "c"], ["a", "x", "c"])]
    [(True, 0, 1, 0, 1), (False, 1, 2, 1, 2), (True, 2, 3, 2, 3)]
    """
    pieces: list[Piece] = []
    at_old = at_new = 0
    for i, j, size in _runs(old, new):
        if i > at_old or j > at_new:
            pieces.append(Piece(False, at_old, i, at_new, j))
        if size:
            pieces.append(Piece(True, i, i + size, j, j + size))
        at_old, at_new = i + size, j + size
    return pieces


def _runs(old: Sequence[str], new: Sequence[str]) -> Iterator[tuple[int, int, int]]:
    """(start in old, start in new, length) of matching runs in order, neighbours joined; at last the ends and 0."""
    start_old = start_new = size = 0
    for i, j in _pairs(old, new):
        if size and (i, j) == (start_old + size, start_new + size):
            size += 1
            continue
        if size:
            yield start_old, start_new, size
        start_old, start_new, size = i, j, 1
    if size:
        yield start_old, start_new, size
    yield len(old), len(new), 0


def _pairs(old: Sequence[str], new: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Matching lines, both numbers rising. A stack of gaps in the place of recursion: texts may be long."""
    gaps = [(0, len(old), 0, len(new))]
    while gaps:
        a, b, c, d = gaps.pop()
        while a < b and c < d and old[a] == new[c]:
            yield a, c
            a, c = a + 1, c + 1
        tail = 0
        while b > a and d > c and old[b - 1] == new[d - 1]:
            b, d, tail = b - 1, d - 1, tail + 1
        if tail:
            gaps.append((b, b + tail, d, d + tail))
        if a == b or c == d:
            continue
        anchors = _unique_in_both(old, new, a, b, c, d)
        if anchors:
            bounds = [(a, c), *anchors, (b, d)]
            inner = [(i, i2, j, j2) for (i, j), (i2, j2) in itertools.pairwise(bounds)]
            gaps += reversed(inner)  # each but the first begins with an anchor, which matches at once
        elif (b - a) * (d - c) <= _MOST_CELLS:
            for i, j, size in SequenceMatcher(None, old[a:b], new[c:d], autojunk=False).get_matching_blocks():
                yield from ((a + i + k, c + j + k) for k in range(size))
        else:
            yield from ((a + k, c + k) for k in range(min(b - a, d - c)) if old[a + k] == new[c + k])


def _unique_in_both(old: Sequence[str], new: Sequence[str], a: int, b: int, c: int, d: int) -> list[tuple[int, int]]:
    """Lines that stand once in each part, the most that keep their order (the longest increasing subsequence)."""
    times_old, times_new = Counter(old[a:b]), Counter(new[c:d])
    where = {new[j]: j for j in range(c, d) if times_new[new[j]] == 1}
    pairs = [(i, where[old[i]]) for i in range(a, b) if times_old[old[i]] == 1 and old[i] in where]
    ends: list[int] = []  # ends[k]: the least last j of a run of k + 1 pairs
    at_end: list[int] = []  # the pair that stands there
    before: list[int] = []
    for number, (_, j) in enumerate(pairs):
        k = bisect.bisect_left(ends, j)
        before.append(at_end[k - 1] if k else -1)
        if k == len(ends):
            ends.append(j)
            at_end.append(number)
        else:
            ends[k], at_end[k] = j, number
    chain, number = [], at_end[-1] if at_end else -1
    while number >= 0:
        chain.append(pairs[number])
        number = before[number]
    return chain[::-1]


def split_lines(text: str) -> list[str]:
    """Split at line feeds only, ends kept; ``str.splitlines`` would also split at form feeds and their like."""
    lines = text.split("\n")
    return [f"{line}\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])


def unified_diff(old: str, new: str, old_name: str, new_name: str) -> str:
    """Return the difference of two texts as ``diff -u`` writes it, empty if there is none."""
    before, after = split_lines(old), split_lines(new)
    parts = [_hunk(before, after, hunk) for hunk in _hunks(align(before, after))]
    return "".join([f"--- {old_name}\n+++ {new_name}\n", *parts]) if parts else ""


def _hunks(pieces: list[Piece]) -> Iterator[list[Piece]]:
    """Changes with the lines around them; those that are near each other stand in one hunk."""
    hunk: list[Piece] = []
    for at, piece in enumerate(pieces):
        size = piece.old_end - piece.old_start
        if not piece.is_same or (hunk and at < len(pieces) - 1 and size <= 2 * _CONTEXT):
            hunk.append(piece)
        else:
            if hunk:
                end = min(size, _CONTEXT)
                yield [
                    *hunk,
                    Piece(True, piece.old_start, piece.old_start + end, piece.new_start, piece.new_start + end),
                ]
            start = min(size, _CONTEXT)
            hunk = []
            if at < len(pieces) - 1:
                hunk = [Piece(True, piece.old_end - start, piece.old_end, piece.new_end - start, piece.new_end)]
    if any(not piece.is_same for piece in hunk):
        yield hunk


def _hunk(old: list[str], new: list[str], pieces: list[Piece]) -> str:
    first, last = pieces[0], pieces[-1]
    ranges = _range(first.old_start, last.old_end), _range(first.new_start, last.new_end)
    lines = [f"@@ -{ranges[0]} +{ranges[1]} @@\n"]
    for piece in pieces:
        if piece.is_same:
            lines += [f" {line}" for line in old[piece.old_start : piece.old_end]]
        else:
            lines += [f"-{line}" for line in old[piece.old_start : piece.old_end]]
            lines += [f"+{line}" for line in new[piece.new_start : piece.new_end]]
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def _range(start: int, end: int) -> str:
    """A range of lines in a hunk's head: the first and how many; an empty one names the line before it."""
    size = end - start
    return str(start + 1) if size == 1 else f"{start + 1 if size else start},{size}"
