"""Which nodes of a joined tree are drafted: against the rule, and against every draft that could be cut out of it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference.choice import best_net_worth, by_rank, net_worth, num_that_pay, tokens_per_cost

from zerodraft.lookup import _block, _merge
from zerodraft.lookup.copy._copies import WORTH_FACTOR
from zerodraft.lookup.runtime._jit import dtype_of
from zerodraft.lookup.session._state import State

PRICES = [0.0625, 0.125, 0.25, 0.5, 0.75, 1.0]  # exact as float32, and so are their products


@st.composite
def forests(draw, most: int = 8) -> tuple[list[int], list[float]]:
    """(parents, probabilities) of a tree: nothing is likelier than its parent. Exact as float32."""
    parents: list[int] = []
    probs: list[float] = []
    for node in range(draw(st.integers(0, most))):
        parents.append(draw(st.integers(-1, node - 1)))
        share = draw(st.integers(1, 8)) / 8
        probs.append(share * (probs[parents[-1]] if parents[-1] >= 0 else 1.0))
    return parents, probs


rises = st.lists(st.sampled_from([0.0, 0.1, 0.25, 0.5]), min_size=9, max_size=9)


def table(rises: list[float]) -> list[float]:
    return [0.0, 1.0, *(1.0 + np.cumsum(rises)).tolist()]


def chosen(
    parents: list[int], probs: list[float], prices: list[float], costs: list[float], max_nodes: int
) -> tuple[int, ...]:
    """What the kernel drafts, in its order. Every node is a part of its own, so all are looked at at every step."""
    n = len(parents)
    if not n:
        return ()
    block, out = np.zeros((_block.NUM_ROWS, n), np.int32), np.zeros((_block.NUM_ROWS, n), np.int32)
    block[_block.TOKEN], block[_block.PARENT] = np.arange(n), parents
    block[_block.PROB].view(np.float32)[:] = probs
    block[_block.PRICE].view(np.float32)[:] = prices[:n]
    states = np.zeros(1, dtype_of(State))
    parts = _merge.Parts(block, np.arange(1, n + 1))
    count = _merge.pick(parts, n, min(max_nodes, n), np.array(costs), states, out)
    taken = out[_block.TOKEN, :count].tolist()
    assert [taken[up] if up >= 0 else -1 for up in out[_block.PARENT, :count]] == [parents[node] for node in taken]
    return tuple(taken)


@given(forests(), st.lists(st.sampled_from(PRICES), min_size=8, max_size=8), rises, st.integers(0, 9))
def test_nodes_are_taken_by_the_rule(forest, prices, rises, max_nodes):
    """Rule: by worth, parents before children, and as many of them as have the largest net worth; where none pays, as
    many as bring the most tokens per cost. Never more than the best of all drafts that could be cut out."""
    (parents, probs), costs = forest, table(rises)
    worths = [prob * price for prob, price in zip(probs, prices)]
    taken = by_rank([[node] for node in range(len(parents))], parents, worths, max_nodes)
    ranked = [probs[node] for node in taken], [WORTH_FACTOR * worths[node] for node in taken]
    drafted = chosen(parents, probs, prices, costs, max_nodes)
    assert drafted == tuple(taken[: num_that_pay(*ranked, costs, _merge.MIN_GAIN, _merge.MIN_RATE)])
    weighed = [WORTH_FACTOR * worth for worth in worths]
    assert net_worth(drafted, weighed, costs) <= best_net_worth(parents, weighed, costs, max_nodes) + 1e-6


@settings(max_examples=200)
@given(forests(), st.lists(st.sampled_from(PRICES), min_size=8, max_size=8), rises, st.integers(0, 9))
def test_where_worth_never_rises_on_the_way_down_no_other_draft_is_worth_more(forest, prices, rises, max_nodes):
    """Definition: all sets of nodes closed upwards are tried. A child costs no more than its parent here."""
    (parents, probs), costs = forest, table(rises)
    falling: list[float] = []
    for parent, price in zip(parents, prices):
        falling.append(min(price, falling[parent]) if parent >= 0 else price)
    worths = [WORTH_FACTOR * prob * price for prob, price in zip(probs, falling)]
    drafted = chosen(parents, probs, falling, costs, max_nodes)
    best = best_net_worth(parents, worths, costs, max_nodes)
    if best > _merge.MIN_GAIN + 1e-6:
        assert net_worth(drafted, worths, costs) == pytest.approx(best, abs=1e-6)
    elif drafted and best < _merge.MIN_GAIN - 1e-6:
        assert tokens_per_cost(drafted, probs, costs) > _merge.MIN_RATE
