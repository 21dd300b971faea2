"""Prices and slopes by their definitions: every policy is tried, every draft that goes on from here is looked at."""

from __future__ import annotations

import numpy as np
import pytest
import reference.prices
from hypothesis import given, settings
from hypothesis import strategies as st

from zerodraft.lookup import _prices as core

SIZES = [(4, 4), (5, 3), (6, 2), (6, 1), (4, 0)]  # states and largest draft: at most 1,024 policies


@st.composite
def tables(draw) -> tuple[list[float], list[float], int]:
    """(breaks by state, costs of 0 to max_nodes + 1 positions, max_nodes)."""
    num_states, max_nodes = draw(st.sampled_from(SIZES))
    breaks = draw(st.lists(st.floats(0.01, 0.95), min_size=num_states, max_size=num_states))
    rises = draw(st.lists(st.floats(0.0, 1.0), min_size=max_nodes, max_size=max_nodes))
    return [1.0, *breaks], [0.0, 1.0, *(1.0 + np.cumsum(rises)).tolist()], max_nodes


def solved(breaks: list[float], costs: list[float], max_nodes: int) -> list[float]:
    """The kernel's prices of one kind of text, with another kind before and behind it."""
    other = [1.0] + [0.5] * (len(breaks) - 1)
    prices = np.zeros((3, len(breaks)))
    core.solve_prices(np.array([other, breaks, other]), np.array(costs), max_nodes, prices)
    assert prices[0].tolist() == prices[2].tolist()
    return prices[1].tolist()


@settings(max_examples=40)
@given(tables())
def test_prices_are_the_differences_of_the_least_expected_costs(case):
    breaks, costs, max_nodes = case
    least = reference.prices.least_costs(breaks, costs, max_nodes)
    assert solved(*case) == pytest.approx(reference.prices.prices_of(breaks, least), abs=1e-9)


@settings(max_examples=40)
@given(tables())
def test_a_chain_whose_worth_exceeds_its_cost_most_is_the_cheapest_way_to_verify_the_run(case):
    """What prices are for. Worth counts a token by the state it leads to: having it saves the one that follows."""
    breaks, costs, max_nodes = case
    least, prices = reference.prices.least_costs(breaks, costs, max_nodes), solved(*case)
    last = len(breaks) - 1
    for m in range(1, last + 1):
        spent = [reference.prices.cost_of_drafting(n, m, breaks, costs, least) for n in range(max_nodes + 1)]
        gain, reached, net = 0.0, 1.0, [0.0]
        for n in range(1, max_nodes + 1):
            reached *= 1.0 - breaks[min(m + n - 1, last)]
            gain += reached * prices[min(m + n, last)]
            net.append(gain - (costs[1 + n] - costs[1]))
        assert net == pytest.approx([spent[0] - cost for cost in spent], abs=1e-9)
        assert spent[int(np.argmax(net))] == pytest.approx(least[m], abs=1e-9)


def test_a_price_worked_out_by_hand():
    """One state, breaks at half: a forward costs 1 and brings one token, or 1.2 and two if they are drafted."""
    costs = [0.0, 1.0, 1.2]
    assert min(1.0 / (1 - 0.5), 1.2 / (1 - 0.25)) == pytest.approx(1.6)
    assert solved([1.0, 0.5], costs, 1)[1] == pytest.approx(1.6 - 0.5 * 1.6)
    assert solved([1.0, 0.5], costs, 0)[1] == pytest.approx(2.0 - 0.5 * 2.0)


@given(st.lists(st.floats(0.0, 2.0), max_size=12))
def test_a_slope_is_the_largest_that_no_wider_forward_undercuts(rises):
    costs = np.array([0.0, 1.0, *(1.0 + np.cumsum(rises))])
    found = np.empty_like(costs)
    core.find_slopes(costs, found)
    for r in range(len(costs) - 1):
        above = [costs[k] - (costs[r] + found[r] * (k - r)) for k in range(r + 1, len(costs))]
        assert min(above) == pytest.approx(0.0, abs=1e-9)
    assert found[-1] == 0.0
