"""Kernels that learn what an edit puts in place of what: where a copy meets the same again, it may be replaced again.

A copy breaks at a site: its source goes on with old tokens, the text with new ones, and then both with the same. The
pair is kept. Copies that come to the old tokens once more are drafted both ways (``_copies.write``), and what came is
counted (``_copies.learn``). Old and new tokens are at least one each, and the first ones differ.
"""

from __future__ import annotations

from typing import Annotated, Final

import numpy as np

from zerodraft.lookup.runtime._jit import Longs, ReadInts, kernel, record

NUM_KEPT: Final = 16
SYNC: Final = 2  # equal tokens that end a site
REACH: Final = 16  # tokens of the source within which it must end
PATIENCE: Final = 24  # and of the text
MAX_LEN: Final = 8  # longer replacements are not kept
MIN_RUN: Final = 4  # a copy that was right for fewer tokens than this has no sites
RESUMED: Final = 8  # a copy that goes on after a site is as good as one that was right for so many tokens
DOUBT: Final = 4.0  # what a miss weighs against a hit
# What is believed of first repeats before any was seen, in hits and misses: after another token, after the same.
HITS_BEFORE: Final = (0.6, 1.6)
MISSES_BEFORE: Final = (1.4, 0.4)


@record
class Kept:
    """A replacement."""

    old_at: int  # where the old tokens lie in the text, and how many they are
    old_len: int
    new_at: int
    new_len: int
    hits: int  # how often a copy that met the old ones went on with the new ones
    misses: int  # and with the old ones


@record
class Replaced:
    """What an edit replaced so far."""

    source: int  # the site that is watched until source and text agree again: where the copy broke
    output: int  # and where the text went on; 0: none is watched
    count: int  # replacements ever kept
    firsts: int  # a bit for each first old token of theirs, modulo 64
    kept: Annotated[list[Kept], Kept, (NUM_KEPT,)]  # a ring
    # Of all of them, when their old tokens were met for the first time: after another token than at the site,
    # and after the same.
    first_hits: Annotated[Longs, int, (2,)]
    first_misses: Annotated[Longs, int, (2,)]


@kernel
def same(tokens: ReadInts, at: int, n: int, other_at: int, other_n: int) -> bool:
    """True if the text holds the same tokens in both places."""
    if n != other_n:
        return False
    i = 0
    while i < n and tokens[at + i] == tokens[other_at + i]:
        i += 1
    return i == n


@kernel
def find(tokens: ReadInts, length: int, replaced: Replaced, position: int) -> int:
    """The number of the replacement for what the text holds at ``position``: the longest, then the first; or -1."""
    best, best_len = -1, 0
    if position >= length or not (replaced.firsts >> (tokens[position] & 63)) & 1:
        return best
    for number in range(min(replaced.count, NUM_KEPT)):
        one = replaced.kept[number]
        at, n = one.old_at, one.old_len
        if tokens[at] != tokens[position] or one.misses >= one.hits or position + n > length:
            continue
        if n > best_len and same(tokens, at, n, position, n):
            best, best_len = number, n
    return best


@kernel
def first_repeat(tokens: ReadInts, one: Kept, position: int) -> int:
    """Where the first repeat of a replacement is counted: 0 after another token, 1 after the same; -1: it is none."""
    if one.hits > 1 or one.misses:
        return -1
    return int(position > 0 and tokens[position - 1] == tokens[one.old_at - 1])


@kernel
def chance(tokens: ReadInts, replaced: Replaced, number: int, position: int) -> float:
    """Probability that a replacement is made again at ``position``."""
    one = replaced.kept[number]
    first = first_repeat(tokens, one, position)
    if first < 0:
        return float((one.hits - 0.5) / (one.hits + DOUBT * one.misses))
    hits = replaced.first_hits[first] + HITS_BEFORE[first]
    return float(hits / (hits + replaced.first_misses[first] + MISSES_BEFORE[first]))


@kernel
def count(tokens: ReadInts, replaced: Replaced, number: int, position: int, is_hit: bool) -> None:
    """Count that a replacement was met at ``position``, and made there or not."""
    one = replaced.kept[number]
    first = first_repeat(tokens, one, position)
    if first >= 0:
        replaced.first_hits[first] += is_hit
        replaced.first_misses[first] += not is_hit
    one.hits += is_hit
    one.misses += not is_hit


@kernel
def watch(replaced: Replaced, source: int, output: int) -> None:
    """Remember a site at which a copy broke, unless an earlier one is still open."""
    if replaced.output == 0:
        replaced.source, replaced.output = source, output


@kernel
def keep(tokens: ReadInts, replaced: Replaced, old_at: int, old_len: int, new_at: int, new_len: int) -> None:
    """Count a replacement that is known, or write it over the one for the same old tokens, else over the oldest."""
    if old_len == 0 or new_len == 0:  # what is inserted or left out, together with the tokens behind it
        old_len, new_len = old_len + SYNC, new_len + SYNC
    if max(old_len, new_len) > MAX_LEN:
        return
    number, is_known = replaced.count % NUM_KEPT, False
    for other in range(min(replaced.count, NUM_KEPT)):
        if same(tokens, replaced.kept[other].old_at, replaced.kept[other].old_len, old_at, old_len):
            number, is_known = other, True
    one = replaced.kept[number]
    if is_known and same(tokens, one.new_at, one.new_len, new_at, new_len):
        one.hits += 1
        return
    if not is_known:
        replaced.count += 1
        replaced.firsts |= np.int64(1) << (tokens[old_at] & 63)
    one.old_at, one.old_len, one.new_at, one.new_len = old_at, old_len, new_at, new_len
    one.hits, one.misses = 1, 0


@kernel
def close(tokens: ReadInts, before: int, length: int, replaced: Replaced) -> int:
    """Look whether the watched site ends in ``tokens[before:length]``, which just came; keep the replacement if so.

    Returns where the copy goes on, if it does so right at the end of the text; else -1.
    """
    source, output = replaced.source, replaced.output
    if output == 0:
        return -1
    for end in range(max(before, output + SYNC - 1) + 1, length + 1):
        for there in range(source + SYNC, min(source + REACH, output) + 1):
            if tokens[there - 2] < 0 or tokens[there - 1] < 0:
                break  # a barrier
            if tokens[there - 1] == tokens[end - 1] and tokens[there - 2] == tokens[end - 2]:
                keep(tokens, replaced, source, there - SYNC - source, output, end - SYNC - output)
                replaced.output = 0
                return there if end == length else -1
    if length - output > PATIENCE:
        replaced.output = 0
    return -1
