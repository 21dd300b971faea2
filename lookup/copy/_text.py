"""Kernels of the n-gram index: a token arena with two families of hash chains, newest first.

A ``Text`` is five int32 arrays, grown by their owner:
    tokens (capacity,)     the arena; BARRIER (-1) separates texts, never matches and is never drafted.
    links_1 (capacity,)    the last position before with the same token, links_n with the same ORDER tokens; -1: none.
                           A position's own links answer every query about the text that ends there, so searching needs
                           no hashing.
    heads_1, heads_n       open-addressing tables (power-of-two size, -1: free) from a token or an ORDER-gram to the
                           newest position where it ended. The key is not stored: it is read from the arena.
and a ``Meta`` of what is in them. Chains never hold a false match: equal keys share a slot, and different keys
never do.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from zerodraft.lookup.runtime._jit import Ints, Ints2D, ReadInts, Word, bulk_kernel, kernel, record

ORDER: Final = 4  # length of the long n-gram whose occurrences are chained
BARRIER: Final = -1
SCORE_CAP: Final = 32  # a longer match is no better evidence: nearness to the copy pointer decides
WINDOW: Final = 128  # every position this close to the copy pointer is considered
MAX_MATCH: Final = 4096  # no match is measured that is longer


@record
class Meta:
    """What is in the arrays of a text."""

    length: int  # tokens in the arena, barriers included
    used_1: int  # occupied slots of heads_1
    used_n: int
    run: int  # tokens since the last barrier


class Text(NamedTuple):
    """The arrays of one text, as the docstring of this file says."""

    tokens: Ints
    links_1: Ints
    links_n: Ints
    heads_1: Ints
    heads_n: Ints


# The hash functions are part of the file format of the memory: a change needs a new version there.
# Positions are used as unsigned numbers in the hot loops: numba then leaves out the test for Python's negative indices,
# and with the counters in local variables a build is several times faster.
U1: Final = np.uint64(1)
U2: Final = np.uint64(2)
U3: Final = np.uint64(3)
_U32: Final = np.uint64(32)
_MULTIPLIER: Final = np.uint64(0x9E3779B97F4A7C15)
_MIXER: Final = np.uint64(0xD6E8FEB86659FD93)


@kernel
def hash_1(tokens: ReadInts, last: Word) -> Word:
    """Hash of the token at ``last``."""
    return (np.uint64(tokens[last]) * _MULTIPLIER) >> _U32


@kernel
def hash_n(tokens: ReadInts, last: Word) -> Word:
    """Hash of the ORDER tokens that end at ``last``."""
    late = (np.uint64(tokens[last - U1]) << _U32) | np.uint64(tokens[last])
    early = (np.uint64(tokens[last - U3]) << _U32) | np.uint64(tokens[last - U2])
    key = (late * _MULTIPLIER) ^ (early * _MIXER)
    return ((key ^ (key >> _U32)) * _MULTIPLIER) >> _U32


@kernel
def same_n(tokens: ReadInts, a: Word, b: Word) -> bool:
    """True if the same ORDER tokens end at ``a`` and at ``b``."""
    differ = (tokens[a] ^ tokens[b]) | (tokens[a - U1] ^ tokens[b - U1])
    return bool((differ | (tokens[a - U2] ^ tokens[b - U2]) | (tokens[a - U3] ^ tokens[b - U3])) == 0)


@kernel
def extend(ids: ReadInts, start: int, text: Text, meta: Meta) -> int:
    """Append ``ids[start:]``; return how many of ``ids`` are in, fewer than all when an array must grow first."""
    tokens, links_1, links_n, heads_1, heads_n = text
    length, used_1, used_n, run = meta.length, meta.used_1, meta.used_n, meta.run
    max_used_1, max_used_n = len(heads_1) * 3 // 4, len(heads_n) * 3 // 4
    mask_1, mask_n = np.uint64(len(heads_1) - 1), np.uint64(len(heads_n) - 1)
    done = start
    end = min(len(ids), start + len(tokens) - length)
    while done < end and used_1 < max_used_1 and used_n < max_used_n:
        token = ids[done]
        done += 1
        at = np.uint64(length)
        length += 1
        tokens[at] = token
        links_1[at] = -1
        links_n[at] = -1
        if token < 0:
            run = 0
            continue
        run += 1

        slot = hash_1(tokens, at) & mask_1
        head = heads_1[slot]
        while head >= 0 and tokens[np.uint64(head)] != token:
            slot = (slot + U1) & mask_1
            head = heads_1[slot]
        used_1 += head < 0
        heads_1[slot] = at
        links_1[at] = head
        if run < ORDER:
            continue

        slot = hash_n(tokens, at) & mask_n
        head = heads_n[slot]
        while head >= 0 and not same_n(tokens, np.uint64(head), at):
            slot = (slot + U1) & mask_n
            head = heads_n[slot]
        used_n += head < 0
        heads_n[slot] = at
        links_n[at] = head
    meta.length, meta.used_1, meta.used_n, meta.run = length, used_1, used_n, run
    return done


@kernel
def append(ids: ReadInts, start: int, text: Text, metas: list[Meta]) -> int:
    """``extend`` for Python."""
    return extend(ids, start, text, metas[0])


@bulk_kernel
def append_bulk(ids: ReadInts, start: int, text: Text, metas: list[Meta]) -> int:
    """``append`` without the GIL, for long texts: other threads go on while a prompt is indexed."""
    return extend(ids, start, text, metas[0])


@kernel
def rehash(tokens: ReadInts, is_n: bool, old: ReadInts, new: Ints) -> None:
    """Move every head of ``old`` into the larger, empty table ``new``."""
    mask = np.uint64(len(new) - 1)
    for head in old:
        if head < 0:
            continue
        slot = (hash_n(tokens, np.uint64(head)) if is_n else hash_1(tokens, np.uint64(head))) & mask
        while new[slot] >= 0:
            slot = (slot + U1) & mask
        new[slot] = head


@kernel
def match_length(context: ReadInts, num_context: int, tokens: ReadInts, position: int, max_len: int) -> int:
    """Number of tokens before ``position`` that equal the last ones of a context, at most ``max_len``."""
    most = min(position, max_len, num_context)
    ours, theirs = np.uint64(num_context - 1), np.uint64(position - 1)
    for i in range(most):
        token = context[ours]
        if token < 0 or tokens[theirs] != token:
            return i
        ours -= U1
        theirs -= U1
    return most


@kernel
def beats(match_a: int, distance_a: int, position_a: int, match_b: int, distance_b: int, position_b: int) -> bool:
    """True if copying from a scores higher than from b, or the same and a is later; b at -1 is no candidate at all.

    The score is match - log2(1 + distance) / 5. It is compared in exact integers, by 32 ** match / (1 + distance).
    """
    lead = match_a - match_b
    if position_b < 0 or lead > 6:  # 32 ** 7 is more than any distance
        return True
    if lead < -6:
        return False
    cost_a, cost_b = 1 + distance_a, 1 + distance_b
    if lead >= 0:
        cost_b <<= 5 * lead
    else:
        cost_a <<= -5 * lead
    return cost_a < cost_b or (cost_a == cost_b and position_a > position_b)


@kernel
def list_matches(text: Text, length: int, limit: int, max_len: int, out: Ints2D) -> int:
    """Write the newest occurrences of the end of the text; return how many. See ``NgramIndex.match``."""
    tokens, found = text.tokens, 0
    for family in range(1, -1, -1):
        links = text.links_n if family else text.links_1
        last, seen = links[length - 1], 0
        while last >= 0 and seen < limit and found < limit:
            match = match_length(tokens, length, tokens, last + 1, max_len if family else ORDER)
            if tokens[last + 1] >= 0 and (family or match < ORDER):
                out[0, found], out[1, found] = last + 1, min(match, max_len)
                found += 1
            seen += 1 - family
            last = links[last]
    return found


@kernel
def same_end(tokens: ReadInts, a: int, b: int, order: int) -> bool:
    """True if the same ``order`` tokens end at ``a`` and at ``b``; the plain way, for the check."""
    for i in range(order):  # noqa: SIM110  (numba has no all())
        if tokens[a - i] != tokens[b - i]:
            return False
    return True


@kernel
def count_faults(text: Text, metas: list[Meta]) -> int:
    """Recount everything from the arena alone; return the number of contradictions."""
    faults, run, meta = 0, 0, metas[0]
    for at in range(meta.length):
        run = 0 if text.tokens[at] < 0 else run + 1
    faults += run != meta.run
    for family in range(2):
        links, order = (text.links_n, ORDER) if family else (text.links_1, 1)
        heads, known = (text.heads_n, meta.used_n) if family else (text.heads_1, meta.used_1)
        run, firsts, used = 0, 0, 0
        for at in range(meta.length):
            run, before = 0 if text.tokens[at] < 0 else run + 1, links[at]
            if run < order:
                faults += before != -1
                continue
            firsts += before < 0
            if before >= at or (before >= 0 and not same_end(text.tokens, before, at, order)):
                faults += 1
        for head in heads:
            used += head >= 0
            faults += head >= meta.length
        faults += (firsts != known) + (used != firsts)
    return int(faults)
