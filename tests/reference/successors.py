"""Recycled successors: what the target named after one token and after two, in dictionaries."""

from __future__ import annotations

from reference.tree import path_to


class SuccessorTable:
    """What the target named after one token and after two, without bounds: dictionaries."""

    def __init__(self) -> None:
        self.lists: dict[tuple[int, ...], list[int]] = {}
        self.levels: dict[tuple[int, ...], int] = {}

    def write(self, key: tuple[int, ...], successors: list[int]) -> None:
        if key in self.lists:
            same = self.lists[key][0] == successors[0]
            self.levels[key] = min(3, self.levels[key] + 1) if same else 0
        else:
            self.levels[key] = 0
        self.lists[key] = list(successors)

    def update(self, context: list[int], tokens: list[int], parents: list[int], path: list[int], topk) -> None:
        """Rejected nodes first, then the root and the accepted path."""
        order = [node for node in range(len(tokens)) if node not in path] + [-1, *sorted(path)]
        for node in order:
            text = context + [tokens[above] for above in path_to(node, parents)]
            self.write((text[-1],), topk[node + 1])
            if len(text) > 1:
                self.write((text[-2], text[-1]), topk[node + 1])

    def read(self, text: list[int]) -> None:
        """What follows what in a text, the latest first, eight at most."""
        for i in range(1, len(text)):
            for key in [(text[i - 1],)] + ([(text[i - 2], text[i - 1])] if i > 1 else []):
                rest = [token for token in self.lists.get(key, []) if token != text[i]]
                self.write(key, [text[i], *rest][:8])

    def asked(self, text: list[int], common: list[int]) -> list[tuple[list[int], int]]:
        """The lists to ask, in order, each with its class: of two tokens, of one, and the common tokens."""
        found = []
        two, one = tuple(text[-2:]), (text[-1],)
        if len(two) == 2 and two in self.lists:
            found.append((self.lists[two], 4 + self.levels[two]))
        if one in self.lists:
            found.append((self.lists[one], 8 if found else self.levels[one]))
        found.append((common, 10 if found else 9))
        return found


def ranks_counted(table: SuccessorTable, context: list[int], common: list[int], came: list[int]):
    """(class, rank) for every list asked about every token that came; rank 8: not in it, or in an earlier list."""
    counted, text = [], list(context)
    for token in came:
        is_found = False
        for successors, kind in table.asked(text, common):
            hit = not is_found and token in successors
            counted.append((kind, successors.index(token) if hit else 8))
            is_found = is_found or hit
        text.append(token)
    return counted


def recycled_nodes(
    table: SuccessorTable,
    chances: list[list[float]],
    context: list[int],
    common: list[int],
    held: list[tuple[int, int, float]],
    max_new: int,
    max_depth: int,
    min_prob: float,
    least_worth: list[float],
    price: float = 1.0,
) -> list[tuple[tuple[int, ...], float]]:
    """The nodes that are hung into a tree, as (path of tokens, probability), likeliest first.

    ``held`` is that tree as (token, parent, probability). Recycled children of a node share what its children there
    leave over. The n-th new node, from 0, is added if its probability times ``price`` is worth ``least_worth[n]``.
    """
    paths: list[tuple[int, ...]] = []
    for token, parent, _ in held:
        paths.append((*(paths[parent] if parent >= 0 else ()), token))
    given = {path: prob for path, (_, _, prob) in zip(paths, held)}
    reach: dict[tuple[int, ...], float] = {(): 1.0} | given
    added: list[tuple[tuple[int, ...], float]] = []
    while len(added) < max_new:
        best, best_prob = None, 0.0
        for path, prob in reach.items():
            if len(path) >= max_depth:
                continue
            here = [q for p, q in given.items() if len(p) == len(path) + 1 and p[:-1] == path]
            left = 1.0 - sum(here) / prob
            for successors, kind in table.asked(context + list(path), common):
                unused = [(rank, token) for rank, token in enumerate(successors) if (*path, token) not in reach]
                if unused and left > 0:
                    rank, token = unused[0]
                    chance = prob * left * chances[kind][rank]
                    if chance >= min_prob and chance > best_prob:
                        best, best_prob = (*path, token), chance
        if best is None or best_prob * price < least_worth[len(added)]:
            return added
        reach[best] = best_prob
        added.append((best, best_prob))
    return added
