"""The adaptive policy: belief, branches, how much to draft, what an outcome teaches."""

from __future__ import annotations

import math
from typing import NamedTuple

from reference.choice import num_that_pay
from reference.copies import Run
from reference.prices import least_slope
from reference.replacements import Replacement, Replacements
from reference.text import BARRIER

WORTH_FACTOR, MIN_GAIN, MIN_RATE = 1.1, 0.01, 1.05


def right_at_first(breaks: float, evidence: int) -> float:
    """Chance that a candidate's first token is right."""
    return [1 - breaks, 1 - 0.7 * breaks, 1 - 0.35 * breaks, 0.33, 0.2][evidence]


def believed(log_weights: list[float], doubt: float = 6.0) -> dict[int, float]:
    """Probability of each kind of text that is not ruled out."""
    top = max(log_weights)
    kept = {kind: math.exp(w - top) for kind, w in enumerate(log_weights) if w > top - doubt}
    return {kind: chance / sum(kept.values()) for kind, chance in kept.items()}


class Branch:
    """One way of drafting on: along a copy, or into a replacement and then on along the copy."""

    def __init__(self, start: int, match: int, chances: dict[int, float]) -> None:
        self.start, self.cursor, self.match, self.chances = start, start, match, chances
        self.left, self.back, self.seen = 0, 0, -1
        self.tip, self.depth = -1, 0

    def token(self, text: list[int]) -> int:
        at = self.cursor
        return text[at] if at < len(text) else text[self.start + (at - self.start) % (len(text) - self.start)]

    def into(self, r: Replacement) -> None:
        self.back, self.cursor, self.left = self.cursor + len(r.old), r.new_at, len(r.new)

    def go_on(self) -> None:
        self.depth += 1
        self.cursor += 1
        self.left -= self.left > 0
        if self.back and not self.left:
            self.cursor, self.back = self.back, 0

    def copy(self, share: float) -> Branch:
        """Another branch that stands where this one does, with a share of its chances."""
        other = Branch(self.start, self.match, self.scaled(share))
        other.cursor, other.tip, other.depth, other.seen = self.cursor, self.tip, self.depth, self.seen
        return other

    def scaled(self, share: float) -> dict[int, float]:
        return {kind: chance * share for kind, chance in self.chances.items()}


class Node(NamedTuple):
    """A node of a draft; ``worth`` is the forwards that it is expected to save."""

    token: int
    parent: int
    prob: float
    match: int
    origin: int
    worth: float


class Growth:
    """The tree that the copies of a text offer, one node after another, the one that is worth most first."""

    def __init__(
        self,
        tokens: list[int],
        copies: list[tuple[int, int, int]],
        belief: dict[int, float],
        breaks: list[list[float]],
        prices: list[list[float]],
        replacements: Replacements,
        max_branches: int,
    ) -> None:
        self.tokens, self.breaks, self.prices = tokens, breaks, prices
        self.replacements, self.max_branches = replacements, max_branches
        self.last = len(breaks[0]) - 1
        self.nodes: list[Node] = []
        self.branches: list[Branch] = []
        rest, run = dict(belief), replacements.run
        for rank, (position, match, evidence) in enumerate(copies):
            chance = {
                kind: rest[kind] * right_at_first(breaks[kind][min(match, self.last)], evidence) / (1 + 0.5 * rank)
                for kind in rest
            }
            rest = {kind: rest[kind] - chance[kind] for kind in rest}
            self.branches.append(Branch(position, match, chance))
            if run.length == len(tokens) and run.at == position and run.left:
                self.branches[-1].left, self.branches[-1].back = run.left, run.back

    def worth(self, branch: Branch) -> float:
        """What the next node of a branch is worth: by kind, its probability times the price of its token."""
        after = min(branch.match + branch.depth + 1, self.last)
        return sum(chance * self.prices[kind][after] for kind, chance in branch.chances.items())

    def best(self, max_depth: int) -> Branch | None:
        """The branch whose next node is worth most, if one is likely enough."""
        is_open = [b for b in self.branches if sum(b.chances.values()) >= 0.01 and b.depth < max_depth]
        return max(is_open, key=self.worth, default=None)

    def is_forked(self, branch: Branch) -> bool:
        """Fork where tokens come that were replaced before; True if they do and the branch was not here before."""
        if branch.left or branch.seen == branch.cursor:
            return False
        branch.seen = branch.cursor
        r = self.replacements.find(self.tokens, branch.cursor)
        if r is None:
            return False
        waiting = [b.token(self.tokens) for b in self.branches if b.tip == branch.tip]
        drafted = [node.token for node in self.nodes if node.parent == branch.tip]
        if r.new[0] not in waiting + drafted:
            share = self.replacements.chance(r, self.tokens, branch.cursor)
            if len(self.branches) < self.max_branches:
                other = branch.copy(share)
                other.into(r)
                self.branches.append(other)
                branch.chances = branch.scaled(1 - share)
            elif share < 0.5:
                branch.chances = branch.scaled(1 - share)
            else:
                branch.chances = branch.scaled(share)
                branch.into(r)
        return True

    def add(self, branch: Branch) -> None:
        """Take the next node of a branch; behind a barrier there is none."""
        token = branch.token(self.tokens)
        if token == BARRIER:
            branch.chances = {}
            return
        prob = sum(branch.chances.values())
        self.nodes.append(Node(token, branch.tip, prob, branch.match, branch.cursor, self.worth(branch)))
        branch.tip = len(self.nodes) - 1
        branch.go_on()
        state = min(branch.match + branch.depth, self.last)
        branch.chances = {kind: chance * (1 - self.breaks[kind][state]) for kind, chance in branch.chances.items()}

    def grow(self, max_nodes: int, max_depth: int, costs: list[float] | None = None) -> list[Node]:
        """Up to ``max_nodes`` nodes; with ``costs`` only while one is worth what a further position costs at least."""
        while len(self.nodes) < max_nodes and (branch := self.best(max_depth)) is not None:
            if costs and self.worth(branch) * WORTH_FACTOR < least_slope(costs, 1 + len(self.nodes)):
                break
            if not self.is_forked(branch):
                self.add(branch)
        return self.nodes


