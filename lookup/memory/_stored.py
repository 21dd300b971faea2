"""Kernels that draft from texts of earlier requests, which lie in segments of their own, some of them in files.

A ``Segment`` says where the arrays of one segment lie: those of a ``Text``, and which blocks of its file have
been checked. They are handed over by address, since their number changes; whoever makes the records keeps the
arrays (``view.py``). Files are not trusted: every number that is read from an arena is checked before it is used as an
index, and where a block was not checked yet the kernel stops and names it.
"""

from __future__ import annotations

from typing import Annotated, Final

import numpy as np
from numba import carray

from zerodraft.lookup._block import MATCH, MEMORY, ORIGIN, PARENT, PRICE, PROB, SOURCE, TOKEN
from zerodraft.lookup._prices import Tables
from zerodraft.lookup.copy._belief import doubt, expect, settle
from zerodraft.lookup.copy._text import MAX_MATCH, ORDER, SCORE_CAP, WINDOW, beats, hash_1, hash_n, match_length
from zerodraft.lookup.runtime._address import at
from zerodraft.lookup.runtime._jit import Floats, Ints2D, Longs, ReadInts, Word, Words, kernel, record
from zerodraft.lookup.session._state import State

LIMIT: Final = 8  # newest occurrences considered in each hash chain; 32 found no better ones in replays
FAR: Final = 1 << 20  # the distance of everything where there is no copy pointer
MAX_PROBES: Final = 4096  # looking up a key in a stranger's table ends; three quarters full, none needs so many
MAX_CHAIN: Final = 4096


@record
class Segment:
    """Where the arrays of one segment lie."""

    serial: int  # tells segments apart for as long as the process lives; above 0
    length: int  # positions of the arena
    floor: int  # the first that is still alive
    tokens: int  # addresses of the arrays of its text
    links_1: int
    links_n: int
    heads_1: int
    heads_n: int
    slots_1: int
    slots_n: int
    checked: int  # address of a uint8 for each block of the file, 1 where its checksum was found right
    num_blocks: int
    bases: Annotated[Longs, int, (5,)]  # byte offsets of the five arrays in the file
    shift: int  # log2 of the block size in bytes


TRUSTED: Final = 62  # the shift of segments that this process wrote itself
TOKENS, LINKS_1, LINKS_N, HEADS_1, HEADS_N = range(5)  # of ``bases``


@kernel
def unchecked(segment: Segment, array: int, first: int, last: int) -> int:
    """A block of the file that holds elements ``first`` to ``last`` of an array and is not yet checked; -1: none.

    The range is shorter than a block, so that looking at both of its ends is enough.
    """
    if segment.shift == TRUSTED:
        return -1
    checked = carray(at(segment.checked), (segment.num_blocks,), np.uint8)
    for element in (first, last):
        block = np.int64((segment.bases[array] + 4 * element) >> segment.shift)
        if checked[block] == 0:
            return int(block)
    return -1


@kernel
def newest(context: ReadInts, segment: Segment, order: int, key: Word) -> int:
    """Newest position where the last ``order`` tokens of a context end, -1: none, -2 - b: check block b first."""
    array, slots = (HEADS_N, segment.slots_n) if order == ORDER else (HEADS_1, segment.slots_1)
    heads = carray(at(segment.heads_n if order == ORDER else segment.heads_1), (slots,), np.int32)
    tokens = carray(at(segment.tokens), (segment.length,), np.int32)
    mask = np.uint64(slots - 1)
    slot = key & mask
    for _ in range(min(slots, MAX_PROBES)):
        block = unchecked(segment, array, np.int64(slot), np.int64(slot))
        if block >= 0:
            return -2 - block
        head = np.int64(heads[slot])
        if head < order - 1 or head >= segment.length:
            return -1
        block = unchecked(segment, TOKENS, head - order + 1, head)
        if block >= 0:
            return -2 - block
        if match_length(context, len(context), tokens, head + 1, order) == order:
            return int(head)
        slot = (slot + np.uint64(1)) & mask
    return -1


@kernel
def near_pointer(context: ReadInts, segment: Segment, pointer: int, min_len: int, measured: int, best: Longs) -> int:
    """Take the best match within WINDOW of the pointer as ``best``; return -1, or a block to be checked first."""
    first, end = max(segment.floor + 1, pointer - WINDOW), min(segment.length - 1, pointer + WINDOW)
    if first > end:
        return -1
    block = unchecked(segment, TOKENS, max(0, first - measured), end)
    if block >= 0:
        return block
    tokens = carray(at(segment.tokens), (segment.length,), np.int32)
    last = context[len(context) - 1]
    for position in range(first, end + 1):
        if tokens[position - 1] != last or tokens[position] < 0:
            continue
        match = match_length(context, len(context), tokens, position, measured)
        if match >= min_len:
            match, distance = min(match, SCORE_CAP), abs(position - pointer)
            if beats(match, distance, position, best[1], best[2], best[0]):
                best[0], best[1], best[2] = position, match, distance
    return -1


