"""Kernels of the one merge: what several sources propose becomes one tree, of which the nodes that pay are drafted.

Every source writes its nodes into the block (``_block``) as one part, in the order in which they are to be taken:
parents first, worth falling. ``ends`` says where the parts end. A node is worth its probability times its price.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from zerodraft.lookup._block import NUM_ROWS, ORIGIN, PARENT, PRICE, PROB, TOKEN
from zerodraft.lookup._prices import WORTH_FACTOR
from zerodraft.lookup.runtime._jit import Ints, Ints2D, Longs, ReadFloats, ReadInts2D, kernel
from zerodraft.lookup.session._state import State

SURE: Final = 0.98  # where the first token of a draft is that likely, nobody else is asked: it would not pay
MIN_PROB: Final = 0.002  # a node less likely than this is never drafted
MIN_GAIN: Final = 0.01  # nor a draft that is expected to save less than this part of a forward
MIN_RATE: Final = 1.05  # where no draft pays by price, one is taken if it brings more than this many tokens per cost


class Parts(NamedTuple):
    """A block, and where the parts of it end that sources have written."""

    block: Ints2D
    ends: Longs


@kernel
def insert(block: ReadInts2D, first: int, end: int, tree: Ints2D, num_held: int, place: Longs) -> int:
    """Add the nodes of one part to a tree of ``num_held`` nodes; return how many it has then.

    A token that stands in the same place already is not added again; it lends its origin in the session's text. A
    branch that leaves the tree gets what its siblings there before it leave over: they are more likely right. What is
    left without a chance is not added. ``place`` gets where each node of the block went, -1: nowhere.
    """
    n = num_held
    probs, tree_probs = block[PROB].view(np.float32), tree[PROB].view(np.float32)
    for i in range(first, end):
        before = np.int64(block[PARENT, i])
        parent = place[before] if before >= 0 else -1
        place[i] = -1
        if before >= 0 and parent < 0:
            continue
        taken, found = 0.0, -1
        if parent < num_held:
            for node in range(parent + 1, num_held):
                if tree[PARENT, node] == parent:
                    taken += tree_probs[node]
                    if tree[TOKEN, node] == block[TOKEN, i]:
                        found = node
                        break
        if found >= 0:
            place[i] = found
            if tree[ORIGIN, found] < 0:
                tree[ORIGIN, found] = block[ORIGIN, i]
            continue
        reach = np.float64(tree_probs[parent]) if parent >= 0 else 1.0
        above = probs[before] if before >= 0 else np.float32(1.0)
        if reach <= taken or not probs[i] > 0.0 or not above > 0.0:
            continue
        chance = probs[i] / above
        for row in range(NUM_ROWS):
            tree[row, n] = block[row, i]
        tree[PARENT, n] = parent
        tree_probs[n] = (reach - taken) * chance
        place[i] = n
        n += 1
    return n


@kernel
def join(parts: Parts, num_parts: int, tree: Parts) -> int:
    """Make one tree of the parts, those first that are the surest of their first token; return its number of nodes."""
    block, ends = parts
    place, is_in = np.empty(ends[num_parts - 1], np.int64), np.zeros(num_parts, np.bool_)
    probs, n = block[PROB].view(np.float32), 0
    for part in range(num_parts):
        best = -1
        for other in range(num_parts):
            first = ends[other - 1] if other else 0
            if not is_in[other] and (best < 0 or probs[first] > probs[ends[best - 1] if best else 0]):
                best = other
        is_in[best] = True
        n = insert(block, ends[best - 1] if best else 0, ends[best], tree.block, n, place)
        tree.ends[part] = n
    return n


@kernel
def order(tree: Parts, num_parts: int, max_nodes: int, out: Ints2D) -> int:
    """Copy a tree's nodes by worth, parents first, into ``out``; return how many."""
    block, ends = tree
    probs, prices, out_probs = block[PROB].view(np.float32), block[PRICE].view(np.float32), out[PROB].view(np.float32)
    place, heads = np.full(ends[num_parts - 1], -1, np.int64), np.zeros(num_parts, np.int64)
    heads[1:] = ends[: num_parts - 1]
    n = 0
    while n < max_nodes:
        best, worth = -1, 0.0
        for part in range(num_parts):
            node = heads[part]
            while node < ends[part] and probs[node] < MIN_PROB:
                node += 1  # and what hangs from it is less likely still
            heads[part] = node
            if node == ends[part] or (best >= 0 and probs[node] * prices[node] <= worth):
                continue
            parent = block[PARENT, node]
            if parent < 0 or place[parent] >= 0:
                best, worth = part, np.float64(probs[node] * prices[node])
        if best < 0:
            break
        node = heads[best]
        heads[best] += 1
        place[node] = n
        for row in range(NUM_ROWS):
            out[row, n] = block[row, node]
        out[PARENT, n] = place[block[PARENT, node]] if block[PARENT, node] >= 0 else -1
        out_probs[n] = probs[node]
        n += 1
    return n


