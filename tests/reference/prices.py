"""What it costs to verify the rest of a copied run, found by trying every policy there is.

A run has matched m tokens (more than ``len(breaks) - 1`` count as so many) and breaks at the next token with
probability ``breaks[m]``; index 0 is unused. Until it breaks, forwards are made. One that drafts n tokens costs
``costs[1 + n]`` and verifies n + 1 tokens: those drafted, and the bonus token behind them. A policy says how many
tokens to draft in every state m.
"""

from __future__ import annotations

import itertools

Policy = tuple[int, ...]  # nodes drafted in state 1, 2, ...


def expected_cost(policy: Policy, start: int, breaks: list[float], costs: list[float]) -> float:
    """Sum over all forwards until the run breaks of the chance that one is made times its cost."""
    last = len(breaks) - 1
    m, reached, total = start, 1.0, 0.0
    while True:
        num_drafted, here, stays = policy[m - 1], m, 1.0
        for _ in range(num_drafted + 1):
            stays *= 1.0 - breaks[m]
            m = min(m + 1, last)
        if here == last:  # the same forward again and again: a geometric series
            return total + reached * costs[1 + num_drafted] / (1.0 - stays)
        total += reached * costs[1 + num_drafted]
        reached *= stays


def least_costs(breaks: list[float], costs: list[float], max_nodes: int) -> list[float]:
    """Least expected cost of a run by its state, over every policy; index 0 is unused."""
    states = range(1, len(breaks))
    policies = list(itertools.product(range(max_nodes + 1), repeat=len(states)))
    return [0.0, *(min(expected_cost(policy, m, breaks, costs) for policy in policies) for m in states)]


def cost_of_drafting(num_drafted: int, m: int, breaks: list[float], costs: list[float], least: list[float]) -> float:
    """Expected cost of a run in state m if so many tokens are drafted now and as is cheapest from then on."""
    stays = 1.0
    for _ in range(num_drafted + 1):
        stays *= 1.0 - breaks[m]
        m = min(m + 1, len(breaks) - 1)
    return costs[1 + num_drafted] + stays * least[m]


def prices_of(breaks: list[float], least: list[float]) -> list[float]:
    """What it saves in each state to have the next token for nothing: if it is right, the run goes on behind it."""
    last = len(breaks) - 1
    return [0.0, *(least[m] - (1.0 - breaks[m]) * least[min(m + 1, last)] for m in range(1, len(breaks)))]


def least_slope(costs: list[float], row: int) -> float:
    """The least that each further position costs on average from ``row`` positions on, however many; 0 at the end."""
    return min(((costs[k] - costs[row]) / (k - row) for k in range(row + 1, len(costs))), default=0.0)
