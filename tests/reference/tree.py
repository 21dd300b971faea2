"""Drafted trees: the way to a node, the greedy walk, positions in one forward and what each place sees."""

from __future__ import annotations


def path_to(node: int, parents: list[int]) -> list[int]:
    """Nodes from the root's child down to ``node``, itself included; empty for the root."""
    path: list[int] = []
    while node >= 0:
        path.insert(0, node)
        node = parents[node]
    return path


def likeliest_chain(parents: list[int], probs: list[float]) -> list[int]:
    """From the root down always the likeliest child, of equal ones the first."""
    chain: list[int] = []
    while children := [node for node, parent in enumerate(parents) if parent == (chain[-1] if chain else -1)]:
        chain.append(max(children, key=lambda node: (probs[node], -node)))
    return chain


def greedy_walk(
    picks: list[int], token_ids: list[int], parents: list[int], verify: list[bool]
) -> tuple[list[int], int]:
    """(accepted nodes, next token); ``picks[0]`` is the target's token after the root, ``picks[i + 1]`` after i."""
    node, path = -1, []
    while True:
        token = picks[node + 1]
        children = [i for i, up in enumerate(parents) if up == node and verify[i] and token_ids[i] == token]
        if not children:
            return path, token
        node = children[-1]
        path.append(node)


def tree_rules(
    lengths: list[int], parents: list[list[int]], window: int | None
) -> tuple[list[list[int]], list[list[list[bool]]]]:
    """Per row: the position of each place of one forward, and for each place which columns of the cache it sees.

    Columns are the cached tokens, then the forward's own places. Places beyond a row's draft stand where the root
    stands and see what it sees. A window of w sees w positions, its own included.
    """
    width = 1 + max(len(up) for up in parents)
    need = max(lengths) + width
    all_positions, all_seen = [], []
    for length, up in zip(lengths, parents):
        place = {t: t if t <= len(up) else 0 for t in range(width)}  # whose eyes a place looks through
        position = [length + len(path_to(place[t] - 1, up)) for t in range(width)]
        seen = []
        for t in range(width):
            family = {0, *(node + 1 for node in path_to(place[t] - 1, up))}
            row = []
            for column in range(need):
                if column < length:
                    visible, at = True, column
                else:
                    other = column - length
                    visible = other in family
                    at = position[other] if other <= len(up) else -1
                if window is not None:
                    visible = visible and position[t] - at < window
                row.append(visible)
            seen.append(row)
        all_positions.append(position)
        all_seen.append(seen)
    return all_positions, all_seen
