"""Kernels that learn what an edit puts in place of what: where a copy meets the same again, it may be replaced again.

A copy breaks at a site: its source goes on with old tokens, the text with new ones, and then both with the same. The
pair is kept. Copies that come to the old tokens once more are drafted both ways (``_policy_core.propose``), and what
came is counted (``_policy_core.learn``).

Array ``replaced`` int64 (NUM_ROWS, NUM_FIELDS), all zero for a new session:
    replaced[0]       the site that is watched until source and text agree again: SOURCE, where the copy broke, OUTPUT,
                      where the text went on (0: none); COUNT, how many replacements were ever kept, and FIRSTS, a bit
                      for each first token of theirs modulo 64.
    1 to NUM_KEPT     the kept ones, in a ring: where the old and the new tokens lie in the text, how many they are, and
                      how often a copy that met the old ones went on with the new ones (HITS) or the old ones (MISSES).
    AFTER, AFTER + 1  HITS and MISSES of all of them when their old tokens were met for the first time, after another
                      token than at the site and after the same.
Old and new tokens are at least one each, and the first ones differ.

The file imports no kernels of other files: numba's cache would not notice their changes.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
from numba import types

from zerodraft.lookup.runtime.jit import I64_2D, READ_I32, kernel

Ints = npt.NDArray[np.int32]
Longs = npt.NDArray[np.int64]

NUM_KEPT: Final = 16
AFTER: Final = NUM_KEPT + 1
NUM_ROWS: Final = NUM_KEPT + 3
OLD_AT, OLD_LEN, NEW_AT, NEW_LEN, HITS, MISSES, NUM_FIELDS = range(7)
SOURCE, OUTPUT, COUNT, FIRSTS = range(4)
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


@kernel(types.boolean(READ_I32, types.int64, types.int64, types.int64, types.int64))
def same(tokens: Ints, at: int, n: int, other_at: int, other_n: int) -> bool:
    """True if the text holds the same tokens in both places."""
    if n != other_n:
        return False
    i = 0
    while i < n and tokens[at + i] == tokens[other_at + i]:
        i += 1
    return i == n


@kernel(types.int64(READ_I32, types.int64, I64_2D, types.int64))
def find(tokens: Ints, length: int, replaced: Longs, position: int) -> int:
    """The row of the replacement for what the text holds at ``position``: the longest, among equals the first; or 0."""
    best = 0
    if position >= length or not (replaced[0, FIRSTS] >> (tokens[position] & 63)) & 1:
        return best
    for row in range(1, 1 + min(replaced[0, COUNT], NUM_KEPT)):
        at, n = replaced[row, OLD_AT], replaced[row, OLD_LEN]
        if tokens[at] != tokens[position] or replaced[row, MISSES] >= replaced[row, HITS] or position + n > length:
            continue
        if (best == 0 or n > replaced[best, OLD_LEN]) and same(tokens, at, n, position, n):
            best = row
    return best


@kernel(types.int64(READ_I32, I64_2D, types.int64, types.int64))
def after(tokens: Ints, replaced: Longs, row: int, position: int) -> int:
    """The row that counts the first repeat of this replacement at ``position``; 0 if it was met before."""
    if replaced[row, HITS] > 1 or replaced[row, MISSES]:
        return 0
    return AFTER + int(position > 0 and tokens[position - 1] == tokens[replaced[row, OLD_AT] - 1])


@kernel(types.float64(READ_I32, I64_2D, types.int64, types.int64))
def chance(tokens: Ints, replaced: Longs, row: int, position: int) -> float:
    """Probability that a replacement is made again at ``position``."""
    first = after(tokens, replaced, row, position)
    if first == 0:
        return float((replaced[row, HITS] - 0.5) / (replaced[row, HITS] + DOUBT * replaced[row, MISSES]))
    hits = replaced[first, HITS] + HITS_BEFORE[first - AFTER]
    return float(hits / (hits + replaced[first, MISSES] + MISSES_BEFORE[first - AFTER]))


@kernel(types.void(READ_I32, I64_2D, types.int64, types.int64, types.int64))
def count(tokens: Ints, replaced: Longs, row: int, position: int, field: int) -> None:
    """Add to the HITS or MISSES of a replacement that was met at ``position``."""
    first = after(tokens, replaced, row, position)
    if first:
        replaced[first, field] += 1
    replaced[row, field] += 1


@kernel(types.void(I64_2D, types.int64, types.int64))
def watch(replaced: Longs, source: int, output: int) -> None:
    """Remember a site at which a copy broke, unless an earlier one is still open."""
    if replaced[0, OUTPUT] == 0:
        replaced[0, SOURCE], replaced[0, OUTPUT] = source, output


@kernel(types.void(READ_I32, I64_2D, types.int64, types.int64, types.int64, types.int64))
def keep(tokens: Ints, replaced: Longs, old_at: int, old_len: int, new_at: int, new_len: int) -> None:
    """Count a replacement that is known, or write it over the one for the same old tokens, else over the oldest."""
    if old_len == 0 or new_len == 0:  # what is inserted or left out, together with the tokens behind it
        old_len, new_len = old_len + SYNC, new_len + SYNC
    if max(old_len, new_len) > MAX_LEN:
        return
    row, is_known = 1 + replaced[0, COUNT] % NUM_KEPT, False
    for other in range(1, 1 + min(replaced[0, COUNT], NUM_KEPT)):
        if same(tokens, replaced[other, OLD_AT], replaced[other, OLD_LEN], old_at, old_len):
            row, is_known = other, True
    if is_known and same(tokens, replaced[row, NEW_AT], replaced[row, NEW_LEN], new_at, new_len):
        replaced[row, HITS] += 1
        return
    if not is_known:
        replaced[0, COUNT] += 1
        replaced[0, FIRSTS] |= np.int64(1) << (tokens[old_at] & 63)
    replaced[row, OLD_AT], replaced[row, OLD_LEN] = old_at, old_len
    replaced[row, NEW_AT], replaced[row, NEW_LEN] = new_at, new_len
    replaced[row, HITS], replaced[row, MISSES] = 1, 0


@kernel(types.int64(READ_I32, types.int64, types.int64, I64_2D))
def close(tokens: Ints, before: int, length: int, replaced: Longs) -> int:
    """Look whether the watched site ends in ``tokens[before:length]``, which just came; keep the replacement if so.

    Returns where the copy goes on, if it does so right at the end of the text; else -1.
    """
    source, output = replaced[0, SOURCE], replaced[0, OUTPUT]
    if output == 0:
        return -1
    for end in range(max(before, output + SYNC - 1) + 1, length + 1):
        for there in range(source + SYNC, min(source + REACH, output) + 1):
            if tokens[there - 2] < 0 or tokens[there - 1] < 0:
                break  # a barrier
            if tokens[there - 1] == tokens[end - 1] and tokens[there - 2] == tokens[end - 2]:
                keep(tokens, replaced, source, there - SYNC - source, output, end - SYNC - output)
                replaced[0, OUTPUT] = 0
                return there if end == length else -1
    if length - output > PATIENCE:
        replaced[0, OUTPUT] = 0
    return -1
