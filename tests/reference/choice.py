"""Which nodes of a tree to draft: what would be best, and the rule that is followed.

A tree is given as lists over its nodes, parents before children: ``parents`` (-1: hangs from the root), ``probs`` (that
a node is reached and right) and ``worths`` (that times the price of its token, and a factor if one is used).
``costs[r]`` is the cost of a forward over r positions; a draft of n nodes needs 1 + n.
"""

from __future__ import annotations

from collections.abc import Iterator

# ---- definition: what could be drafted, and what it is good for ------------------------------------------------------


def closed_sets(parents: list[int]) -> Iterator[tuple[int, ...]]:
    """Every set of nodes that holds the parent of each of its nodes: all drafts that can be cut out of a tree."""
    kept: list[tuple[int, ...]] = [()]
    for node, parent in enumerate(parents):
        kept += [(*nodes, node) for nodes in kept if parent < 0 or parent in nodes]
    return iter(kept)


def net_worth(nodes: tuple[int, ...], worths: list[float], costs: list[float]) -> float:
    """What a draft is expected to save: its nodes' worth, less what its forward costs more than one without a draft."""
    return sum(worths[node] for node in nodes) - (costs[1 + len(nodes)] - costs[1])


def best_net_worth(parents: list[int], worths: list[float], costs: list[float], max_nodes: int) -> float:
    """The most that a draft of at most ``max_nodes`` nodes can be expected to save; 0 for none."""
    return max(net_worth(nodes, worths, costs) for nodes in closed_sets(parents) if len(nodes) <= max_nodes)


def tokens_per_cost(nodes: tuple[int, ...], probs: list[float], costs: list[float]) -> float:
    """Expected tokens of a forward, its own one included, per cost."""
    return (1.0 + sum(probs[node] for node in nodes)) / costs[1 + len(nodes)]


# ---- rule: nodes by rank, parents first; then as many of them as pay -------------------------------------------------


def by_rank(queues: list[list[int]], parents: list[int], ranks: list[float], max_nodes: int) -> list[int]:
    """Take nodes one by one: the highest rank (of equals the earliest queue's) among the queues' first nodes whose
    parent is taken. A queue is the nodes that one source added, in its own order."""
    waiting, taken = [list(queue) for queue in queues], []
    while len(taken) < max_nodes:
        ready = [queue for queue in waiting if queue and (parents[queue[0]] < 0 or parents[queue[0]] in taken)]
        if not ready:
            break
        taken.append(max(ready, key=lambda queue: ranks[queue[0]]).pop(0))
    return taken


def num_that_pay(
    probs: list[float], worths: list[float], costs: list[float], min_gain: float, min_rate: float | None
) -> int:
    """How many of the nodes, in the order in which they were taken, to draft.

    As many as have the largest net worth, if that is above ``min_gain``; otherwise as many as bring the most tokens per
    cost, if that is above ``min_rate`` (None: nothing then).
    """
    sizes = range(len(probs) + 1)
    net = {n: net_worth(tuple(range(n)), worths, costs) for n in sizes}
    best = max(sizes, key=lambda n: net[n])
    if net[best] > min_gain:
        return best
    rate = {n: tokens_per_cost(tuple(range(n)), probs, costs) for n in sizes}
    fastest = max(sizes, key=lambda n: rate[n])
    return fastest if min_rate is not None and fastest and rate[fastest] > min_rate else 0