@kernel
def affordable(block: ReadInts2D, num_nodes: int, costs: ReadFloats, state: State) -> int:
    """How many nodes of an ordered block to draft: those whose worth exceeds the extra cost of the forward most.

    Where none does, the draft with the most expected tokens per cost is taken if they are more than ``MIN_RATE``:
    prices hope for a cheaper draft later, which a fork ahead can forbid for as long as a copy lasts. The state gets the
    expected tokens and the cost of what is drafted or, where nothing is, of the best draft that did not pay.
    """
    probs, prices = block[PROB].view(np.float32), block[PRICE].view(np.float32)
    gain, tokens = 0.0, 1.0
    best_gain, best, best_any = MIN_GAIN, 0, -np.inf
    best_rate, best_by_rate = MIN_RATE, 0
    for n in range(1, num_nodes + 1):
        gain += np.float64(probs[n - 1]) * prices[n - 1] * WORTH_FACTOR
        tokens += probs[n - 1]
        net = gain - (costs[1 + n] - costs[1])
        if net > best_any:
            best_any = net
            state.expected_tokens, state.expected_cost = tokens, costs[1 + n]
        if net > best_gain:
            best_gain, best = net, n
        if tokens > best_rate * costs[1 + n]:
            best_rate, best_by_rate = tokens / costs[1 + n], n
    if best == 0 and best_by_rate:
        best = best_by_rate
        state.expected_tokens, state.expected_cost = best_rate * costs[1 + best], costs[1 + best]
    return best


@kernel
def choose(parts: Parts, num_parts: int, max_nodes: int, costs: ReadFloats, state: State) -> int:
    """Leave the nodes that pay in the first columns of the block; return how many."""
    block, ends = parts
    max_nodes = min(max_nodes, len(costs) - 2)
    if num_parts == 0:
        return 0
    if num_parts == 1:
        return affordable(block, min(max_nodes, ends[0]), costs, state)
    tree = Parts(np.empty((NUM_ROWS, ends[num_parts - 1]), np.int32), np.empty(num_parts, np.int64))
    join(parts, num_parts, tree)
    return affordable(block, order(tree, num_parts, max_nodes, block), costs, state)


@kernel
def pick(tree: Parts, num_parts: int, max_nodes: int, costs: ReadFloats, states: list[State], out: Ints2D) -> int:
    """For Python: copy the nodes of a tree that pay into ``out``; return how many."""
    return affordable(out, order(tree, num_parts, max_nodes, out), costs, states[0])


@kernel
def keep_likeliest(tree: Ints2D, n: int, drafted: Ints) -> int:
    """Keep the likeliest chain of a tree of ``n`` nodes: from the root down always to the likeliest child.

    ``drafted`` gets its tokens; of equally likely children the first counts. Returns its length.
    """
    length, node = 0, -1
    while length < len(drafted):
        best = -1
        for other in range(node + 1, n):
            # Probabilities are not negative, so their bits order like them.
            if tree[PARENT, other] == node and (best < 0 or tree[PROB, other] > tree[PROB, best]):
                best = other
        if best < 0:
            break
        if best != length:
            for row in range(NUM_ROWS):
                tree[row, length] = tree[row, best]
        tree[PARENT, length], drafted[length] = length - 1, tree[TOKEN, length]
        length, node = length + 1, best
    return length
