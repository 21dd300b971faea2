"""Kernels of logit recycling: a bounded table of likely successors, and the best-first tree drafted from it.

The table is set-associative: a key lives in one of WAYS places of its set, and a new key displaces the one that was
written longest ago. Keys are of two orders: one token (key = token), and two (key = (first + 1) << 31 | second).

A ``Table`` is five arrays:
    keys int64 (places,)          -1: empty.
    stamps int64 (places,)        clock at the last write.
    rows int32 (places, K)        the target's likeliest next tokens after the key, best first, as last seen.
    levels int64 (places,)        how often in a row the best one stayed the same, up to NUM_LEVELS - 1.
    state int64 (NUM_STATE,)      clock; number of keys held.
and beside them there are
    common int32 (K,)             the tokens that came most often, whatever was before them; -1: none.
    counts float64 (classes, K+1) how often the token that came stood at each rank of a list, and in none of the table
                                  asked before it; last: otherwise. Lists are asked in the order: two tokens, one
                                  token, common. A class is the kind of list and what was asked before it.

A row may end in -1: fewer than K successors are known.
"""

from __future__ import annotations

from typing import Annotated, Final, NamedTuple

import numpy as np

from zerodraft.lookup._block import MATCH, ORIGIN, PARENT, PRICE, PROB, RECYCLED, SOURCE, TOKEN
from zerodraft.lookup._prices import WORTH_FACTOR
from zerodraft.lookup.runtime._jit import Floats2D, Ints2D, Longs, ReadFloats, ReadInts, ReadInts2D, kernel, record

K: Final = 8
WAYS: Final = 4
NUM_LEVELS: Final = 4
ONE, TWO, ONE_AFTER_TWO, COMMON, COMMON_AFTER, NUM_CLASSES = 0, 4, 8, 9, 10, 11  # ONE and TWO: plus the level
CLOCK, HELD, NUM_STATE = range(3)
COUNT_CAP: Final = 256.0  # counts of a class are halved when they reach this: the text may change its kind


class Table(NamedTuple):
    """The arrays of a table, as the docstring of this file says."""

    keys: Longs
    stamps: Longs
    rows: Ints2D
    levels: Longs
    state: Longs


class Known(NamedTuple):
    """What successors are drafted from: the lists, the common ones, and how likely each rank of a list is.

    ``chances`` float64 (NUM_CLASSES, K).
    """

    table: Table
    common: ReadInts
    chances: Floats2D


class Limits(NamedTuple):
    """How far a tree may grow.

    Attributes:
        max_new, max_depth: upper bounds on the nodes that are added and on their depth.
        price: what an accepted token saves, in forwards over one position.
        min_prob: a node less likely than this is not drafted.
        slopes: slopes[r]: the least that each further position of a forward costs from r positions on.
    """

    max_new: int
    max_depth: int
    price: float
    min_prob: float
    slopes: ReadFloats


@record
class Position:
    """The root of a tree or a node, as a place below which successors are hung."""

    depth: int
    reach: float  # probability that it is reached and right
    left: float  # the part of it that its children in the tree leave over
    categories: Annotated[Longs, int, (3,)]  # classes of the lists that can be asked here, -1: there is none
    places: Annotated[Longs, int, (3,)]  # where these are
    ranks: Annotated[Longs, int, (3,)]  # how far each is used up
    ahead: float  # probability of its likeliest successor that is not its child yet
    token: int  # that successor


