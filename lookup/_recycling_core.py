"""Kernels of logit recycling: a bounded table of likely successors, and the best-first tree drafted from it.

The table is set-associative: a key lives in one of WAYS places of its set, and a new key displaces the one that was
written longest ago. Keys are of two orders: one token (key = token), and two (key = (first + 1) << 31 | second).

Arrays:
    keys int64 (places,)          -1: empty.
    stamps int64 (places,)        clock at the last write.
    rows int32 (places, K)        the target's likeliest next tokens after the key, best first, as last seen.
    levels int64 (places,)        how often in a row the best one stayed the same, up to NUM_LEVELS - 1.
    state int64 (NUM_STATE,)      clock; number of keys held.
    counts float64 (classes, K+1) how often the token that came stood at each rank of the list; last: not in it.
                                  A class is order · NUM_LEVELS + level.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
from numba import types

from zerodraft.lookup._jit import I32_2D, I64, READ_I32, READ_I32_2D, kernel

Ints = npt.NDArray[np.int32]
Longs = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

F64: Final = types.Array(types.float64, 1, "C")
F64_2D: Final = types.Array(types.float64, 2, "C")
READ_F64: Final = types.Array(types.float64, 1, "C", readonly=True)
READ_F64_2D: Final = types.Array(types.float64, 2, "C", readonly=True)
READ_I64: Final = types.Array(types.int64, 1, "C", readonly=True)

K: Final = 8
WAYS: Final = 4
NUM_LEVELS: Final = 4
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


@kernel(types.int64(READ_I64, types.int64, types.int64))
def lookup(keys: Longs, first: int, second: int) -> int:
    """Place of the list for what follows (first, second): of both tokens if held, else of the second alone, or -1."""
    place = find(keys, pair_key(first, second))
    return place if place >= 0 else find(keys, second)


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


@kernel(types.void(READ_I64, READ_I32_2D, READ_I64, types.int64, types.int64, READ_I32, F64_2D))
def learn(keys: Longs, rows: Ints, levels: Longs, before: int, last: int, came: Ints, counts: Floats) -> None:
    """Count at which rank of its list each token that came stood. ``before``, ``last``: the two tokens ahead of it."""
    for token in came:
        place = lookup(keys, before, last)
        if place >= 0:
            row = counts[(NUM_LEVELS if keys[place] != last else 0) + levels[place]]
            found = K
            for rank in range(K):
                if rows[place, rank] == token:
                    found = rank
                    break
            row[found] += 1.0
            if row.sum() >= COUNT_CAP:
                row *= 0.5
        before, last = last, np.int64(token)


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


@kernel(
    types.void(
        READ_I32_2D,
        READ_I64,
        READ_F64_2D,
        READ_I64,
        READ_I32_2D,
        types.int64,
        I64,
        I64,
        I64,
        F64,
        F64,
        I64,
        F64,
        types.int64,
    )
)
def advance(
    rows: Ints,
    levels: Longs,
    chances: Floats,
    keys: Longs,
    held: Ints,
    num_held: int,
    token: Longs,
    place: Longs,
    rank: Longs,
    reach: Floats,
    left: Floats,
    origin: Longs,
    ahead: Floats,
    position: int,
) -> None:
    """Set ``ahead[position]``: the chance of its next recycled child, skipping tokens the given draft has there."""
    ahead[position] = 0.0
    where = place[position]
    if where < 0 or left[position] <= 0.0:
        return
    order = 0 if keys[where] == token[position] else NUM_LEVELS
    may_clash = position == 0 or origin[position] >= 0
    while rank[position] < K:
        candidate = rows[where, rank[position]]
        clashes = candidate < 0
        if may_clash and not clashes:
            for node in range(num_held):
                if held[ROW_PARENT, node] == origin[position] and held[ROW_TOKEN, node] == candidate:
                    clashes = True
                    break
        if not clashes:
            ahead[position] = reach[position] * left[position] * chances[order + levels[where], rank[position]]
            return
        rank[position] += 1


@kernel(
    types.int64(
        READ_I64,
        READ_I32_2D,
        READ_I64,
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
        chances: (classes, K) probability of each rank of a list.
        held, num_held: the given draft, a block as in ``draft.BLOCK_ROWS``.
    """
    size = max_nodes + 1
    token, parent_token = np.empty(size, np.int64), np.empty(size, np.int64)
    reach, left, ahead = np.empty(size), np.empty(size), np.empty(size)
    place, rank, depth = np.empty(size, np.int64), np.zeros(size, np.int64), np.zeros(size, np.int64)
    origin = np.full(size, -1, np.int64)  # the given draft's node that a node is
    at = np.full(num_held, -1, np.int64)  # where the given draft's nodes went
    held_probs, out_probs = held[ROW_PROB].view(np.float32), out[ROW_PROB].view(np.float32)
    token[0], parent_token[0], reach[0] = last, before, 1.0
    n, fresh = 0, 0  # nodes drafted; the position whose first candidate is to be found
    gain, best_gain, best_n = 0.0, 0.0, 0
    while True:
        # What follows the newest position, and what the given draft leaves over for it there.
        place[fresh] = lookup(keys, parent_token[fresh], token[fresh])
        left[fresh] = 1.0
        if fresh == 0 or origin[fresh] >= 0:
            for node in range(num_held):
                if held[ROW_PARENT, node] == origin[fresh]:
                    left[fresh] -= held_probs[node] / reach[fresh]
        advance(rows, levels, chances, keys, held, num_held, token, place, rank, reach, left, origin, ahead, fresh)
        if depth[fresh] >= max_depth:
            ahead[fresh] = 0.0
        if n == max_nodes:
            break
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
            break
        fresh = n + 1
        if is_held:
            for row in range(6):
                out[row, n] = held[row, best]
            above = np.int64(held[ROW_PARENT, best])
            above = at[above] if above >= 0 else -1
            at[best], origin[fresh] = n, best
            worth = max(likeliest * price, costs[2 + n] - costs[1 + n])
        else:
            above = best - 1
            out[ROW_TOKEN, n] = rows[place[best], rank[best]]
            out[ROW_MATCH, n] = 0
            out[ROW_ORIGIN, n] = -1
            out[ROW_SOURCE, n] = RECYCLED
            worth = likeliest * price
            rank[best] += 1
            advance(rows, levels, chances, keys, held, num_held, token, place, rank, reach, left, origin, ahead, best)
        out[ROW_PARENT, n] = above
        out_probs[n] = likeliest
        token[fresh], parent_token[fresh] = out[ROW_TOKEN, n], token[above + 1]
        reach[fresh], depth[fresh] = likeliest, depth[above + 1] + 1
        n += 1
        gain += worth - (costs[1 + n] - costs[n])
        if gain >= best_gain:
            best_gain, best_n = gain, n
    return best_n
