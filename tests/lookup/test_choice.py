"""Which nodes of a joined tree are drafted: against the rule, and against every draft that could be cut out of it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference.choice import best_net_worth, by_rank, net_worth, num_that_pay

from zerodraft.lookup import _merge_core as core
from zerodraft.lookup.draft import BLOCK_ROWS

MIN_GAIN = 0.01


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
    """What the kernel drafts, in its order. Every node is a source of its own, so all are looked at at every step."""
    n = len(parents)
    if not n:
        return ()
    block, out = np.zeros((len(BLOCK_ROWS), n), np.int32), np.zeros((len(BLOCK_ROWS), n), np.int32)
    block[core.ROW_TOKEN] = np.arange(n)
    block[core.ROW_PARENT] = parents
    block[core.ROW_PROB].view(np.float32)[:] = probs
    depths: list[int] = []
    for parent in parents:
        depths.append(depths[parent] + 1 if parent >= 0 else 1)
    block[core.ROW_MATCH] = [1 + node - depth for node, depth in enumerate(depths)]  # so that it looks up its own price
    by_state = np.array([[0.0, *prices]])
    ends = np.arange(1, n + 1)
    count = core.choose(block, ends, min(max_nodes, n), np.zeros(1), by_state, np.array(costs), 0.0, 1.0, MIN_GAIN, out)
    taken = out[core.ROW_TOKEN, :count].tolist()
    assert [taken[up] if up >= 0 else -1 for up in out[core.ROW_PARENT, :count]] == [parents[node] for node in taken]
    return tuple(taken)


@given(forests(), st.lists(st.floats(0.0, 1.0), min_size=8, max_size=8), rises, st.integers(0, 9))
def test_nodes_are_taken_by_the_rule(forest, prices, rises, max_nodes):
    """Rule: the likeliest first, parents before children, and as many of them as have the largest net worth."""
    (parents, probs), costs = forest, table(rises)
    worths = [prob * price for prob, price in zip(probs, prices)]
    taken = by_rank([[node] for node in range(len(parents))], parents, probs, max_nodes)
    count = num_that_pay(
        [probs[node] for node in taken], [worths[node] for node in taken], costs, MIN_GAIN, min_rate=None
    )
    drafted = chosen(parents, probs, prices, costs, max_nodes)
    ours, theirs = net_worth(drafted, worths, costs), net_worth(tuple(taken[:count]), worths, costs)
    assert drafted == tuple(taken[: len(drafted)])
    assert ours == pytest.approx(theirs, abs=1e-6)
    assert ours <= best_net_worth(parents, worths, costs, max_nodes) + 1e-6


@settings(max_examples=200)
@given(forests(), st.floats(0.05, 1.0), rises, st.integers(0, 9))
def test_where_all_tokens_save_the_same_no_other_draft_is_worth_more(forest, price, rises, max_nodes):
    """Definition: all sets of nodes closed upwards are tried. Here rank is worth, which never rises on the way down."""
    (parents, probs), costs = forest, table(rises)
    worths = [prob * price for prob in probs]
    drafted = chosen(parents, probs, [price] * 8, costs, max_nodes)
    best = best_net_worth(parents, worths, costs, max_nodes)
    if best > MIN_GAIN + 1e-6:
        assert net_worth(drafted, worths, costs) == pytest.approx(best, abs=1e-6)
    elif best < MIN_GAIN - 1e-6:
        assert drafted == ()