@kernel
def home(keys: Longs, key: int) -> int:
    """First place of the key's set; the number of sets is a power of two."""
    mixed = np.uint64(np.int64(key)) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
    mixed ^= mixed >> np.uint64(32)
    place: int = np.int64(mixed & np.uint64(len(keys) // WAYS - 1)) * WAYS
    return place


@kernel
def find(keys: Longs, key: int) -> int:
    """Place of the key, -1 if it is not held."""
    start = home(keys, key)
    for place in range(start, start + WAYS):
        if keys[place] == key:
            return place
    return -1


@kernel
def pair_key(first: int, second: int) -> int:
    """Key of two tokens in a row; first -1 (no token before): -2, which no place holds."""
    return ((np.int64(first) + 1) << 31) | second if first >= 0 else -2


@kernel
def put(table: Table, key: int, row: ReadInts) -> None:
    """Write a key's list; the key written longest ago in its set makes room."""
    keys, stamps, rows, levels, state = table
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


@kernel
def fill(table: Table, keys: Longs, levels: Longs, rows: ReadInts2D) -> None:
    """Write table that were kept elsewhere, in order, each with the level it had."""
    for i in range(len(keys)):
        put(table, keys[i], rows[i])
        table.levels[find(table.keys, keys[i])] = levels[i]


@kernel
def ask(table: Table, before: int, last: int, kind: int, places: Longs) -> int:
    """Class of list number ``kind`` (0: two tokens, 1: one, 2: common) after (before, last), -1 if there is none.

    To be asked in order: ``places`` (3,) keeps where the table are, -1: not known; the common one has no place.
    """
    if kind == 0:
        places[0] = find(table.keys, pair_key(before, last))
        return TWO + table.levels[places[0]] if places[0] >= 0 else -1
    if kind == 1:
        places[1] = find(table.keys, last)
        if places[1] < 0:
            return -1
        return ONE_AFTER_TWO if places[0] >= 0 else ONE + table.levels[places[1]]
    return COMMON_AFTER if places[0] >= 0 or places[1] >= 0 else COMMON


@kernel
def learn(table: Table, common: ReadInts, before: int, last: int, came: ReadInts, counts: Floats2D) -> None:
    """Count at which rank of which list each token that came stood, after the tokens ``before`` and ``last``."""
    places = np.empty(3, np.int64)
    for token in came:
        is_found = False
        for kind in range(3):
            category = ask(table, before, last, kind, places)
            if category < 0:
                continue
            rank = K
            if not is_found:
                for at in range(K):
                    if (common[at] if kind == 2 else table.rows[places[kind], at]) == token:
                        rank, is_found = at, True
                        break
            row = counts[category]
            row[rank] += 1.0
            if row.sum() >= COUNT_CAP:
                row *= 0.5
        before, last = last, np.int64(token)


@kernel
def push(table: Table, key: int, token: int) -> None:
    """Put a token first in a key's list; the others move down."""
    row = np.full(K, -1, np.int32)
    row[0] = token
    place = find(table.keys, key)
    if place >= 0:
        rank = 1
        for at in range(K):
            if rank < K and table.rows[place, at] != token:
                row[rank] = table.rows[place, at]
                rank += 1
    put(table, key, row)


@kernel
def read(table: Table, text: ReadInts) -> None:
    """Store what follows what in a text, the latest first."""
    for i in range(1, len(text)):
        push(table, text[i - 1], text[i])
        if i > 1:
            push(table, pair_key(text[i - 2], text[i - 1]), text[i])


@kernel
def write(
    table: Table, before: int, last: int, tokens: ReadInts, parents: ReadInts, path: Longs, topk: ReadInts2D
) -> None:
    """Store the successors seen after the root and after every node; the accepted path comes last, so it stays.

    Row 0 of ``topk`` follows ``last``, row i + 1 node i.
    """
    accepted = np.zeros(len(topk), np.bool_)
    accepted[0] = True
    for node in path:
        accepted[node + 1] = True
    for turn in range(2):
        for position in range(len(topk)):
            if accepted[position] != (turn == 1):
                continue
            first, second = before, last
            if position > 0:
                second = np.int64(tokens[position - 1])
                parent = parents[position - 1]
                first = last if parent < 0 else np.int64(tokens[parent])
            put(table, second, topk[position])
            if first >= 0:
                put(table, pair_key(first, second), topk[position])


@kernel
def has_child(tree: ReadInts2D, n: int, node: int, token: int) -> bool:
    """True if a node of the tree, -1 the root, has a child with that token."""
    for other in range(node + 1, n):  # noqa: SIM110  (numba has no any())
        if tree[PARENT, other] == node and tree[TOKEN, other] == token:
            return True
    return False


@kernel
def look_ahead(known: Known, limits: Limits, tree: ReadInts2D, n: int, node: int, position: Position) -> None:
    """Find the likeliest successor of a node that is not its child yet; ``ahead`` is 0 where there can be none."""
    position.ahead, position.token = 0.0, -1
    if position.depth >= limits.max_depth or position.left <= 0.0:
        return
    for kind in range(3):
        category, place = position.categories[kind], position.places[kind]
        while category >= 0 and position.ranks[kind] < K:
            rank = position.ranks[kind]
            token = np.int64(known.common[rank] if kind == 2 else known.table.rows[place, rank])
            if token >= 0 and not has_child(tree, n, node, token):
                if known.chances[category, rank] > position.ahead:
                    position.ahead, position.token = known.chances[category, rank], token
                break
            position.ranks[kind] += 1
    position.ahead *= position.reach * position.left


@kernel
def stand_at(known: Known, before: int, last: int, tree: ReadInts2D, node: int, positions: list[Position]) -> None:
    """Fill in the position of a node, -1 the root, from that of its parent."""
    position, first, second = positions[node + 1], before, last
    position.depth, position.left, position.reach, position.ranks[:] = 0, 1.0, 1.0, 0
    if node >= 0:
        up = tree[PARENT, node]
        first, second = last if up < 0 else np.int64(tree[TOKEN, up]), np.int64(tree[TOKEN, node])
        position.depth, position.reach = positions[up + 1].depth + 1, tree[PROB].view(np.float32)[node]
    for kind in range(3):
        position.categories[kind] = ask(known.table, first, second, kind, position.places[:])


@kernel
def grow(
    known: Known, before: int, last: int, tree: Ints2D, num_held: int, limits: Limits, positions: list[Position]
) -> int:
    """Hang the likeliest successors below the root and the nodes of a tree, best first; return its number of nodes.

    They share what a node's children in the tree leave over. It ends where none of them can pay for its position.

    Args:
        positions: room for the root and all nodes that the tree may have.
    """
    n, probs, prices = num_held, tree[PROB].view(np.float32), tree[PRICE].view(np.float32)
    for node in range(-1, n):
        stand_at(known, before, last, tree, node, positions)
    for node in range(n):
        above = positions[tree[PARENT, node] + 1]
        if above.reach > 0.0:
            above.left -= positions[node + 1].reach / above.reach
    for node in range(-1, n):
        look_ahead(known, limits, tree, n, node, positions[node + 1])
    while True:
        best = 0
        for at in range(1, n + 1):
            if positions[at].ahead > positions[best].ahead:
                best = at
        parent, taken = positions[best], n - num_held
        if taken == limits.max_new or parent.ahead < limits.min_prob:
            return n
        if parent.ahead * limits.price * WORTH_FACTOR < limits.slopes[1 + taken]:
            return n
        tree[TOKEN, n], tree[PARENT, n], tree[SOURCE, n] = parent.token, best - 1, RECYCLED
        tree[MATCH, n], tree[ORIGIN, n] = 0, -1
        probs[n], prices[n] = parent.ahead, limits.price
        stand_at(known, before, last, tree, n, positions)
        n += 1
        look_ahead(known, limits, tree, n, n - 1, positions[n])
        look_ahead(known, limits, tree, n, best - 1, parent)
