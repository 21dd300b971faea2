"""One kernel call for all rows of a serving engine: what DraftSession does per step, without Python in between.

A session lends its arrays by address (see ``lines.py``, which keeps the addresses true). Per line, int64:
    addresses (num_lines, NUM_ADDRESSES)   where the session's arrays lie and how long they are, TOKENS ....
    state (num_lines, NUM_STATE)           HELD: tokens of the row that the session knows; BEFORE: those before its last
                                           step's; SCRUBBED: up to where the row was compared with them; NUM_DRAFTED:
                                           nodes in the line's block.
    blocks int32 (num_lines, 6, width)     the last draft, draft.BLOCK_ROWS; always a chain.

Unlike the ``_core`` files it calls kernels of other files; ``uses`` makes its cache notice their changes.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
from numba import carray, types

from zerodraft.lookup.copy import _ngram_core as ngram
from zerodraft.lookup.copy import _policy_core as rule
from zerodraft.lookup.copy import _replacement_core as replacing
from zerodraft.lookup.runtime.address import at
from zerodraft.lookup.runtime.jit import I32, I32_2D, I64, I64_2D, READ_I32, READ_I32_2D, kernel

Ints = npt.NDArray[np.int32]
Longs = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

I32_3D: Final = types.Array(types.int32, 3, "C")
READ_I64: Final = types.Array(types.int64, 1, "C", readonly=True)
READ_F64_2D: Final = types.Array(types.float64, 2, "C", readonly=True)

(
    TOKENS,
    CAPACITY,
    LINKS,
    HEADS_1,
    SLOTS_1,
    HEADS_N,
    SLOTS_N,
    META,
    SETTINGS,
    WEIGHTS,
    FIRST,
    REPLACED,
    EXPECTED,
    PRICES,
    COSTS,
    SLOPES,
    NUM_COSTS,
    NUM_ADDRESSES,
) = range(18)
HELD, BEFORE, SCRUBBED, NUM_DRAFTED, NUM_STATE = range(5)

# What a row needs after a call. DONE: nothing, its draft is in the block of its line.
DONE, ABSENT, NEW, LOST, GROW, ODD = range(6)

TAIL: Final = 32  # tokens before the new ones that are compared with what the session holds, at every step
SCRUB: Final = 128  # and this many others, in turn, so that the whole text is compared again and again


@kernel(types.boolean(READ_I32_2D, types.int64, READ_I32, types.int64, types.int64))
def same_tokens(rows: Ints, row: int, tokens: Ints, start: int, end: int) -> bool:
    """True if the row holds ``tokens[start:end]`` at the same places."""
    differ = np.int32(0)
    ours, theirs = rows[row, start:end], tokens[start:end]
    for i in range(np.uint64(len(theirs))):
        differ |= ours[i] ^ theirs[i]
    return bool(differ == 0)


@kernel(types.boolean(READ_I32_2D, types.int64, types.int64, READ_I32, I32_2D, types.int64), uses=(rule, replacing))
def copied_here(rows: Ints, row: int, length: int, tokens: Ints, block: Ints, n: int) -> bool:
    """True if the row itself holds every drafted token at the place that it was copied from, and what stands before."""
    start, differ = np.int64(block[rule.ROW_ORIGIN, 0]), np.int32(0)
    for i in range(n):
        place = np.int64(block[rule.ROW_ORIGIN, i])
        if place < length:  # else the copy went on into itself
            differ |= rows[row, place] ^ block[rule.ROW_TOKEN, i]
    return bool(differ == 0) and same_tokens(rows, row, tokens, max(0, start - TAIL), start)


@kernel(
    types.int64(READ_I32_2D, types.int64, types.int64, types.int64, types.int64, I64, I64, I32_2D, READ_F64_2D),
    uses=(ngram, rule, replacing),
)
def step_row(
    rows: Ints,
    row: int,
    length: int,
    before: int,
    room: int,
    addresses: Longs,
    state: Longs,
    block: Ints,
    breaks: Floats,
) -> int:
    """Append ``rows[row, before:length]`` to a session, learn from it, and draft up to ``room`` tokens.

    As ``DraftSession.commit`` and ``propose``; ``before`` is what the session held before (its index may hold a part of
    the new tokens already). Every drafted token is read again in the row itself, at the place it is said to be copied
    from: LOST if it is not there, so nothing of another row's text is ever drafted.
    """
    capacity, num_costs = addresses[CAPACITY], addresses[NUM_COSTS]
    tokens = carray(at(addresses[TOKENS]), (capacity,), np.int32)
    links = carray(at(addresses[LINKS]), (2, capacity), np.int32)
    meta = carray(at(addresses[META]), (4,), np.int64)
    settings = carray(at(addresses[SETTINGS]), (rule.NUM_SETTINGS,), np.int64)
    first = carray(at(addresses[FIRST]), (rule.NUM_FIRST,), np.int64)
    weights = carray(at(addresses[WEIGHTS]), (2, breaks.shape[0]), np.float64)
    replaced = carray(at(addresses[REPLACED]), (replacing.NUM_ROWS, replacing.NUM_FIELDS), np.int64)

    num_known = meta[ngram.LENGTH]
    for i in range(num_known, length):
        if rows[row, i] < 0:
            return ODD
    heads_1 = carray(at(addresses[HEADS_1]), (addresses[SLOTS_1],), np.int32)
    heads_n = carray(at(addresses[HEADS_N]), (addresses[SLOTS_N],), np.int32)
    new = rows[row, num_known:length]
    if ngram.extend(new, 0, tokens, links, heads_1, heads_n, meta) < len(new):
        return GROW
    num_agreed = 0
    while num_agreed < state[NUM_DRAFTED] and before + num_agreed < length:
        if block[rule.ROW_TOKEN, num_agreed] != tokens[before + num_agreed]:
            break
        num_agreed += 1
    cursor = -1
    if first[rule.AT_LENGTH] == before:
        cursor = rule.learn(tokens, length, True, first, breaks, weights, replaced)
    if cursor >= 0:
        settings[rule.POINTER] = cursor
    elif num_agreed:
        origin = np.int64(block[rule.ROW_ORIGIN, num_agreed - 1])
        if 0 <= origin < length:
            settings[rule.POINTER] = origin + 1
    state[NUM_DRAFTED] = 0
    if room <= 0:
        state[HELD] = length
        return DONE

    settings[rule.LENGTH] = length
    settings[rule.MAX_NODES] = settings[rule.MAX_DEPTH] = room
    n = rule.propose(
        tokens,
        links,
        settings,
        replaced,
        weights,
        breaks,
        carray(at(addresses[PRICES]), breaks.shape, np.float64),
        carray(at(addresses[COSTS]), (num_costs,), np.float64),
        carray(at(addresses[SLOPES]), (num_costs,), np.float64),
        block,
        first,
        carray(at(addresses[EXPECTED]), (2,), np.float64),
    )
    if n and not copied_here(rows, row, length, tokens, block, n):
        return LOST  # and HELD stays: what came then belongs to another text
    state[HELD], state[NUM_DRAFTED] = length, n
    return DONE


@kernel(
    types.int64(
        READ_I32_2D,
        READ_I64,
        READ_I64,
        READ_I64,
        types.int64,
        types.boolean,
        I64_2D,
        I64_2D,
        I32_3D,
        READ_F64_2D,
        I64,
        I32_2D,
        I64,
    ),
    uses=(ngram, rule, replacing),
)
def step_rows(
    rows: Ints,
    lengths: Longs,
    num_new: Longs,
    lines: Longs,
    max_length: int,
    is_first: bool,
    addresses: Longs,
    state: Longs,
    blocks: Ints,
    breaks: Floats,
    status: Longs,
    drafts: Ints,
    num_drafted: Longs,
) -> int:
    """One step of every row; return how many of them need something before they can take it.

    Args (n rows):
        rows: int32 (>= n, width), the texts; only ``rows[i, :lengths[i]]`` is ever read.
        num_new: tokens of it that were sampled in this step; 0: the row is not decoding.
        lines: the line of the session that row i is believed to go on from; -1: none.
        max_length: no text may become longer, the token after the draft included.
        is_first: True: all rows, and only exactly the new tokens may have been appended since the last step. False:
            those whose status is neither DONE nor ODD, whatever was appended.
        status: what each row needs: DONE (nothing), ABSENT (there is a session but no new token), NEW (no session),
            LOST (the row is not what the session knows), GROW (its arrays are full), ODD (not a text).
        drafts, num_drafted: int32 (>= n, width), (>= n,): the drafts of the rows that are DONE.
    """
    num_open = 0
    width = rows.shape[1]
    for row in range(len(lengths)):
        if not is_first and (status[row] == DONE or status[row] == ODD):
            continue
        line, length, new = lines[row], lengths[row], num_new[row]
        num_drafted[row] = 0
        if new == 0:
            status[row] = DONE if line < 0 else ABSENT
        elif not new <= length <= width:
            status[row] = ODD
        elif line < 0:
            status[row] = NEW
        else:
            held = state[line, HELD]
            tokens = carray(at(addresses[line, TOKENS]), (addresses[line, CAPACITY],), np.int32)
            scrubbed = state[line, SCRUBBED] if state[line, SCRUBBED] < held else 0
            end = min(scrubbed + SCRUB, held)
            goes_on = held + new == length or (not is_first and held <= length)
            goes_on = goes_on and same_tokens(rows, row, tokens, max(0, held - TAIL), held)
            if goes_on and same_tokens(rows, row, tokens, scrubbed, end):
                state[line, SCRUBBED] = end
                room = min(blocks.shape[2], max_length - length - 1)
                status[row] = step_row(
                    rows, row, length, held, room, addresses[line], state[line], blocks[line], breaks
                )
            else:
                status[row] = LOST
            if status[row] == DONE:
                state[line, BEFORE] = length - new
                num_drafted[row] = state[line, NUM_DRAFTED]
                for i in range(num_drafted[row]):
                    drafts[row, i] = blocks[line, rule.ROW_TOKEN, i]
        num_open += status[row] != DONE
    return num_open


@kernel(types.int64(READ_I32_2D, types.int64, I32_2D, I32), uses=(rule, replacing))
def keep_likeliest(tree: Ints, n: int, chain: Ints, drafted: Ints) -> int:
    """Copy the likeliest chain of a tree of ``n`` nodes: from the root down always to the likeliest child.

    ``chain`` (6, width) gets its nodes, ``drafted`` (width,) their tokens; of equally likely children the first counts.
    Returns its length.
    """
    best = np.full(n + 1, -1, np.int64)  # by parent + 1
    for node in range(n):
        up = tree[rule.ROW_PARENT, node] + 1
        # Probabilities are not negative, so their bits order like them.
        if best[up] < 0 or tree[rule.ROW_PROB, node] > tree[rule.ROW_PROB, best[up]]:
            best[up] = node
    length, node = 0, best[0]
    while node >= 0 and length < chain.shape[1]:
        for field in range(chain.shape[0]):
            chain[field, length] = tree[field, node]
        chain[rule.ROW_PARENT, length] = length - 1
        drafted[length] = tree[rule.ROW_TOKEN, node]
        length += 1
        node = best[node + 1]
    return length
