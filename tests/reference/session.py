"""What a session drafts from several parts: joined to one tree, by worth, and as many of its nodes as pay."""

from __future__ import annotations

from array import array
from typing import NamedTuple

from reference.choice import by_rank, num_that_pay
from reference.merge import Node, Path, by_confidence, join
from reference.policy import MIN_GAIN, MIN_RATE, WORTH_FACTOR

MIN_PROB = 0.002  # a node less likely than this is not looked at


def single(number: float) -> float:
    """The number in single precision, in which probabilities and prices are compared."""
    return array("f", [number])[0]


class Part(NamedTuple):
    """What one source proposes: nodes, parents first, in the order to take them, and the price of each."""

    nodes: list[Node]
    prices: list[float]


def stored_part(
    tokens: list[int],
    match: int,
    belief: dict[int, float],
    breaks: list[list[float]],
    prices: list[list[float]],
    min_prob: float,
) -> Part:
    """A chain from a memory after ``match`` tokens, by the belief in each kind of text; as long as it is likely."""
    last, part, path = len(breaks[0]) - 1, Part([], []), ()
    chances = dict(belief)
    for depth, token in enumerate(tokens):
        state = min(match + depth, last)
        chances = {kind: chance * (1 - breaks[kind][state]) for kind, chance in chances.items()}
        prob = sum(chances.values())
        if prob < min_prob or prob == 0:
            break
        path = (*path, token)
        worth = sum(chance * prices[kind][min(state + 1, last)] for kind, chance in chances.items())
        part.nodes.append(Node(path, single(prob)))
        part.prices.append(single(worth / prob))
    return part


def ranked(parts: list[Part], max_nodes: int) -> list[tuple[Node, float]]:
    """All nodes in the order in which they are to be drafted, each with its price."""
    price_of: dict[Path, float] = {}
    trees = by_confidence([part.nodes for part in parts])
    for tree in trees:
        part = next(part for part in parts if part.nodes is tree)
        for node, price in zip(part.nodes, part.prices):
            price_of.setdefault(node.path, price)
    added = [[node for node in news if node.prob >= MIN_PROB] for news in join(trees)]
    nodes = [node for news in added for node in news]
    place = {node.path: number for number, node in enumerate(nodes)}
    queues = [[place[node.path] for node in news] for news in added]
    parents = [place.get(node.path[:-1], -1) for node in nodes]
    worths = [single(single(node.prob) * price_of[node.path]) for node in nodes]
    taken = by_rank(queues, parents, worths, max_nodes)
    return [(nodes[number], price_of[nodes[number].path]) for number in taken]


def drafted(parts: list[Part], costs: list[float], max_nodes: int) -> list[Node]:
    """The nodes that are drafted."""
    taken = ranked(parts, max_nodes)
    probs = [node.prob for node, _ in taken]
    worths = [WORTH_FACTOR * node.prob * price for node, price in taken]
    return [node for node, _ in taken][: num_that_pay(probs, worths, costs, MIN_GAIN, MIN_RATE)]