@kernel
def find(context: ReadInts, keys: Words, segment: Segment, pointer: int, min_len: int, best: Longs) -> int:
    """Find the end of a context in a segment: ``best`` (3,) gets position, match length and distance, or -1, 0, 0.

    The best by ``beats`` with matches capped at SCORE_CAP: among all positions within WINDOW of the pointer and the
    LIMIT newest occurrences of the last ORDER tokens and of the last one, from the floor on. Without a pointer (-1)
    everything is equally FAR: the longest match wins, among equals the newest. ``keys``: the hashes of the context's
    last token and of its last ORDER. Returns -1, or a block to be checked before this is called again.
    """
    best[0], best[1], best[2] = -1, 0, 0
    num_context, length = len(context), segment.length
    if num_context == 0:
        return -1
    measured = max(SCORE_CAP, min_len)
    if pointer >= 0:
        block = near_pointer(context, segment, pointer, min_len, measured, best)
        if block >= 0:
            return block
    tokens = carray(at(segment.tokens), (length,), np.int32)
    for family in range(1, -1, -1):
        order = ORDER if family else 1
        if best[1] == SCORE_CAP or num_context < order or (family == 0 and max(min_len, best[1]) >= ORDER):
            continue  # a match of one chain cannot be better
        links = carray(at(segment.links_n if family else segment.links_1), (length,), np.int32)
        last, seen = newest(context, segment, order, keys[family]), 0
        if last < -1:
            return -2 - last
        while last >= segment.floor and seen < LIMIT and last + 1 < length:
            seen += 1
            position = last + 1
            block = unchecked(segment, TOKENS, max(0, position - measured), position)
            if block < 0:
                block = unchecked(segment, LINKS_N if family else LINKS_1, last, last)
            if block >= 0:
                return block
            before = np.int64(links[last])
            last = before if before < last else -1
            match = match_length(context, num_context, tokens, position, measured)
            if tokens[position] < 0 or match < min_len:
                continue
            match = min(match, SCORE_CAP)
            distance = abs(position - pointer) if pointer >= 0 else FAR
            if beats(match, distance, position, best[1], best[2], best[0]):
                best[0], best[1], best[2] = position, match, distance
                if pointer < 0 and match == SCORE_CAP:
                    break  # the newest of the longest
    if best[0] >= 0:
        block = unchecked(segment, TOKENS, max(0, best[0] - MAX_MATCH), best[0])
        if block >= 0:
            return block
        best[1] = match_length(context, num_context, tokens, best[0], MAX_MATCH)
    return -1


@kernel
def find_in_all(
    context: ReadInts, segments: list[Segment], min_len: int, pointer_serial: int, pointer: int, best: Longs
) -> int:
    """Find the end of a context in the segments, newest first, the pointer's own before all others.

    ``best`` int64 (5,) gets position, match length, distance and the number of the segment, -1 if there is none, and a
    block of that segment that is to be checked before this is called again, else -1. Returns ``best[3]``.
    """
    one, keys, end = np.empty(3, np.int64), np.zeros(2, np.uint64), np.uint64(len(context) - 1)
    if len(context):
        keys[0] = hash_1(context, end)
    if len(context) >= ORDER:
        keys[1] = hash_n(context, end)
    best[0], best[1], best[2], best[3], best[4] = -1, 0, 0, -1, -1
    own = -1
    for number in range(len(segments)):
        if segments[number].serial == pointer_serial:
            own = number
    for turn in range(-1, len(segments)):
        number = own if turn < 0 else len(segments) - 1 - turn
        if number < 0 or (turn >= 0 and number == own):
            continue
        longer = max(min_len, min(best[1], SCORE_CAP - 1) + 1)  # what is no longer than the best so far is no better
        block = find(context, keys, segments[number], pointer if turn < 0 else -1, longer, one)
        if block >= 0:
            best[3], best[4] = number, block
            return number
        # Positions of two segments cannot be compared: of equal ones the first stays.
        if one[0] >= 0 and beats(min(one[1], SCORE_CAP), one[2], -2, min(best[1], SCORE_CAP), best[2], best[0]):
            best[0], best[1], best[2], best[3] = one[0], one[1], one[2], number
            if one[1] >= SCORE_CAP:
                break  # a longer match is no better evidence
    return int(best[3])


