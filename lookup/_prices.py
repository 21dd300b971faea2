"""Kernels that solve, once for each cost curve, what having a token already is worth; and the tables they fill."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from zerodraft.lookup.runtime._jit import Floats, Floats2D, ReadFloats, ReadFloats2D, kernel

WORTH_FACTOR: Final = 1.1  # what a node is worth is overrated so much: drafting slightly too little costs more


class Tables(NamedTuple):
    """What drafting looks up; read-only.

    Attributes:
        breaks: float64 (kinds, states). breaks[k, m]: probability that a copy breaks at the next token after m matched
            ones, in text of kind k; m is cut at states - 1. Index 0 is unused.
        prices: float64 (kinds, states). prices[k, m]: forwards saved by having the token that follows state m already.
        costs: float64 (rows,). costs[r]: cost of one forward over r positions, costs[1] == 1.
        slopes: float64 (rows,). slopes[r]: the least that each further position costs, on average, from r on.
    """

    breaks: ReadFloats2D
    prices: ReadFloats2D
    costs: ReadFloats
    slopes: ReadFloats


@kernel
def find_slopes(costs: ReadFloats, slopes: Floats) -> None:
    """Fill ``slopes`` from ``costs``; the last gets 0. Cost: rows² steps, a millisecond for 1,000."""
    rows = len(costs)
    slopes[rows - 1] = 0.0
    for r in range(rows - 1):
        slopes[r] = np.inf
        for later in range(r + 1, rows):
            slopes[r] = min(slopes[r], (costs[later] - costs[r]) / (later - r))


@kernel
def solve_prices(breaks: ReadFloats2D, costs: ReadFloats, max_nodes: int, prices: Floats2D) -> None:
    """Solve backwards, for every kind and match length, the cheapest way to verify the rest of a copied run.

    toll[m] = min over n of costs[1 + n] + P(n + 1 more tokens match) · toll[m + n + 1] is the expected cost until the
    run breaks; what a token at state m saves is toll[m] - P(the next one matches) · toll[m + 1].
    Cost: kinds · states · max_nodes steps.
    """
    num_states = breaks.shape[1]
    last = num_states - 1
    toll = np.zeros(num_states)
    for kind in range(breaks.shape[0]):
        stay = 1.0 - breaks[kind, last]
        survive, best = 1.0, np.inf
        for n in range(max_nodes + 1):
            survive *= stay
            best = min(best, costs[1 + n] / (1.0 - survive))
        toll[last] = best
        for m in range(last - 1, 0, -1):
            survive, best = 1.0, np.inf
            for n in range(max_nodes + 1):
                survive *= 1.0 - breaks[kind, min(m + n, last)]
                best = min(best, costs[1 + n] + survive * toll[min(m + n + 1, last)])
            toll[m] = best
        for m in range(1, num_states):
            prices[kind, m] = toll[m] - (1.0 - breaks[kind, m]) * toll[min(m + 1, last)]