def adaptive_draft(growth: Growth, costs: list[float], max_nodes: int, max_depth: int) -> list[Node]:
    """The nodes in the order in which they are worth most, as long as they pay."""
    nodes = growth.grow(max_nodes, max_depth, costs)
    worths = [node.worth * WORTH_FACTOR for node in nodes]
    return nodes[: num_that_pay([node.prob for node in nodes], worths, costs, MIN_GAIN, MIN_RATE)]


def learned(
    log_weights: list[float],
    breaks: list[list[float]],
    text: list[int],
    came: list[int],
    copied: tuple[int, int, int],
    may_break: bool,
    replacements: Replacements,
) -> tuple[list[float], int]:
    """Log weights of the kinds after ``came`` followed ``text`` where a copy was expected, and where that goes on."""
    position, match, evidence = copied
    weights, last = list(log_weights), len(breaks[0]) - 1
    whole, run = text + came, replacements.run
    cursor, i, left, back, site = position, 0, 0, 0, None
    if run.length == len(text) and run.at == position:
        left, back = run.left, run.back
    while i < len(came):
        r = None if left else replacements.find(text, cursor)
        if r is not None and came[i] == r.new[0]:
            replacements.count(r, text, cursor, True)
            site = (cursor, len(text) + i)
            cursor, left, back = r.new_at, len(r.new), cursor + len(r.old)
        is_same = whole[cursor] == came[i]
        if not is_same and not may_break:
            break
        if not left:
            if r is not None and is_same:
                replacements.count(r, text, cursor, False)
            for kind in range(len(weights)):
                right = 1 - breaks[kind][min(match + i, last)]
                right = right_at_first(1 - right, evidence) if i == 0 else right
                weights[kind] += math.log(right if is_same else 1 - right)
        if not is_same:
            if not left and match + i >= 4:
                replacements.watch(cursor, len(text) + i)
            if left and site is not None:
                replacements.watch(*site)
            break
        cursor, i = cursor + 1, i + 1
        if left:
            left -= 1
            cursor = cursor if left else back
    replacements.run = Run(len(whole) if i == len(came) else -1, cursor, match + i, left, back)
    there = replacements.close(whole, len(text))
    if there >= 0 and i < len(came):
        cursor, i = there, 1
    return [max(w, max(weights) - 6.0) for w in weights], cursor if i else -1


def learned_from_tree(
    log_weights: list[float],
    breaks: list[list[float]],
    token_ids: list[int],
    parents: list[int],
    match: int,
    came: list[int],
    may_break: bool,
) -> list[float]:
    """Log weights of the kinds after ``came`` followed a text of which a tree of continuations was known.

    A token that is among the branches where it comes is right, any other one is wrong; behind a wrong one, and where
    the tree ends, nothing more is said. Each counts like a token of one copy with this match.
    """
    weights, last, node = list(log_weights), len(breaks[0]) - 1, -1
    for depth, token in enumerate(came):
        branches = {token_ids[child]: child for child, parent in enumerate(parents) if parent == node}
        if not branches or (token not in branches and not may_break):
            break
        for kind in range(len(weights)):
            broken = breaks[kind][min(match + depth, last)]
            weights[kind] += math.log(1 - broken if token in branches else broken)
        if token not in branches:
            break
        node = branches[token]
    return [max(weight, max(weights) - 6.0) for weight in weights]
