"""Kernels that turn the shares of a suffix tree into probabilities, and learn how far its branches can be believed."""

from __future__ import annotations

import numpy as np

from zerodraft.lookup._block import MATCH, NUM_ROWS, ORIGIN, PARENT, PREDICTION, PRICE, PROB, SOURCE, TOKEN
from zerodraft.lookup._prices import Tables
from zerodraft.lookup.memory._stored import doubt_chain, rate_chain
from zerodraft.lookup.runtime._jit import Floats, Ints2D, ReadInts, ReadInts2D, kernel


@kernel
def rate(block: Ints2D, num_nodes: int, num_predicted: int, beliefs: Floats, tables: Tables) -> None:
    """Turn shares into probabilities: times the chance that a copy with this match holds so far. And set the prices.

    Shares alone are 1 wherever one occurrence is left. Nodes copied from the first ``num_predicted`` positions get the
    source PREDICTION.
    """
    copied, depths = np.zeros((NUM_ROWS, num_nodes), np.int32), np.zeros(num_nodes, np.int64)
    copied[MATCH] = block[MATCH, 0]
    rate_chain(copied, 0, num_nodes, beliefs, tables, 0.0)  # column d: what is true of a copy at depth d
    shares, holds = block[PROB].view(np.float32), copied[PROB].view(np.float32)
    for i in range(num_nodes):
        above = block[PARENT, i]
        depths[i] = depths[above] + 1 if above >= 0 else 0
        shares[i] *= holds[depths[i]]
        block[PRICE, i] = copied[PRICE, depths[i]]
        if block[ORIGIN, i] < num_predicted:
            block[SOURCE, i] = PREDICTION


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
