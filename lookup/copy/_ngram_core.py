"""Kernels of the n-gram index: a token arena with two families of hash chains, newest first.

Arrays (int32, grown by the owner):
    tokens (capacity,)     the arena; BARRIER (-1) separates texts, never matches and is never drafted.
    links (2, capacity)    links[0, i]: the last position before i with the same token; links[1, i]: the last position
                           before i where the same ORDER tokens ended; -1: none. A position's own links answer every
                           query about the text that ends there, so searching needs no hashing.
    heads_1, heads_n       open-addressing tables (power-of-two size, -1: free) from a token or an ORDER-gram to the
                           newest position where it ended. The key is not stored: it is read from the arena.
    meta int64 (4,)        LENGTH, USED_1, USED_N (occupied slots), RUN (tokens since the last barrier).

Chains never hold a false match: equal keys share a slot, and different keys never do.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
from numba import types

from zerodraft.lookup.runtime.jit import I32, I32_2D, I64, READ_I32, READ_I32_2D, kernel

Ints = npt.NDArray[np.int32]
Longs = npt.NDArray[np.int64]
READ_I64: Final = types.Array(types.int64, 1, "C", readonly=True)
READ_U8: Final = types.Array(types.uint8, 1, "C", readonly=True)

ORDER: Final = 4  # length of the long n-gram whose occurrences are chained
BARRIER: Final = -1
MAX_PROBES: Final = 4096  # looking up a key in a stranger's table ends; three quarters full, none needs so many
FAR: Final = 1 << 20  # the distance of everything where there is no copy pointer
SCORE_CAP: Final = 32  # a longer match is no better evidence: nearness to the copy pointer decides
LENGTH, USED_1, USED_N, RUN = 0, 1, 2, 3
ROW_TOKEN, ROW_PARENT, ROW_PROB, ROW_MATCH, ROW_ORIGIN, ROW_SOURCE = 0, 1, 2, 3, 4, 5  # draft.BLOCK_ROWS

# The hash functions are part of the file format of the memory: a change needs a new version there.
# Positions are used as unsigned numbers in the hot loops: numba then leaves out the test for Python's negative indices,
# and with the counters in local variables a build is several times faster.
U1: Final = np.uint64(1)
U2: Final = np.uint64(2)
U3: Final = np.uint64(3)
_U32: Final = np.uint64(32)
_MULTIPLIER: Final = np.uint64(0x9E3779B97F4A7C15)
_MIXER: Final = np.uint64(0xD6E8FEB86659FD93)


@kernel(types.uint64(READ_I32, types.uint64))
def hash_1(tokens: Ints, last: Any) -> Any:
    """Hash of the token at ``last``."""
    return (np.uint64(tokens[last]) * _MULTIPLIER) >> _U32


@kernel(types.uint64(READ_I32, types.uint64))
def hash_n(tokens: Ints, last: Any) -> Any:
    """Hash of the ORDER tokens that end at ``last``."""
    late = (np.uint64(tokens[last - U1]) << _U32) | np.uint64(tokens[last])
    early = (np.uint64(tokens[last - U3]) << _U32) | np.uint64(tokens[last - U2])
    key = (late * _MULTIPLIER) ^ (early * _MIXER)
    return ((key ^ (key >> _U32)) * _MULTIPLIER) >> _U32


@kernel(types.boolean(READ_I32, types.uint64, types.uint64))
def same_n(tokens: Ints, a: Any, b: Any) -> bool:
    """True if the same ORDER tokens end at ``a`` and at ``b``."""
    differ = (tokens[a] ^ tokens[b]) | (tokens[a - U1] ^ tokens[b - U1])
    return bool((differ | (tokens[a - U2] ^ tokens[b - U2]) | (tokens[a - U3] ^ tokens[b - U3])) == 0)


@kernel(types.int64(READ_I32, types.int64, I32, I32_2D, I32, I32, I64))
def extend(
    ids: Ints, start: int, tokens: Ints, links: Ints, heads_1: Ints, heads_n: Ints, meta: npt.NDArray[np.int64]
) -> int:
    """Append ``ids[start:]``; return how many of ``ids`` are in, fewer than all when an array must grow first."""
    length, used_1, used_n, run = meta[LENGTH], meta[USED_1], meta[USED_N], meta[RUN]
    max_used_1, max_used_n = len(heads_1) * 3 // 4, len(heads_n) * 3 // 4
    mask_1, mask_n = np.uint64(len(heads_1) - 1), np.uint64(len(heads_n) - 1)
    links_1, links_n = links[0], links[1]
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
    meta[LENGTH], meta[USED_1], meta[USED_N], meta[RUN] = length, used_1, used_n, run
    return done


@kernel(types.int64(READ_I32, types.int64, I32, I32_2D, I32, I32, I64), nogil=True)
def extend_bulk(
    ids: Ints, start: int, tokens: Ints, links: Ints, heads_1: Ints, heads_n: Ints, meta: npt.NDArray[np.int64]
) -> int:
    """``extend`` without the GIL, for long texts: other threads go on while a prompt is indexed."""
    return extend(ids, start, tokens, links, heads_1, heads_n, meta)


@kernel(types.void(READ_I32, types.boolean, READ_I32, I32))
def rehash(tokens: Ints, is_n: bool, old: Ints, new: Ints) -> None:
    """Move every head of ``old`` into the larger, empty table ``new``."""
    mask = np.uint64(len(new) - 1)
    for head in old:
        if head < 0:
            continue
        slot = (hash_n(tokens, np.uint64(head)) if is_n else hash_1(tokens, np.uint64(head))) & mask
        while new[slot] >= 0:
            slot = (slot + U1) & mask
        new[slot] = head


@kernel(types.int64(READ_I32, types.int64, types.int64, types.int64))
def match_length(tokens: Ints, length: int, position: int, max_len: int) -> int:
    """Number of tokens before ``position`` that equal the last ones of the text, at most ``max_len``."""
    most = min(position, max_len)
    ours, theirs = np.uint64(length - 1), np.uint64(position - 1)
    for i in range(most):
        token = tokens[ours]
        if token < 0 or tokens[theirs] != token:
            return i
        ours -= U1
        theirs -= U1
    return most


@kernel(types.int64(READ_I32, types.int64, READ_I32, types.int64, types.int64))
def common_suffix(context: Ints, num_context: int, tokens: Ints, position: int, max_len: int) -> int:
    """As ``match_length``, for the end of a text that is not in the arena and holds no barrier."""
    most = min(position, max_len, num_context)
    ours, theirs = np.uint64(num_context - 1), np.uint64(position - 1)
    for i in range(most):
        if tokens[theirs] != context[ours]:
            return i
        ours -= U1
        theirs -= U1
    return most


@kernel(types.boolean(*[types.int64] * 6))
def beats(match_a: int, distance_a: int, position_a: int, match_b: int, distance_b: int, position_b: int) -> bool:
    """True if copying from a scores higher than from b, or the same and a is later; b at -1 is no candidate at all.

    The score is match - log2(1 + distance) / 5. It is compared in exact integers, by 32 ** match / (1 + distance).
    """
    lead = match_a - match_b
    if position_b < 0 or lead > 6:  # 32 ** 7 is more than any distance
        return True
    if lead < -6:
        return False
    cost_a = (1 + distance_a) << (5 * max(-lead, 0))
    cost_b = (1 + distance_b) << (5 * max(lead, 0))
    return cost_a < cost_b or (cost_a == cost_b and position_a > position_b)


@kernel(types.int64(READ_I32, READ_I32_2D, types.int64, types.int64, types.int64, I32_2D))
def list_matches(tokens: Ints, links: Ints, length: int, limit: int, max_len: int, out: Ints) -> int:
    """Write the newest occurrences of the end of the text; return how many. See ``NgramIndex.match``."""
    found = 0
    last = links[1, length - 1]
    while last >= 0 and found < limit:
        if tokens[last + 1] >= 0:
            out[0, found] = last + 1
            out[1, found] = match_length(tokens, length, last + 1, max_len)
            found += 1
        last = links[1, last]
    last = links[0, length - 1]
    seen = 0
    while last >= 0 and seen < limit and found < limit:
        seen += 1
        match = match_length(tokens, length, last + 1, ORDER)
        if tokens[last + 1] >= 0 and match < ORDER:
            out[0, found] = last + 1
            out[1, found] = min(match, max_len)
            found += 1
        last = links[0, last]
    return found


@kernel(
    types.UniTuple(types.int64, 2)(
        READ_I32, READ_I32_2D, types.int64, types.int64, types.int64, types.int64, types.int64, types.int64
    )
)
def find_copy(
    tokens: Ints, links: Ints, length: int, pointer: int, window: int, limit: int, min_len: int, max_len: int
) -> tuple[int, int]:
    """Return (position to copy from, match length), (-1, 0) if nothing matches.

    The best by ``beats`` with matches capped at SCORE_CAP, among all positions within ``window`` of the pointer
    and the ``limit`` newest occurrences of the last ORDER tokens and of the last token; among equals the latest.
    """
    if length < 2 or tokens[length - 1] < 0:
        return -1, 0
    cap = min(max_len, SCORE_CAP)
    measured = min(max_len, max(SCORE_CAP, min_len))
    newest = tokens[length - 1]
    best, best_match, best_distance = -1, 0, 0
    for distance in range(window + 1):
        if best_match == cap:
            break  # nothing farther away can be better
        for side in range(2 if distance else 1):
            position = pointer + distance if side == 0 else pointer - distance
            if position < 1 or position >= length or tokens[position - 1] != newest or tokens[position] < 0:
                continue
            match = match_length(tokens, length, position, measured)
            if match < min_len:
                continue
            match = min(match, cap)
            if beats(match, distance, position, best_match, best_distance, best):
                best, best_match, best_distance = position, match, distance
    if best_match < cap:
        for family in range(1, -1, -1):
            last = links[family, length - 1]
            seen = 0
            while last >= 0 and seen < limit:
                seen += 1
                position = last + 1
                last = links[family, last]
                match = match_length(tokens, length, position, measured if family else ORDER)
                if tokens[position] < 0 or match < min_len or (family == 0 and match == ORDER):
                    continue  # the long ones among the newest were seen in the chain of the long grams
                distance = abs(position - pointer)
                match = min(match, cap)
                if beats(match, distance, position, best_match, best_distance, best):
                    best, best_match, best_distance = position, match, distance
    if best < 0:
        return -1, 0
    return best, match_length(tokens, length, best, max_len)


@kernel(types.int64(READ_I32, types.int64, types.int64, types.int64, types.int64, I32_2D))
def copy_chain(tokens: Ints, length: int, position: int, match: int, source: int, out: Ints) -> int:
    """Write the chain that copies on from ``position`` into the columns of ``out``; return how many were filled.

    A copy that reaches the end of the text goes on into itself; it stops before a barrier. Node i is reached with
    probability match / (match + i + 1): each node counts one more matched token, by the rule of succession.
    """
    drafted = out[ROW_TOKEN]
    probs = out[ROW_PROB].view(np.float32)
    for i in range(out.shape[1]):
        token = tokens[position + i] if position + i < length else drafted[position + i - length]
        if token < 0:
            return i
        drafted[i] = token
        out[ROW_PARENT, i] = i - 1
        probs[i] = match / (match + i + 1.0)
        out[ROW_MATCH, i] = match
        out[ROW_ORIGIN, i] = position + i
        out[ROW_SOURCE, i] = source
    return int(out.shape[1])


@kernel(types.int64(READ_U8, READ_I64, types.int64, types.int64, types.int64, types.int64))
def unchecked_block(checked: npt.NDArray[np.uint8], bases: Longs, shift: int, array: int, first: int, last: int) -> int:
    """A block of the file that holds elements ``first`` to ``last`` of an array and is not yet checked; -1: none.

    The range is shorter than a block, so that looking at both of its ends is enough.
    """
    block = (bases[array] + 4 * first) >> shift
    if checked[block] == 0:
        return int(block)
    block = (bases[array] + 4 * last) >> shift
    return -1 if checked[block] else int(block)


@kernel(
    types.int64(READ_I32, READ_I32, READ_I32, types.int64, types.int64, READ_U8, READ_I64, types.int64),
)
def newest_stored(
    context: Ints,
    tokens: Ints,
    heads: Ints,
    order: int,
    length: int,
    checked: npt.NDArray[np.uint8],
    bases: Longs,
    shift: int,
) -> int:
    """Newest position where the last ``order`` tokens of ``context`` end, -1: none, -2 - b: check block b first."""
    array = 4 if order == ORDER else 3
    mask = np.uint64(len(heads) - 1)
    end = np.uint64(len(context) - 1)
    slot = (hash_n(context, end) if order == ORDER else hash_1(context, end)) & mask
    for _ in range(min(len(heads), MAX_PROBES)):
        block = unchecked_block(checked, bases, shift, array, np.int64(slot), np.int64(slot))
        if block >= 0:
            return -2 - block
        head = np.int64(heads[slot])
        if head < order - 1 or head >= length:
            return -1
        block = unchecked_block(checked, bases, shift, 0, head - order + 1, head)
        if block >= 0:
            return -2 - block
        if common_suffix(context, len(context), tokens, head + 1, order) == order:
            return int(head)
        slot = (slot + U1) & mask
    return -1


@kernel(
    types.UniTuple(types.int64, 3)(
        READ_I32,
        READ_I32,
        READ_I32_2D,
        READ_I32,
        READ_I32,
        types.int64,
        types.int64,
        types.int64,
        types.int64,
        types.int64,
        types.int64,
        types.int64,
        READ_U8,
        READ_I64,
        types.int64,
    )
)
def find_stored(
    context: Ints,
    tokens: Ints,
    links: Ints,
    heads_1: Ints,
    heads_n: Ints,
    length: int,
    floor: int,
    pointer: int,
    window: int,
    limit: int,
    min_len: int,
    max_len: int,
    checked: npt.NDArray[np.uint8],
    bases: Longs,
    shift: int,
) -> tuple[int, int, int]:
    """Find the end of another text in an arena: (position to copy from, match length, distance), or (-1, 0, 0).

    The best by ``beats`` with matches capped at SCORE_CAP, as in ``find_copy``: among all positions within ``window``
    of the pointer and the ``limit`` newest occurrences of the last ORDER tokens and of the last one, from ``floor`` on.
    Without a pointer (-1) everything is equally FAR: the longest match wins, among equals the newest.

    The arena may be a file that nobody has vouched for: every number read from it is checked before it is used as an
    index, and a position of -2 - b asks the caller to check block b and call again.
    """
    best, best_match, best_distance = -1, 0, 0
    num_context = len(context)
    if num_context == 0:
        return -1, 0, 0
    cap, measured = min(max_len, SCORE_CAP), min(max_len, max(SCORE_CAP, min_len))
    if pointer >= 0:
        first, end = max(floor + 1, pointer - window), min(length - 1, pointer + window)
        if first <= end:
            block = unchecked_block(checked, bases, shift, 0, max(0, first - max_len), end)
            if block >= 0:
                return -2 - block, 0, 0
        newest = context[num_context - 1]
        for position in range(first, end + 1):
            if tokens[position - 1] != newest or tokens[position] < 0:
                continue
            match = common_suffix(context, num_context, tokens, position, measured)
            if match >= min_len:
                match, distance = min(match, cap), abs(position - pointer)
                if beats(match, distance, position, best_match, best_distance, best):
                    best, best_match, best_distance = position, match, distance
    for family in range(1, -1, -1):
        order = ORDER if family else 1
        if best_match == cap or num_context < order or (family == 0 and min_len >= ORDER):
            continue
        heads = heads_n if family else heads_1
        last = newest_stored(context, tokens, heads, order, length, checked, bases, shift)
        if last < -1:
            return last, 0, 0
        seen = 0
        while last >= floor and seen < limit:
            seen += 1
            position = last + 1
            if position >= length:
                break
            block = unchecked_block(checked, bases, shift, 0, max(0, position - max_len), position)
            if block < 0:
                block = unchecked_block(checked, bases, shift, 1 + family, last, last)
            if block >= 0:
                return -2 - block, 0, 0
            before = np.int64(links[family, last])
            last = before if before < last else -1
            match = common_suffix(context, num_context, tokens, position, measured)
            if tokens[position] < 0 or match < min_len:
                continue
            match = min(match, cap)
            distance = abs(position - pointer) if pointer >= 0 else FAR
            if beats(match, distance, position, best_match, best_distance, best):
                best, best_match, best_distance = position, match, distance
                if pointer < 0 and match == cap:
                    break  # the newest of the longest
    if best < 0:
        return -1, 0, 0
    return best, common_suffix(context, num_context, tokens, best, max_len), best_distance


@kernel(
    types.int64(
        READ_I32,
        types.int64,
        types.int64,
        types.int64,
        types.int64,
        types.float64,
        READ_U8,
        READ_I64,
        types.int64,
        I32_2D,
    )
)
def copy_stored(
    tokens: Ints,
    length: int,
    position: int,
    match: int,
    source: int,
    min_prob: float,
    checked: npt.NDArray[np.uint8],
    bases: Longs,
    shift: int,
    out: Ints,
) -> int:
    """As ``copy_chain``, from an arena that is not the session's: no origin, no self-overlap, no unlikely nodes.

    Returns how many nodes were written, or -2 - b to have block b checked first.
    """
    most = min(out.shape[1], length - position)
    if most < 1:
        return 0
    block = unchecked_block(checked, bases, shift, 0, position, position + most - 1)
    if block >= 0:
        return -2 - block
    probs = out[ROW_PROB].view(np.float32)
    for i in range(most):
        token = tokens[position + i]
        prob = match / (match + i + 1.0)
        if token < 0 or prob < min_prob:
            return i
        out[ROW_TOKEN, i] = token
        out[ROW_PARENT, i] = i - 1
        probs[i] = prob
        out[ROW_MATCH, i] = match
        out[ROW_ORIGIN, i] = -1
        out[ROW_SOURCE, i] = source
    return int(most)


@kernel(types.boolean(READ_I32, types.int64, types.int64, types.int64))
def same_end(tokens: Ints, a: int, b: int, order: int) -> bool:
    """True if the same ``order`` tokens end at ``a`` and at ``b``; the plain way, for the check."""
    for i in range(order):  # noqa: SIM110  (numba has no all())
        if tokens[a - i] != tokens[b - i]:
            return False
    return True


@kernel(types.int64(READ_I32, READ_I32_2D, READ_I32, READ_I32, I64))
def count_faults(tokens: Ints, links: Ints, heads_1: Ints, heads_n: Ints, meta: npt.NDArray[np.int64]) -> int:
    """Recount everything from the arena alone; return the number of contradictions."""
    faults: int = 0
    run, firsts_1, firsts_n = 0, 0, 0
    for at in range(meta[LENGTH]):
        run = 0 if tokens[at] < 0 else run + 1
        for family in range(2):
            order = ORDER if family else 1
            before = links[family, at]
            if run < order:
                faults += before != -1
                continue
            if family:
                firsts_n += before < 0
            else:
                firsts_1 += before < 0
            if before >= at or (before >= 0 and not same_end(tokens, before, at, order)):
                faults += 1
    faults += run != meta[RUN]
    faults += firsts_1 != meta[USED_1]
    faults += firsts_n != meta[USED_N]
    for family in range(2):
        heads = heads_n if family else heads_1
        used = 0
        for slot in range(len(heads)):
            used += heads[slot] >= 0
            faults += heads[slot] >= meta[LENGTH]
        faults += used != (firsts_n if family else firsts_1)
    return faults
