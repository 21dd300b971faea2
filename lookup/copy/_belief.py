"""Kernels of belief: how likely a copy is right, by the kinds of text that there are, and what an outcome says.

Beliefs float64 (kinds,) are log-probabilities, up to a constant, of each kind; each kind has its own ``breaks``.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from zerodraft.lookup._prices import Tables
from zerodraft.lookup.copy._search import CONTESTED, OUTVOTED
from zerodraft.lookup.runtime._jit import Floats, Longs, ReadFloats2D, kernel

# Measured, the same in all kinds of text: what the evidence says about the first token of a copy, not about the later.
BREAK_FACTOR: Final = (1.0, 0.7, 0.35)  # a copy that all others confirm breaks less often
RIGHT_IF_CONTESTED: Final = 0.33  # whatever the match length
RIGHT_IF_OUTVOTED: Final = 0.2
MAX_DOUBT: Final = 6.0  # a kind this far below the best in log weight is ignored, but falls no further: text changes


@kernel
def right_at_first(breaks: float, evidence: int) -> float:
    """Probability that a candidate's first token is right, from how often copies of its length break and the others."""
    if evidence == CONTESTED:
        return RIGHT_IF_CONTESTED
    if evidence == OUTVOTED:
        return RIGHT_IF_OUTVOTED
    return 1.0 - breaks * BREAK_FACTOR[evidence]


@kernel
def believed(beliefs: Floats, kinds: Longs, shares: Floats) -> int:
    """List the kinds that are not ruled out and what part of the belief each of them holds; return how many."""
    top, total, n = beliefs.max(), 0.0, 0
    for kind in range(len(beliefs)):
        if beliefs[kind] > top - MAX_DOUBT:
            kinds[n], shares[n] = kind, np.exp(beliefs[kind] - top)
            total += shares[n]
            n += 1
    for k in range(n):
        shares[k] /= total
    return n


@kernel
def expect(matched: int, beliefs: Floats, tables: Tables, probs: Floats, prices: Floats) -> None:
    """Fill in, for the nodes of a copy after ``matched`` tokens, the probability to be right so far, and the price."""
    last = tables.breaks.shape[1] - 1
    kinds, shares = np.empty(len(beliefs), np.int64), np.empty(len(beliefs))
    num_likely = believed(beliefs, kinds, shares)
    for depth in range(len(probs)):
        state, prob, worth = min(matched + depth, last), 0.0, 0.0
        for k in range(num_likely):
            shares[k] *= 1.0 - tables.breaks[kinds[k], state]
            prob += shares[k]
            worth += shares[k] * tables.prices[kinds[k], min(state + 1, last)]
        probs[depth], prices[depth] = prob, worth / max(prob, 1e-300)


@kernel
def doubt(beliefs: Floats, breaks: ReadFloats2D, state: int, right_factor: float, is_right: bool) -> None:
    """Shift the belief in each kind by a token that was right, or was not, after so many matched ones.

    ``right_factor`` below 0: the probability of a break is what ``breaks`` says times -right_factor; else: whatever the
    kind, the token is right with this probability.
    """
    for kind in range(len(beliefs)):
        right = right_factor if right_factor >= 0.0 else 1.0 + breaks[kind, state] * right_factor
        beliefs[kind] += np.log(right if is_right else 1.0 - right)


@kernel
def settle(beliefs: Floats) -> None:
    """Let no kind fall further than MAX_DOUBT below the best: the text may change."""
    floor = beliefs.max() - MAX_DOUBT
    for kind in range(len(beliefs)):
        beliefs[kind] = max(beliefs[kind], floor)
