"""Kernels that put the drafts of several sources into one: same tokens share a node, and every node has to pay.

A draft is an int32 block as in ``draft.BLOCK_ROWS``, parents before children, probabilities never rising on the way
down. Beliefs, breaks, prices and costs are those of ``_policy_core``.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
from numba import types

from zerodraft.lookup.runtime.jit import I32_2D, I64, READ_I32, kernel

Ints = npt.NDArray[np.int32]
Longs = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

F64: Final = types.Array(types.float64, 1, "C")
READ_F64: Final = types.Array(types.float64, 1, "C", readonly=True)
READ_F64_2D: Final = types.Array(types.float64, 2, "C", readonly=True)
ROW_TOKEN, ROW_PARENT, ROW_PROB, ROW_MATCH, ROW_ORIGIN, ROW_SOURCE, NUM_ROWS = range(7)


@kernel(types.int64(I32_2D, types.int64, READ_F64, READ_F64_2D, types.float64))
def rate_chain(block: Ints, num_nodes: int, weights: Floats, breaks: Floats, min_prob: float) -> int:
    """Set the probabilities of a chain by what is believed of its source; return how many reach ``min_prob``."""
    num_kinds, last = breaks.shape[0], breaks.shape[1] - 1
    chance = np.exp(weights - weights.max())
    chance /= chance.sum()
    probs = block[ROW_PROB].view(np.float32)
    for i in range(num_nodes):
        state = min(np.int64(block[ROW_MATCH, i]) + i, last)
        prob = 0.0
        for kind in range(num_kinds):
            chance[kind] *= 1.0 - breaks[kind, state]
            prob += chance[kind]
        if prob < min_prob:
            return i
        probs[i] = prob
    return num_nodes


@kernel(types.int64(I32_2D, types.int64, I32_2D, types.int64, I64))
def insert(block: Ints, num_held: int, other: Ints, num_other: int, place: Longs) -> int:
    """Add the nodes of ``other`` to the draft in ``block``; return how many nodes it has then.

    A token that stands in the same place already is not added again; it lends its origin in the session's text. A
    branch that leaves the draft gets what its siblings there before it leave over: they are more likely right.
    ``place`` (num_other,) is scratch: where each node of ``other`` went.
    """
    n = num_held
    probs, other_probs = block[ROW_PROB].view(np.float32), other[ROW_PROB].view(np.float32)
    for i in range(num_other):
        before = np.int64(other[ROW_PARENT, i])
        parent = place[before] if before >= 0 else -1
        taken, found = 0.0, -1
        if parent < num_held:
            for node in range(parent + 1, num_held):
                if block[ROW_PARENT, node] == parent:
                    taken += probs[node]
                    if block[ROW_TOKEN, node] == other[ROW_TOKEN, i]:
                        found = node
                        break
        if found >= 0:
            place[i] = found
            if block[ROW_ORIGIN, found] < 0:
                block[ROW_ORIGIN, found] = other[ROW_ORIGIN, i]
            continue
        reach = np.float64(probs[parent]) if parent >= 0 else 1.0
        chance = other_probs[i] / other_probs[before] if before >= 0 else np.float64(other_probs[i])
        for row in range(NUM_ROWS):
            block[row, n] = other[row, i]
        block[ROW_PARENT, n] = parent
        probs[n] = max(0.0, reach - taken) * chance
        place[i] = n
        n += 1
    return n


@kernel(
    types.int64(
        I32_2D,
        I64,
        types.int64,
        READ_F64,
        READ_F64_2D,
        READ_F64,
        types.float64,
        types.float64,
        types.float64,
        I32_2D,
    )
)
def choose(
    block: Ints,
    ends: Longs,
    max_nodes: int,
    weights: Floats,
    prices: Floats,
    costs: Floats,
    min_prob: float,
    factor: float,
    min_gain: float,
    out: Ints,
) -> int:
    """Copy the nodes that pay into ``out``, the likeliest first, parents before children; return how many.

    ``ends`` says where the nodes that each source added end; within one they come in the order to take them. A node is
    worth its probability times the price of its token, as in ``_policy_core.propose``, and the draft ends where the sum
    of worth times ``factor`` exceeds the extra cost of the forward most, by more than ``min_gain``.
    """
    num_kinds, last = prices.shape[0], prices.shape[1] - 1
    belief = np.exp(weights - weights.max())
    belief /= belief.sum()
    probs, out_probs = block[ROW_PROB].view(np.float32), out[ROW_PROB].view(np.float32)
    num_nodes = ends[len(ends) - 1]
    depth, place = np.empty(num_nodes, np.int64), np.full(num_nodes, -1, np.int64)
    heads = np.zeros(len(ends), np.int64)
    heads[1:] = ends[:-1]
    gain, best_gain, best_n, n = 0.0, min_gain, 0, 0
    while n < max_nodes:
        best, likeliest = -1, 0.0
        for source in range(len(ends)):
            node = heads[source]
            if node == ends[source] or probs[node] < max(min_prob, likeliest):
                continue
            parent = block[ROW_PARENT, node]
            if (parent < 0 or place[parent] >= 0) and (best < 0 or probs[node] > likeliest):
                best, likeliest = source, np.float64(probs[node])
        if best < 0:
            break
        node = heads[best]
        heads[best] += 1
        parent = np.int64(block[ROW_PARENT, node])
        depth[node] = depth[parent] + 1 if parent >= 0 else 1
        place[node] = n
        for row in range(NUM_ROWS):
            out[row, n] = block[row, node]
        out[ROW_PARENT, n] = place[parent] if parent >= 0 else -1
        out_probs[n] = probs[node]
        n += 1
        after = min(np.int64(block[ROW_MATCH, node]) + depth[node], last)
        price = 0.0
        for kind in range(num_kinds):
            price += belief[kind] * prices[kind, after]
        gain += probs[node] * price * factor
        net = gain - (costs[1 + n] - costs[1])
        if net > best_gain:
            best_gain, best_n = net, n
    return best_n


@kernel(types.int64(READ_I32, types.int64, READ_I32, types.boolean, READ_F64_2D, F64, types.float64))
def learn_chain(
    chain: Ints, match: int, came: Ints, may_break: bool, breaks: Floats, weights: Floats, max_doubt: float
) -> int:
    """Compare a source's chain with what came, shift the belief of its kinds, and return how many tokens agree."""
    last = breaks.shape[1] - 1
    agreed = 0
    for i in range(min(len(chain), len(came))):
        same = chain[i] == came[i]
        if not same and not may_break:
            break
        state = min(match + i, last)
        for kind in range(breaks.shape[0]):
            weights[kind] += np.log(1.0 - breaks[kind, state] if same else breaks[kind, state])
        if not same:
            break
        agreed += 1
    floor = weights.max() - max_doubt
    for kind in range(len(weights)):
        weights[kind] = max(weights[kind], floor)
    return agreed
