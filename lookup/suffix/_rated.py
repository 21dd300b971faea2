"""Kernels that turn the shares of a suffix tree into probabilities, and learn how far its branches can be believed."""

from __future__ import annotations

from typing import Final

import numpy as np

from zerodraft.lookup._block import MATCH, ORIGIN, PARENT, PREDICTION, PRICE, PROB, SOURCE, TOKEN
from zerodraft.lookup._prices import Tables
from zerodraft.lookup.copy._belief import BREAK_FACTOR, believed
from zerodraft.lookup.memory._stored import doubt_chain
from zerodraft.lookup.runtime._jit import Floats, Ints2D, ReadInts, ReadInts2D, kernel

# As BREAK_FACTOR, for the tokens after the first: the square roots, which did best on repeated jobs and elsewhere.
LATER_FACTOR: Final = (1.0, 0.84, 0.59)


@kernel
def rate(block: Ints2D, n: int, num_predicted: int, num_occurrences: int, beliefs: Floats, tables: Tables) -> None:
    """Turn shares of the ``num_occurrences`` of the match into probabilities, and set the prices.

    A share alone is 1 wherever one occurrence is left. So a node is as likely as its share times the chance that a copy
    with this match holds so far, which is the better the more occurrences agree. Nodes copied from the first
    ``num_predicted`` positions get the source PREDICTION.
    """
    breaks, last = tables.breaks, tables.breaks.shape[1] - 1
    kinds, shares = np.empty(len(beliefs), np.int64), np.empty(len(beliefs))
    num_likely = believed(beliefs, kinds, shares)
    depths, holds = np.zeros(n, np.int64), np.empty((n, num_likely))
    probs, prices = block[PROB].view(np.float32), block[PRICE].view(np.float32)
    for i in range(n):
        above, hold, worth = block[PARENT, i], 0.0, 0.0
        depths[i] = depths[above] + 1 if above >= 0 else 0
        state = min(np.int64(block[MATCH, i]) + depths[i], last)
        agreeing = min(max(int(probs[i] * num_occurrences + 0.5), 1), len(BREAK_FACTOR))
        factor = BREAK_FACTOR[agreeing - 1] if depths[i] == 0 else LATER_FACTOR[agreeing - 1]
        for k in range(num_likely):
            before = holds[above, k] if above >= 0 else shares[k]
            holds[i, k] = before * (1.0 - breaks[kinds[k], state] * factor)
            hold += holds[i, k]
            worth += holds[i, k] * tables.prices[kinds[k], min(state + 1, last)]
        prices[i] = worth / hold
        if block[ORIGIN, i] < num_predicted:
            block[SOURCE, i] = PREDICTION
    for i in range(n):
        hold = 0.0
        for k in range(num_likely):
            hold += holds[i, k]
        probs[i] *= hold


@kernel
def learn(block: ReadInts2D, num_nodes: int, came: ReadInts, may_break: bool, beliefs: Floats, tables: Tables) -> None:
    """Shift the belief in each kind of text by how far the tokens that came were among the branches."""
    chain, depth, node = np.full(len(came), -1, np.int32), 0, -1  # the branches that came, then -1
    for token in came:
        found = -2  # no branch at all; -1: none with this token
        for i in range(node + 1, num_nodes):
            if block[PARENT, i] == node and found < 0:
                found = i if block[TOKEN, i] == token else -1
        depth += found >= -1
        if found < 0:
            break
        chain[depth - 1], node = token, found
    doubt_chain(chain[:depth], block[MATCH, 0], came, may_break, beliefs, tables)
