"""Kernels of logit recycling: a bounded table of likely successors, and the best-first tree drafted from it.

The table is set-associative: a key lives in one of WAYS places of its set, and a new key displaces the one that was
written longest ago. Keys are of two orders: one token (key = token), and two (key = (first + 1) << 31 | second).

Arrays:
    keys int64 (places,)          -1: empty.
    stamps int64 (places,)        clock at the last write.
    rows int32 (places, K)        the target's likeliest next tokens after the key, best first, as last seen.
    levels int64 (places,)        how often in a row the best one stayed the same, up to NUM_LEVELS - 1.
    state int64 (NUM_STATE,)      clock; number of keys held.
    common int32 (K,)             the tokens that came most often, whatever was before them; -1: none.
    counts float64 (classes, K+1) how often the token that came stood at each rank of a list, and in none of the lists
                                  asked before it; last: otherwise. Lists are asked in the order: two tokens, one
                                  token, common. A class is the kind of list and what was asked before it.

A row may end in -1: fewer than K successors are known.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
from numba import types

from zerodraft.lookup.runtime.jit import I32_2D, I64, READ_I32, READ_I32_2D, kernel

Ints = npt.NDArray[np.int32]
Longs = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

F64_2D: Final = types.Array(types.float64, 2, "C")
READ_F64: Final = types.Array(types.float64, 1, "C", readonly=True)
READ_F64_2D: Final = types.Array(types.float64, 2, "C", readonly=True)
READ_I64: Final = types.Array(types.int64, 1, "C", readonly=True)

K: Final = 8
WAYS: Final = 4
NUM_LEVELS: Final = 4
ONE, TWO, ONE_AFTER_TWO, COMMON, COMMON_AFTER, NUM_CLASSES = 0, 4, 8, 9, 10, 11  # ONE and TWO: plus the level
CLOCK, HELD, NUM_STATE = range(3)
COUNT_CAP: Final = 256.0  # counts of a class are halved when they reach this: the text may change its kind
ROW_TOKEN, ROW_PARENT, ROW_PROB, ROW_MATCH, ROW_ORIGIN, ROW_SOURCE = range(6)
RECYCLED: Final = 4  # draft.RECYCLED


@kernel(types.int64(READ_I64, types.int64))
def home(keys: Longs, key: int) -> int:
    """First place of the key's set; the number of sets is a power of two."""
    mixed = np.uint64(key) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
    mixed ^= mixed >> np.uint64(32)
    place: int = np.int64(mixed & np.uint64(len(keys) // WAYS - 1)) * WAYS
    return place


@kernel(types.int64(READ_I64, types.int64))
def find(keys: Longs, key: int) -> int:
    """Place of the key, -1 if it is not held."""
    start = home(keys, key)
    for place in range(start, start + WAYS):
        if keys[place] == key:
            return place
    return -1


@kernel(types.int64(types.int64, types.int64))
def pair_key(first: int, second: int) -> int:
    """Key of two tokens in a row; first -1 (no token before): -2, which no place holds."""
    return ((first + 1) << 31) | second if first >= 0 else -2


@kernel(types.void(I64, I64, I32_2D, I64, I64, types.int64, READ_I32))
def put(keys: Longs, stamps: Longs, rows: Ints, levels: Longs, state: Longs, key: int, row: Ints) -> None:
    """Write a key's list; the key written longest ago in its set makes room."""
    start = home(keys, key)
    target = start
    for place in range(start, start + WAYS):
        if keys[place] == key or keys[place] < 0:
            target = place
            break
        if stamps[place] < stamps[target]:
            target = place
    if keys[target] == key:
        levels[target] = min(levels[target] + 1, NUM_LEVELS - 1) if rows[target, 0] == row[0] else 0
    else:
        state[HELD] += keys[target] < 0
        keys[target] = key
        levels[target] = 0
    for rank in range(K):
        rows[target, rank] = row[rank]
    state[CLOCK] += 1
    stamps[target] = state[CLOCK]


@kernel(types.void(READ_I64, READ_I64, READ_I32_2D, READ_I64, I64, I64, I32_2D, I64))
def move(
    keys: Longs,
    stamps: Longs,
    rows: Ints,
    levels: Longs,
    new_keys: Longs,
    new_stamps: Longs,
    new_rows: Ints,
    new_levels: Longs,
) -> None:
    """Move everything into larger arrays. No set can overflow: each splits into sets of its own."""
    for place in range(len(keys)):
        key = keys[place]
        if key < 0:
            continue
        target = home(new_keys, key)
        while new_keys[target] >= 0:
            target += 1
        new_keys[target], new_stamps[target], new_levels[target] = key, stamps[place], levels[place]
        for rank in range(K):
            new_rows[target, rank] = rows[place, rank]


@kernel(types.void(I64, I64, I32_2D, I64, I64, READ_I64, READ_I64, READ_I32_2D))
def fill(
    keys: Longs,
    stamps: Longs,
    rows: Ints,
    levels: Longs,
    state: Longs,
    all_keys: Longs,
    all_levels: Longs,
    all_rows: Ints,
) -> None:
    """Write lists that were kept elsewhere, in order, each with the level it had."""
    for i in range(len(all_keys)):
        put(keys, stamps, rows, levels, state, all_keys[i], all_rows[i])
        levels[find(keys, all_keys[i])] = all_levels[i]


@kernel(types.int64(READ_I64, READ_I64, types.int64, types.int64, types.int64, I64))
def ask(keys: Longs, levels: Longs, before: int, last: int, kind: int, places: Longs) -> int:
    """Class of list number ``kind`` (0: two tokens, 1: one, 2: common) after (before, last), -1 if there is none.

    To be asked in order: ``places`` (3,) keeps where the lists are, -1: not known; the common one has no place.
    """
    if kind == 0:
        places[0] = find(keys, pair_key(before, last))
        return TWO + levels[places[0]] if places[0] >= 0 else -1
    if kind == 1:
        places[1] = find(keys, last)
        if places[1] < 0:
            return -1
        return ONE_AFTER_TWO if places[0] >= 0 else ONE + levels[places[1]]
    return COMMON_AFTER if places[0] >= 0 or places[1] >= 0 else COMMON


@kernel(types.void(READ_I64, READ_I32_2D, READ_I64, READ_I32, types.int64, types.int64, READ_I32, F64_2D))
def learn(
    keys: Longs, rows: Ints, levels: Longs, common: Ints, before: int, last: int, came: Ints, counts: Floats
) -> None:
    """Count at which rank of which list each token that came stood, after the tokens ``before`` and ``last``."""
    places = np.empty(3, np.int64)
    for token in came:
        is_found = False
        for kind in range(3):
            category = ask(keys, levels, before, last, kind, places)
            if category < 0:
                continue
            rank = K
            if not is_found:
                for at in range(K):
                    if (common[at] if kind == 2 else rows[places[kind], at]) == token:
                        rank, is_found = at, True
                        break
            row = counts[category]
            row[rank] += 1.0
            if row.sum() >= COUNT_CAP:
                row *= 0.5
        before, last = last, np.int64(token)


@kernel(types.void(I64, I64, I32_2D, I64, I64, types.int64, types.int64))
def push(keys: Longs, stamps: Longs, rows: Ints, levels: Longs, state: Longs, key: int, token: int) -> None:
    """Put a token first in a key's list; the others move down."""
    row = np.full(K, -1, np.int32)
    row[0] = token
    place = find(keys, key)
    if place >= 0:
        rank = 1
        for at in range(K):
            if rank < K and rows[place, at] != token:
                row[rank] = rows[place, at]
                rank += 1
    put(keys, stamps, rows, levels, state, key, row)


@kernel(types.void(I64, I64, I32_2D, I64, I64, READ_I32))
def read(keys: Longs, stamps: Longs, rows: Ints, levels: Longs, state: Longs, text: Ints) -> None:
    """Store what follows what in a text, the latest first."""
    for i in range(1, len(text)):
        push(keys, stamps, rows, levels, state, text[i - 1], text[i])
        if i > 1:
            push(keys, stamps, rows, levels, state, pair_key(text[i - 2], text[i - 1]), text[i])


@kernel(
    types.void(
        I64, I64, I32_2D, I64, I64, types.int64, types.int64, READ_I32, READ_I32, READ_I64, READ_I32_2D, types.int64
    )
)
def write(
    keys: Longs,
    stamps: Longs,
    rows: Ints,
    levels: Longs,
    state: Longs,
    before: int,
    last: int,
    tokens: Ints,
    parents: Ints,
    path: Longs,
    topk: Ints,
    num_nodes: int,
) -> None:
    """Store the successors seen after the root and after every node; the accepted path comes last, so it stays.

    Row 0 of ``topk`` follows ``last``, row i + 1 node i.
    """
    accepted = np.zeros(num_nodes + 1, np.bool_)
    accepted[0] = True
    for node in path:
        accepted[node + 1] = True
    for turn in range(2):
        for position in range(num_nodes + 1):
            if accepted[position] != (turn == 1):
                continue
            first, second = before, last
            if position > 0:
                second = np.int64(tokens[position - 1])
                parent = parents[position - 1]
                first = last if parent < 0 else np.int64(tokens[parent])
            put(keys, stamps, rows, levels, state, second, topk[position])
            if first >= 0:
                put(keys, stamps, rows, levels, state, pair_key(first, second), topk[position])


@kernel(types.boolean(READ_I32_2D, types.int64, types.int64, READ_I32_2D, types.int64, types.int64, types.int64))
def is_child(out: Ints, n: int, node: int, held: Ints, num_held: int, origin: int, token: int) -> bool:
    """True if the node has that child in the tree, or will get it from the given draft (``origin`` -2: not from it)."""
    for other in range(node + 1, n):
        if out[ROW_PARENT, other] == node and out[ROW_TOKEN, other] == token:
            return True
    if origin > -2:
        for other in range(origin + 1, num_held):
            if held[ROW_PARENT, other] == origin and held[ROW_TOKEN, other] == token:
                return True
    return False


@kernel(
    types.int64(
        READ_I64,
        READ_I32_2D,
        READ_I64,
        READ_I32,
        READ_F64_2D,
        types.int64,
        types.int64,
        READ_I32_2D,
        types.int64,
        types.int64,
        types.int64,
        READ_F64,
        types.float64,
        types.float64,
        I32_2D,
    )
)
def grow(
    keys: Longs,
    rows: Ints,
    levels: Longs,
    common: Ints,
    chances: Floats,
    before: int,
    last: int,
    held: Ints,
    num_held: int,
    max_nodes: int,
    max_depth: int,
    costs: Floats,
    price: float,
    min_prob: float,
    out: Ints,
) -> int:
    """Put a draft and the likeliest recycled successors into one tree in ``out``; return its number of nodes.

    Nodes come by the probability that they are reached and right, parents first. Recycled children of a node share
    what its children in the given draft leave over. The tree ends where the sum of probability times ``price`` exceeds
    the extra cost of the forward most; nodes of the given draft have paid already, and only the budget leaves them out.

    Args:
        chances: (NUM_CLASSES, K) probability of each rank of a list.
        held, num_held: the given draft, a block as in ``draft.BLOCK_ROWS``.
    """
    # Everything below is by position: 0 is the root, i + 1 is node i of the tree.
    size = max_nodes + 1
    tokens, parents, depth = np.empty(size, np.int64), np.empty(size, np.int64), np.zeros(size, np.int64)
    reach, left = np.empty(size), np.empty(size)
    places, categories = np.empty((size, 3), np.int64), np.empty((size, 3), np.int64)
    ranks = np.zeros((size, 3), np.int64)  # how far each of the three lists is used up
    ahead, ahead_token = np.zeros(size), np.zeros(size, np.int64)  # the next recycled child
    origin = np.full(size, -2, np.int64)  # the given draft's node that it is; -1: its root
    at = np.full(num_held, -1, np.int64)  # where the given draft's nodes went
    held_probs, out_probs = held[ROW_PROB].view(np.float32), out[ROW_PROB].view(np.float32)
    tokens[0], parents[0], reach[0], origin[0] = last, before, 1.0, -1
    n, fresh, stale = 0, 0, 0  # nodes so far; the position that is new; the one whose next child is to be found
    gain, best_gain, best_n = 0.0, 0.0, 0
    while True:
        if fresh >= 0:
            left[fresh] = 1.0
            if origin[fresh] > -2:
                for node in range(origin[fresh] + 1, num_held):
                    if held[ROW_PARENT, node] == origin[fresh]:
                        left[fresh] -= held_probs[node] / reach[fresh]
            for kind in range(3):
                categories[fresh, kind] = ask(keys, levels, parents[fresh], tokens[fresh], kind, places[fresh])
        for position in (fresh, stale):
            if position < 0:
                continue
            ahead[position] = 0.0
            if left[position] <= 0.0 or depth[position] >= max_depth:
                continue
            for kind in range(3):
                category = categories[position, kind]
                if category < 0:
                    continue
                while ranks[position, kind] < K:
                    rank = ranks[position, kind]
                    candidate = common[rank] if kind == 2 else rows[places[position, kind], rank]
                    if candidate >= 0 and not is_child(
                        out, n, position - 1, held, num_held, origin[position], candidate
                    ):
                        chance = reach[position] * left[position] * chances[category, rank]
                        if chance > ahead[position]:
                            ahead[position], ahead_token[position] = chance, candidate
                        break
                    ranks[position, kind] += 1
        if n == max_nodes:
            return best_n
        best, likeliest, is_held = -1, 0.0, False
        for position in range(n + 1):
            if ahead[position] > likeliest:
                best, likeliest = position, ahead[position]
        if likeliest < min_prob:
            best, likeliest = -1, 0.0
        for node in range(num_held):
            if at[node] >= 0 or held_probs[node] <= likeliest:
                continue
            parent = held[ROW_PARENT, node]
            if parent < 0 or at[parent] >= 0:
                best, likeliest, is_held = node, np.float64(held_probs[node]), True
        if best < 0:
            return best_n
        fresh = n + 1
        if is_held:
            for row in range(6):
                out[row, n] = held[row, best]
            above = np.int64(held[ROW_PARENT, best])
            above = at[above] if above >= 0 else -1
            at[best], origin[fresh], stale = n, best, -1
            worth = max(likeliest * price, costs[2 + n] - costs[1 + n])
        else:
            above, stale = best - 1, best
            out[ROW_TOKEN, n] = ahead_token[best]
            out[ROW_MATCH, n] = 0
            out[ROW_ORIGIN, n] = -1
            out[ROW_SOURCE, n] = RECYCLED
            worth = likeliest * price
        out[ROW_PARENT, n] = above
        out_probs[n] = likeliest
        tokens[fresh], parents[fresh] = out[ROW_TOKEN, n], tokens[above + 1]
        reach[fresh], depth[fresh] = likeliest, depth[above + 1] + 1
        n += 1
        gain += worth - (costs[1 + n] - costs[n])
        if gain >= best_gain:
            best_gain, best_n = gain, n