@kernel
def copy_chain(segment: Segment, position: int, match: int, num_nodes: int, block: Ints2D, first: int) -> int:
    """Write the chain that copies on from ``position`` into the block; return where it ends, -2 - b: check b first.

    Node i has probability match / (match + i + 1): each counts one more matched token, by the rule of succession.
    """
    num_nodes = min(num_nodes, segment.length - position, block.shape[1] - first)
    if num_nodes < 1:
        return first
    to_check = unchecked(segment, TOKENS, position, position + num_nodes - 1)
    if to_check >= 0:
        return -2 - to_check
    tokens = carray(at(segment.tokens), (segment.length,), np.int32)
    for i in range(num_nodes):
        n = first + i
        if tokens[position + i] < 0:
            return n
        block[TOKEN, n], block[PARENT, n] = tokens[position + i], n - 1 if i else -1
        block[PROB].view(np.float32)[n] = match / (match + i + 1.0)
        block[MATCH, n], block[ORIGIN, n], block[SOURCE, n] = match, -1, MEMORY
    return first + num_nodes


@kernel
def draft(context: ReadInts, segments: list[Segment], min_len: int, min_prob: float, block: Ints2D, best: Longs) -> int:
    """Write the chain that follows the end of a context; return its length. ``best`` as from ``find_in_all``."""
    number = find_in_all(context, segments, min_len, -1, -1, best)
    if number < 0 or best[4] >= 0:
        return 0
    end = copy_chain(segments[number], best[0], best[1], block.shape[1], block, 0)
    if end < -1:
        best[4] = -2 - end
        return 0
    probs, n = block[PROB].view(np.float32), 0
    while n < end and probs[n] >= min_prob:
        n += 1
    return n


@kernel
def rate_chain(block: Ints2D, first: int, end: int, beliefs: Floats, tables: Tables, min_prob: float) -> int:
    """Set probabilities and prices of a chain by what is believed of its source; return where those of min_prob end."""
    probs, prices = np.empty(end - first), np.empty(end - first)
    if first < end:
        expect(np.int64(block[MATCH, first]), beliefs, tables, probs, prices)
    for n in range(first, end):
        if probs[n - first] < min_prob or probs[n - first] == 0.0:
            return n
        block[PROB].view(np.float32)[n], block[PRICE].view(np.float32)[n] = probs[n - first], prices[n - first]
    return end


@kernel
def doubt_chain(chain: ReadInts, match: int, came: ReadInts, may_break: bool, beliefs: Floats, tables: Tables) -> int:
    """Compare a source's chain with what came, shift the belief of its kinds, and return how many tokens agree."""
    last, agreed = tables.breaks.shape[1] - 1, 0
    for i in range(min(len(chain), len(came))):
        is_same = chain[i] == came[i]
        if not is_same and not may_break:
            break
        doubt(beliefs, tables.breaks, min(match + i, last), -1.0, is_same)
        if not is_same:
            break
        agreed += 1
    settle(beliefs)
    return agreed


@kernel
def write(
    tokens: ReadInts, segments: list[Segment], state: State, tables: Tables, num_nodes: int, block: Ints2D, first: int
) -> int:
    """Write the chain that the segments propose from column ``first`` on; return where it ends.

    -1: a block of a file is to be checked first, which ``state.stored`` names.
    """
    stored = state.stored
    stored.serial = 0
    start = max(state.prompt_start, state.text.length - MAX_MATCH)
    context, best = tokens[start : state.text.length], np.empty(5, np.int64)
    number = find_in_all(context, segments, stored.min_match, stored.pointer_serial, stored.pointer, best)
    if number < 0:
        return first
    segment, position, match = segments[number], best[0], best[1]
    end = (
        -2 - best[4] if best[4] >= 0 else copy_chain(segment, position, match, min(num_nodes, MAX_CHAIN), block, first)
    )
    if end < -1:
        stored.fault_serial, stored.fault_block = segment.serial, -2 - end
        return -1
    stored.serial, stored.position, stored.match, stored.count = segment.serial, position, match, end - first
    return rate_chain(block, first, end, state.beliefs[MEMORY], tables, stored.min_prob)


@kernel
def learn(tokens: ReadInts, segments: list[Segment], state: State, start: int, may_break: bool, tables: Tables) -> None:
    """Compare what was proposed with ``tokens[start : length]``, which came; remember where a right copy ended."""
    stored = state.stored
    for number in range(len(segments)):
        segment = segments[number]
        if segment.serial == stored.serial and state.best.length == start:
            theirs = carray(at(segment.tokens), (segment.length,), np.int32)
            chain, came = theirs[stored.position : stored.position + stored.count], tokens[start : state.text.length]
            agreed = doubt_chain(chain, stored.match, came, may_break, state.beliefs[MEMORY], tables)
            if agreed:
                stored.pointer_serial, stored.pointer = segment.serial, stored.position + agreed
    stored.serial = 0
