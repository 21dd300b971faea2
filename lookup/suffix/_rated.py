"""Kernels that turn the shares of a suffix tree into probabilities, and learn how far its branches can be believed."""

from __future__ import annotations

import numpy as np

from zerodraft.lookup._block import MATCH, ORIGIN, PARENT, PREDICTION, PRICE, PROB, SOURCE, TOKEN
from zerodraft.lookup._prices import Tables
from zerodraft.lookup.copy._belief import doubt, expect, settle
from zerodraft.lookup.runtime._jit import Floats, Ints2D, ReadInts, ReadInts2D, kernel


@kernel
def rate(block: Ints2D, num_nodes: int, num_predicted: int, beliefs: Floats, tables: Tables) -> None:
    """Turn shares into probabilities: times the chance that a copy with this match holds so far. And set the prices.

    Shares alone are 1 wherever one occurrence is left. Nodes copied from the first ``num_predicted`` positions get the
    source PREDICTION.
    """
    holds, prices = np.empty(num_nodes), np.empty(num_nodes)
    expect(np.int64(block[MATCH, 0]), beliefs, tables, holds, prices)
    depths, probs, out_prices = (
        np.zeros(num_nodes, np.int64),
        block[PROB].view(np.float32),
        block[PRICE].view(np.float32),
    )
    for i in range(num_nodes):
        above = block[PARENT, i]
        depths[i] = depths[above] + 1 if above >= 0 else 0
        probs[i], out_prices[i] = probs[i] * holds[depths[i]], prices[depths[i]]
        if block[ORIGIN, i] < num_predicted:
            block[SOURCE, i] = PREDICTION


@kernel
def learn(block: ReadInts2D, num_nodes: int, came: ReadInts, may_break: bool, beliefs: Floats, tables: Tables) -> None:
    """Shift the belief in each kind of text by how far the tokens that came were among the branches."""
    node, depth, last = -1, 0, tables.breaks.shape[1] - 1
    while depth < len(came):
        has_branch, found = False, -1
        for i in range(node + 1, num_nodes):
            if block[PARENT, i] == node:
                has_branch = True
                if block[TOKEN, i] == came[depth]:
                    found = i
        if not has_branch or (found < 0 and not may_break):
            break
        doubt(beliefs, tables.breaks, min(np.int64(block[MATCH, 0]) + depth, last), -1.0, found >= 0)
        if found < 0:
            break
        node, depth = found, depth + 1
    settle(beliefs)
