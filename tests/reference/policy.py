"""The adaptive policy: belief, branches, how much to draft, what an outcome teaches."""

from __future__ import annotations

import math

from reference.copies import Run
from reference.replacements import Replacement, Replacements
from reference.text import BARRIER


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

    def scaled(self, share: float) -> dict[int, float]:
        return {kind: chance * share for kind, chance in self.chances.items()}


def adaptive_draft(
    tokens: list[int],
    copies: list[tuple[int, int, int]],
    belief: dict[int, float],
    breaks: list[list[float]],
    prices: list[list[float]],
    costs: list[float],
    max_nodes: int,
    max_depth: int,
    replacements: Replacements,
    max_branches: int,
) -> list[tuple[int, int, float, int, int]]:
    """Nodes (token, parent, probability, match length, origin), taken by worth as long as they pay.

    Where no number of them does, as many as give the most expected tokens per cost, if these are more than 1.05.
    """
    last = len(breaks[0]) - 1
    least_slope = [
        min(((costs[k] - costs[r]) / (k - r) for k in range(r + 1, len(costs))), default=0.0) for r in range(len(costs))
    ]
    rest, branches = dict(belief), []
    for rank, (position, match, evidence) in enumerate(copies):
        chance = {
            kind: rest[kind] * right_at_first(breaks[kind][min(match, last)], evidence) / (1 + 0.5 * rank)
            for kind in rest
        }
        rest = {kind: rest[kind] - chance[kind] for kind in rest}
        branches.append(Branch(position, match, chance))
        if replacements.run.length == len(tokens) and replacements.run.at == position and replacements.run.left:
            branches[-1].left, branches[-1].back = replacements.run.left, replacements.run.back

    def worth(branch: Branch) -> float:
        after = min(branch.match + branch.depth + 1, last)
        return sum(chance * prices[kind][after] for kind, chance in branch.chances.items())

    nodes: list[tuple[int, int, float, int, int]] = []
    gain, best_gain, best_n = 0.0, 0.01, 0
    rates = {0: 1.05}
    while len(nodes) < max_nodes:
        open_ones = [b for b in branches if sum(b.chances.values()) >= 0.01 and b.depth < max_depth]
        if not open_ones or max(map(worth, open_ones)) * 1.1 < least_slope[1 + len(nodes)]:
            break
        branch = max(open_ones, key=worth)
        if not branch.left and branch.seen != branch.cursor:
            branch.seen = branch.cursor
            r = replacements.find(tokens, branch.cursor)
            if r is not None:
                waiting = [b.token(tokens) for b in branches if b.tip == branch.tip]
                drafted = [node[0] for node in nodes if node[1] == branch.tip]
                if r.new[0] in waiting + drafted:
                    continue
                share = replacements.chance(r, tokens, branch.cursor)
                if len(branches) < max_branches:
                    other = Branch(branch.start, branch.match, branch.scaled(share))
                    other.cursor, other.tip, other.depth, other.seen = (
                        branch.cursor, branch.tip, branch.depth, branch.seen,
                    )  # fmt: skip
                    other.into(r)
                    branches.append(other)
                    branch.chances = branch.scaled(1 - share)
                elif share < 0.5:
                    branch.chances = branch.scaled(1 - share)
                else:
                    branch.chances = branch.scaled(share)
                    branch.into(r)
                continue
        if branch.token(tokens) == BARRIER:
            branch.chances = {}
            continue
        gain += 1.1 * worth(branch)
        prob = sum(branch.chances.values())
        nodes.append((branch.token(tokens), branch.tip, prob, branch.match, branch.cursor))
        branch.tip = len(nodes) - 1
        branch.go_on()
        state = min(branch.match + branch.depth, last)
        branch.chances = {kind: chance * (1 - breaks[kind][state]) for kind, chance in branch.chances.items()}
        net = gain - (costs[1 + len(nodes)] - costs[1])
        if net > best_gain:
            best_gain, best_n = net, len(nodes)
        rates[len(nodes)] = (1.0 + sum(node[2] for node in nodes)) / costs[1 + len(nodes)]
    return nodes[: best_n or max(rates, key=lambda n: rates[n])]


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
