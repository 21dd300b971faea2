"""Kernels of copying: the nodes that copies of the text draft, and what an outcome teaches."""

from __future__ import annotations

from typing import Final

import numpy as np

from zerodraft.lookup._block import CONTEXT, MATCH, ORIGIN, PARENT, PREDICTION, PRICE, PROB, SOURCE, TOKEN
from zerodraft.lookup._prices import WORTH_FACTOR, Tables
from zerodraft.lookup.copy import _replaced as replacing
from zerodraft.lookup.copy._belief import BREAK_FACTOR, believed, doubt, right_at_first, settle
from zerodraft.lookup.copy._search import CONTESTED, find_copies
from zerodraft.lookup.copy._text import Text
from zerodraft.lookup.copy._work import BY_KIND, CHANCE, MAX_COPIES, WORTH, Branch, Work
from zerodraft.lookup.runtime._jit import Floats, Ints2D, ReadInts, kernel
from zerodraft.lookup.session._state import State

RANK_PENALTY: Final = 0.5  # after j better candidates failed, one holds 1 / (1 + j / 2) of its usual chance
MIN_PROB: Final = 0.01  # a node less likely than this is never drafted: no curve is measured that finely


@kernel
def open_branches(state: State, count: int, num_likely: int, tables: Tables, work: Work) -> None:
    """Make a branch of every copy that was found, best first. The shares of the kinds are used up."""
    branches, stakes, shares, kinds, last = (
        work.branches,
        work.stakes,
        work.shares,
        work.kinds,
        tables.breaks.shape[1] - 1,
    )
    for j in range(count):
        branch, matched = branches[j], min(work.lens[j], last)
        branch.at = branch.cursor = work.at[j]
        branch.seen = branch.tip = -1
        branch.match, branch.left, branch.back, branch.depth = work.lens[j], 0, 0, 0
        if state.going.length == state.text.length and state.going.at == work.at[j]:
            branch.left, branch.back = state.going.left, state.going.back
        chance, worth = 0.0, 0.0
        for k in range(num_likely):
            right = right_at_first(tables.breaks[kinds[k], matched], work.evidence[j]) / (1.0 + RANK_PENALTY * j)
            stake = shares[k] * right
            shares[k] -= stake
            stakes[j, BY_KIND + k] = stake
            chance += stake
            worth += stake * tables.prices[kinds[k], min(matched + 1, last)]
        stakes[j, CHANCE], stakes[j, WORTH] = chance, worth


@kernel
def next_token(tokens: ReadInts, length: int, branch: Branch) -> int:
    """The token that a branch would draft next; past the text's end the copy goes on into itself."""
    at, cursor = branch.at, branch.cursor
    return int(tokens[cursor if cursor < length else at + (cursor - at) % (length - at)])


@kernel
def add_node(token: int, num_predicted: int, branch: Branch, stakes: Floats, block: Ints2D, n: int) -> None:
    """Write a branch's next node into column ``n`` and move the branch on."""
    block[TOKEN, n], block[PARENT, n], block[MATCH, n] = token, branch.tip, branch.match
    block[ORIGIN, n] = branch.cursor
    block[SOURCE, n] = PREDICTION if branch.cursor < num_predicted else CONTEXT
    block[PROB].view(np.float32)[n] = stakes[CHANCE]
    block[PRICE].view(np.float32)[n] = stakes[WORTH] / stakes[CHANCE]
    branch.tip = n
    branch.depth += 1
    branch.cursor += 1
    if branch.left:
        branch.left -= 1
        if branch.left == 0:
            branch.cursor = branch.back


@kernel
def fork(
    tokens: ReadInts, state: State, number: int, block: Ints2D, first: int, n: int, j: int, count: int, work: Work
) -> int:
    """Draft both where branch ``j`` stands before tokens that were replaced before; return how many branches there are.

    Where there is no room for another branch only the likelier of the two is drafted.
    """
    branches, stakes = work.branches, work.stakes
    one, branch, length = state.replaced.kept[number], branches[j], state.text.length
    share = replacing.chance(tokens, state.replaced, number, branch.cursor)
    for node in range(first, n):
        if block[PARENT, node] == branch.tip and block[TOKEN, node] == tokens[one.new_at]:
            return count  # another copy said so already
    for other in range(count):
        if branches[other].tip == branch.tip and next_token(tokens, length, branches[other]) == tokens[one.new_at]:
            return count  # or is going to
    to = j
    if count < min(state.max_copies, MAX_COPIES):
        to, count = count, count + 1
        branches[to], stakes[to] = branches[j], stakes[j]
        for k in range(stakes.shape[1]):
            stakes[to, k] *= share
            stakes[j, k] *= 1.0 - share
    else:
        for k in range(stakes.shape[1]):
            stakes[j, k] *= max(share, 1.0 - share)
        if share < 0.5:
            return count
    branches[to].back = branches[j].cursor + one.old_len
    branches[to].cursor, branches[to].left = one.new_at, one.new_len
    return count


