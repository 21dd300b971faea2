"""What the rest of a copied run costs, and what one token less saves."""

from __future__ import annotations


def tolls_and_prices(breaks: list[float], costs: list[float], max_nodes: int) -> tuple[list[float], list[float]]:
    """Per matched length: least expected cost of verifying a run until it breaks; what one token less saves of it."""
    last = len(breaks) - 1

    def stays(m: int, count: int) -> float:
        chance = 1.0
        for i in range(count):
            chance *= 1.0 - breaks[min(m + i, last)]
        return chance

    tolls = [0.0] * len(breaks)
    tolls[last] = min(costs[1 + n] / (1.0 - stays(last, n + 1)) for n in range(max_nodes + 1))
    for m in range(last - 1, 0, -1):
        tolls[m] = min(costs[1 + n] + stays(m, n + 1) * tolls[min(m + n + 1, last)] for n in range(max_nodes + 1))
    prices = [0.0] + [tolls[m] - (1.0 - breaks[m]) * tolls[min(m + 1, last)] for m in range(1, len(breaks))]
    return tolls, prices
