"""Trees of several sources become one tree. A node is its path of tokens from the root."""

from __future__ import annotations

from typing import NamedTuple

Path = tuple[int, ...]


class Node(NamedTuple):
    """A node of one source's tree, with the probability that it is reached and right."""

    path: Path
    prob: float
    origin: int = -1  # where it stands in the session's own text, -1 if it does not come from there


def by_confidence(trees: list[list[Node]]) -> list[list[Node]]:
    """The trees that are not empty, by the probability of their first node; equals in the order given."""
    return sorted((tree for tree in trees if tree), key=lambda tree: -tree[0].prob)


def join(trees: list[list[Node]]) -> list[list[Node]]:
    """What each tree, in the order given, adds to those before it.

    The same token in the same place is one node: the first keeps its probability and, if it had none, gets the other's
    origin. A branch that leaves the joined tree is likely only in so far as its siblings there, which came before, are
    not: it gets its chance of what they leave over of their parent's.
    """
    joined: dict[Path, Node] = {}
    added: list[list[Path]] = []
    for tree in trees:
        before, own, news = dict(joined), {(): 1.0} | {node.path: node.prob for node in tree}, []
        for node in tree:
            known = joined.get(node.path)
            if known is not None:
                joined[node.path] = known._replace(origin=known.origin if known.origin >= 0 else node.origin)
                continue
            up = node.path[:-1]
            reach = joined[up].prob if up else 1.0
            taken = sum(sibling.prob for path, sibling in before.items() if path[:-1] == up)
            joined[node.path] = node._replace(prob=max(0.0, reach - taken) * (node.prob / own[up]))
            news.append(node.path)
        added.append(news)
    return [[joined[path] for path in news] for news in added]