@kernel
def write(
    text: Text, state: State, tables: Tables, work: Work, max_nodes: int, max_depth: int, block: Ints2D, first: int
) -> int:
    """Write the nodes that copies of the text propose into the block from column ``first`` on; return where they end.

    They come by worth, parents first: that is, the probability that a node is reached and right times the price of its
    token. What cannot pay for its position is left out. The state gets the best candidate.
    """
    tokens, length, count = text.tokens, state.text.length, find_copies(text, state, work)
    state.best.length, state.best.position = length, -1
    state.expected_tokens = state.expected_cost = 1.0
    if not count:
        return first
    state.best.position, state.best.match, state.best.evidence = work.at[0], work.lens[0], work.evidence[0]
    state.best.source = PREDICTION if work.at[0] < state.num_predicted else CONTEXT

    breaks, prices, kinds, last = tables.breaks, tables.prices, work.kinds, tables.breaks.shape[1] - 1
    branches, stakes = work.branches, work.stakes
    num_likely = believed(state.beliefs[state.best.source], kinds[:], work.shares[:])  # as arrays of their own
    open_branches(state, count, num_likely, tables, work)
    state.expected_tokens, state.expected_cost = 1.0 + stakes[0, CHANCE], tables.costs[2]
    n = first
    while n - first < max_nodes:
        best = -1
        for j in range(count):
            is_open = stakes[j, CHANCE] >= MIN_PROB and branches[j].depth < max_depth
            if is_open and (best < 0 or stakes[j, WORTH] > stakes[best, WORTH]):
                best = j
        if best < 0 or stakes[best, WORTH] * WORTH_FACTOR < tables.slopes[1 + n - first]:
            break  # worth only falls from here: whatever follows would not pay for its positions
        branch = branches[best]
        if state.replaced.count and branch.left == 0 and branch.seen != branch.cursor:
            branch.seen = branch.cursor
            number = replacing.find(tokens, length, state.replaced, branch.cursor)
            if number >= 0:
                count = fork(tokens, state, number, block, first, n, best, count, work)
                continue
        token = np.int64(tokens[branch.cursor]) if branch.cursor < length else next_token(tokens, length, branch)
        if token < 0:
            stakes[best, CHANCE] = 0.0  # a barrier: nothing to copy behind it
            continue
        add_node(token, state.num_predicted, branch, stakes[best], block, n)
        n += 1
        matched = min(branch.match + branch.depth, last)
        after, chance, worth = min(matched + 1, last), 0.0, 0.0
        for k in range(num_likely):  # here, not in a kernel of its own: a call per node would take as long as the rest
            stake = stakes[best, BY_KIND + k] * (1.0 - breaks[kinds[k], matched])
            stakes[best, BY_KIND + k] = stake
            chance += stake
            worth += stake * prices[kinds[k], after]
        stakes[best, CHANCE], stakes[best, WORTH] = chance, worth
    return n


@kernel
def resume(tokens: ReadInts, state: State, start: int) -> int:
    """Where a watched site ends with the text, go on in its source from there; return where that is, else -1."""
    length, going = state.text.length, state.going
    there = replacing.close(tokens, start, length, state.replaced)
    if there >= 0 and going.length != length:
        going.length, going.at, going.match, going.left = length, there, replacing.RESUMED, 0
        return there
    return -1


@kernel
def learn(text: Text, state: State, start: int, may_break: bool, tables: Tables) -> int:
    """Compare what came with the best candidate: shift belief among the kinds, count replacements, watch for new ones.

    ``tokens[start : length]`` came. A disagreement counts only if ``may_break``. Returns where the copy goes on, -1 if
    not one token of it came.
    """
    tokens, best, going, replaced = text.tokens, state.best, state.going, state.replaced
    if best.length != start:
        return -1  # nothing was proposed for this step
    if best.position < 0:
        return resume(tokens, state, start)
    beliefs, last = state.beliefs[best.source], tables.breaks.shape[1] - 1
    cursor, i, n = best.position, 0, state.text.length - start
    site, begun, left, back = np.int64(-1), 0, np.int64(0), np.int64(0)
    if going.length == start and going.at == cursor:
        left, back = going.left, going.back
    while i < n:
        known = -1 if left else replacing.find(tokens, start, replaced, cursor)
        if known >= 0 and tokens[start + i] == tokens[replaced.kept[known].new_at]:
            replacing.count(tokens, replaced, known, cursor, True)
            site, begun, back = cursor, i, cursor + replaced.kept[known].old_len
            cursor, left = replaced.kept[known].new_at, replaced.kept[known].new_len
        is_same = tokens[cursor] == tokens[start + i]
        if not is_same and not may_break:
            break
        if left == 0:
            if known >= 0 and is_same:
                replacing.count(tokens, replaced, known, cursor, False)
            factor = -1.0
            if i == 0 and best.evidence < CONTESTED:
                factor = -BREAK_FACTOR[best.evidence]
            elif i == 0:
                factor = right_at_first(0.0, best.evidence)
            doubt(beliefs, tables.breaks, min(best.match + i, last), factor, is_same)
        if not is_same:
            if left == 0 and best.match + i >= replacing.MIN_RUN:
                replacing.watch(replaced, cursor, start + i)
            elif left and site >= 0:
                replacing.watch(replaced, site, start + begun)
            break
        i, cursor = i + 1, cursor + 1
        if left:
            left -= 1
            if left == 0:
                cursor = back
    settle(beliefs)
    going.length = state.text.length if i == n else -1
    going.at, going.match, going.left, going.back = cursor, best.match + i, left, back
    there = resume(tokens, state, start)
    return there if there >= 0 else cursor if i else -1
