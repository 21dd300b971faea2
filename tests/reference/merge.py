"""Several drafts into one, and which of its nodes pay."""

from __future__ import annotations

Path = tuple[int, ...]


def merge_trees(trees: list[list[tuple[Path, float]]]) -> list[list[tuple[Path, float]]]:
    """What each tree adds to those before it; a node is its path of tokens from the root and its probability."""
    merged: dict[Path, float] = {(): 1.0}
    added = []
    for tree in trees:
        before, own, news = dict(merged), dict([((), 1.0), *tree]), []
        for path, prob in tree:
            if path in before:
                continue
            parent = path[:-1]
            taken = sum(p for q, p in before.items() if q and q[:-1] == parent)
            left = max(0.0, merged[parent] - taken) if parent in before else merged[parent]
            merged[path] = left * (prob / own[parent])
            news.append((path, merged[path]))
        added.append(news)
    return added


def nodes_that_pay(
    added: list[list[tuple[Path, float]]],
    max_nodes: int,
    worth_of: dict[Path, float],
    costs: list[float],
    min_prob: float,
    min_gain: float,
) -> list[Path]:
    """Take the likeliest next node of any source, parents first; stop where worth exceeds the extra cost most."""
    queues, taken, gain, best, best_n = [list(a) for a in added], [], 0.0, min_gain, 0
    while len(taken) < max_nodes:
        heads = [q[0] for q in queues if q and q[0][1] >= min_prob and (len(q[0][0]) == 1 or q[0][0][:-1] in taken)]
        if not heads:
            break
        head = max(heads, key=lambda node: node[1])
        queue = next(q for q in queues if q and q[0] == head)
        queue.pop(0)
        taken.append(head[0])
        gain += worth_of[head[0]]
        if gain - (costs[1 + len(taken)] - costs[1]) > best:
            best, best_n = gain - (costs[1 + len(taken)] - costs[1]), len(taken)
    return taken[:best_n]
