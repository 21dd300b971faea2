"""Kernels of copying: where the text may be copied on from, the nodes that such copies draft, what an outcome teaches.

Beside the state of a session and the tables of ``_prices`` they work on two arrays of their own, for one proposal:
    branches  a record dtype_of(Branch) for each copy that is drafted side by side.
    stakes    float64 (MAX_COPIES, 2 + kinds): probability and worth of a branch's next node, then its probability in
              text of each of the kinds that are believed in.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from zerodraft.lookup._block import CONTEXT, MATCH, ORIGIN, PARENT, PREDICTION, PRICE, PROB, SOURCE, TOKEN
from zerodraft.lookup._prices import Tables
from zerodraft.lookup.copy import _replaced as replacing
from zerodraft.lookup.copy._text import ORDER, SCORE_CAP, WINDOW, Text, beats, match_length
from zerodraft.lookup.runtime._jit import (
    Floats,
    Floats2D,
    Ints2D,
    Longs,
    ReadFloats2D,
    ReadInts,
    dtype_of,
    kernel,
    record,
)
from zerodraft.lookup.session._state import State

LIMIT: Final = 32  # of the newest occurrences in each hash chain are considered, beside those within WINDOW
MAX_COPIES: Final = 16  # most branches of a draft
# Measured, the same in all kinds of text: what the other occurrences of a match say about the token that follows it
# (not about the tokens after that). SINGLE, PAIR and MANY: one, two, three or more of them, all with this token.
SINGLE, PAIR, MANY, CONTESTED, OUTVOTED = range(5)
EVIDENCE_NAMES: Final = ("single", "pair", "many", "contested", "outvoted")
BREAK_FACTOR: Final = (1.0, 0.7, 0.35)  # a copy that all others confirm breaks less often
RIGHT_IF_CONTESTED: Final = 0.33  # others go on differently, but not more of them: whatever the match length
RIGHT_IF_OUTVOTED: Final = 0.2  # most others go on differently
RANK_PENALTY: Final = 0.5  # after j better candidates failed, one holds 1 / (1 + j / 2) of its usual chance
MIN_PROB: Final = 0.01  # a node less likely than this is never drafted: no curve is measured that finely
WORTH_FACTOR: Final = 1.1  # drafting slightly too much costs less than slightly too little
MAX_DOUBT: Final = 6.0  # a kind this far below the best in log weight is ignored, but falls no further: text changes

CHANCE, WORTH, BY_KIND = range(3)  # columns of stakes


@record
class Branch:
    """A copy that is drafted side by side with others."""

    at: int  # where the copy starts
    cursor: int  # where it stands in the source
    left: int  # tokens of a replacement that it is still to draft
    back: int  # where in the source it goes on after those
    seen: int  # where a replacement was considered last
    tip: int  # its last node
    depth: int
    match: int


BRANCH: Final = dtype_of(Branch)


@kernel
def add_copy(tokens: ReadInts, pointer: int, position: int, match: int, found: int, at: Longs, lens: Longs) -> int:
    """Insert a candidate into the list, best first, one per next token; return how many there are now."""
    slot = found
    for j in range(found):
        if tokens[at[j]] == tokens[position]:
            slot = j
            break
    distance = abs(position - pointer)
    if slot < found or found == len(at):
        slot = min(slot, found - 1)
        if at[slot] == position or not beats(match, distance, position, lens[slot], abs(at[slot] - pointer), at[slot]):
            return found
    else:
        found += 1
    while slot > 0 and beats(match, distance, position, lens[slot - 1], abs(at[slot - 1] - pointer), at[slot - 1]):
        at[slot], lens[slot] = at[slot - 1], lens[slot - 1]
        slot -= 1
    at[slot], lens[slot] = position, match
    return found


@kernel
def weigh(tokens: ReadInts, position: int, match: int, others: Longs, other_lens: Longs, num_others: int) -> int:
    """What the occurrences that match at least as long say about the token at ``position``: SINGLE ... OUTVOTED."""
    same, different = 1, 0
    for i in range(num_others):
        if other_lens[i] >= match and others[i] != position:
            if tokens[others[i]] == tokens[position]:
                same += 1
            else:
                different += 1
    if different:
        return CONTESTED if same >= different else OUTVOTED
    return min(same, 3) - 1


@kernel
def find_near(tokens: ReadInts, state: State, found: int, at: Longs, lens: Longs) -> int:
    """Add the copies within WINDOW of the pointer; return how many candidates there are then."""
    length, pointer, min_match = state.text.length, state.pointer, state.min_match
    cap, newest = min(state.max_match, SCORE_CAP), tokens[length - 1]
    for distance in range(WINDOW + 1):
        if found and lens[0] == cap:
            break  # nothing farther away can be better
        for side in range(2 if distance else 1):
            position = pointer + distance if side == 0 else pointer - distance
            if position < 1 or position >= length or tokens[position - 1] != newest or tokens[position] < 0:
                continue
            match = match_length(tokens, length, tokens, position, cap)
            if match >= min_match:
                found = add_copy(tokens, pointer, position, match, found, at, lens)
    return found


@kernel
def find_copies(text: Text, state: State, at: Longs, lens: Longs, evidence: Longs) -> int:
    """List the places where the text may be copied on from, best first, one per next token; return how many.

    Candidates are all positions within WINDOW of the pointer and the LIMIT newest occurrences of the last four tokens
    and of the last one; matches are capped at SCORE_CAP for the ranking and measured up to max_match afterwards. Where
    a match reaches the cap near the pointer it is the only candidate: what else there is would not be worth a node. The
    copy that was right so far is as good as its run is long, replacements included, though these tokens do not match.
    """
    tokens, length, pointer, min_match = text.tokens, state.text.length, state.pointer, state.min_match
    if length < 2 or tokens[length - 1] < 0:
        return 0
    cap = min(state.max_match, SCORE_CAP)
    found, going, run = 0, np.int64(-1), np.int64(0)
    if state.going.length == length and state.going.at < length and tokens[state.going.at] >= 0:
        going, run = state.going.at, min(state.going.match, state.max_match)
    if run >= min_match and run > 0:
        found = add_copy(tokens, pointer, going, min(run, cap), found, at, lens)
    found = find_near(tokens, state, found, at, lens)
    if found and lens[0] == cap:
        match = match_length(tokens, length, tokens, at[0], state.max_match)
        lens[0], evidence[0] = max(match, run if at[0] == going else 0), SINGLE
        return 1
    seen_at, seen_lens = np.empty((2, LIMIT), np.int64), np.empty((2, LIMIT), np.int64)
    num_seen = np.zeros(2, np.int64)
    for family in range(1, -1, -1):
        links = text.links_n if family else text.links_1
        last, steps = links[length - 1], 0
        while last >= 0 and steps < LIMIT:
            steps += 1
            position = last + 1
            last = links[last]
            if tokens[position] < 0:
                continue
            match = match_length(tokens, length, tokens, position, cap if family else min(cap, ORDER))
            seen_at[family, num_seen[family]], seen_lens[family, num_seen[family]] = position, match
            num_seen[family] += 1
            if match >= min_match and (family or match < ORDER):  # longer ones stand in the other chain as well
                found = add_copy(tokens, pointer, position, match, found, at, lens)
    for j in range(found):
        family = 1 if lens[j] >= ORDER else 0  # the chain that holds everything matching as long as this one
        evidence[j] = weigh(tokens, at[j], lens[j], seen_at[family], seen_lens[family], num_seen[family])
        if lens[j] == SCORE_CAP:
            match = match_length(tokens, length, tokens, at[j], state.max_match)
            lens[j], evidence[j] = max(match, run if at[j] == going else 0), SINGLE
    return found


@kernel
def right_at_first(breaks: float, evidence: int) -> float:
    """Probability that a candidate's first token is right, from how often copies of its length break and the others."""
    if evidence == CONTESTED:
        return RIGHT_IF_CONTESTED
    if evidence == OUTVOTED:
        return RIGHT_IF_OUTVOTED
    return 1.0 - breaks * BREAK_FACTOR[evidence]


@kernel
def believed(beliefs: Floats, kinds: Longs, shares: Floats) -> int:
    """List the kinds that are not ruled out and what part of the belief each of them holds; return how many."""
    top, total, n = beliefs.max(), 0.0, 0
    for kind in range(len(beliefs)):
        if beliefs[kind] > top - MAX_DOUBT:
            kinds[n], shares[n] = kind, np.exp(beliefs[kind] - top)
            total += shares[n]
            n += 1
    for k in range(n):
        shares[k] /= total
    return n


@kernel
def doubt(beliefs: Floats, breaks: ReadFloats2D, state: int, right_factor: float, is_right: bool) -> None:
    """Shift the belief in each kind by a token that was right, or was not, after so many matched ones.

    ``right_factor`` below 0: the probability of a break is what ``breaks`` says times -right_factor; else: whatever the
    kind, the token is right with this probability.
    """
    for kind in range(len(beliefs)):
        right = right_factor if right_factor >= 0.0 else 1.0 + breaks[kind, state] * right_factor
        beliefs[kind] += np.log(right if is_right else 1.0 - right)


@kernel
def settle(beliefs: Floats) -> None:
    """Let no kind fall further than MAX_DOUBT below the best: the text may change."""
    floor = beliefs.max() - MAX_DOUBT
    for kind in range(len(beliefs)):
        beliefs[kind] = max(beliefs[kind], floor)


@kernel
def open_branches(
    state: State,
    at: Longs,
    lens: Longs,
    evidence: Longs,
    found: int,
    tables: Tables,
    kinds: Longs,
    shares: Floats,
    branches: list[Branch],
    stakes: Floats2D,
) -> None:
    """Make a branch of every copy that was found, best first; ``shares`` is used up."""
    last = tables.breaks.shape[1] - 1
    for j in range(found):
        branch = branches[j]
        branch.at = branch.cursor = at[j]
        branch.seen = branch.tip = -1
        branch.match = lens[j]
        if state.going.length == state.text.length and state.going.at == at[j]:
            branch.left, branch.back = state.going.left, state.going.back
        matched = min(lens[j], last)
        for k in range(len(shares)):
            right = right_at_first(tables.breaks[kinds[k], matched], evidence[j]) / (1.0 + RANK_PENALTY * j)
            stake = shares[k] * right
            shares[k] -= stake
            stakes[j, BY_KIND + k] = stake
            stakes[j, CHANCE] += stake
            stakes[j, WORTH] += stake * tables.prices[kinds[k], min(matched + 1, last)]


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
    tokens: ReadInts,
    state: State,
    number: int,
    block: Ints2D,
    first: int,
    n: int,
    j: int,
    found: int,
    branches: list[Branch],
    stakes: Floats2D,
) -> int:
    """Draft both where branch ``j`` stands before tokens that were replaced before; return how many branches there are.

    Where there is no room for another branch only the likelier of the two is drafted.
    """
    one, branch, length = state.replaced.kept[number], branches[j], state.text.length
    share = replacing.chance(tokens, state.replaced, number, branch.cursor)
    for node in range(first, n):
        if block[PARENT, node] == branch.tip and block[TOKEN, node] == tokens[one.new_at]:
            return found  # another copy said so already
    for other in range(found):
        if branches[other].tip == branch.tip and next_token(tokens, length, branches[other]) == tokens[one.new_at]:
            return found  # or is going to
    to = j
    if found < min(state.max_copies, MAX_COPIES):
        to, found = found, found + 1
        branches[to], stakes[to] = branches[j], stakes[j]
        for k in range(stakes.shape[1]):
            stakes[to, k] *= share
            stakes[j, k] *= 1.0 - share
    else:
        for k in range(stakes.shape[1]):
            stakes[j, k] *= max(share, 1.0 - share)
        if share < 0.5:
            return found
    branches[to].back = branches[j].cursor + one.old_len
    branches[to].cursor, branches[to].left = one.new_at, one.new_len
    return found


@kernel
def write(text: Text, state: State, tables: Tables, max_nodes: int, max_depth: int, block: Ints2D, first: int) -> int:
    """Write the nodes that copies of the text propose into the block from column ``first`` on; return where they end.

    They come by worth, parents first: that is, the probability that a node is reached and right times the price of its
    token. What cannot pay for its position is left out. The state gets the best candidate.
    """
    most = min(state.max_copies, MAX_COPIES)
    at, lens, evidence = np.empty(most, np.int64), np.empty(most, np.int64), np.empty(most, np.int64)
    found = find_copies(text, state, at, lens, evidence)
    tokens, length, replaced = text.tokens, state.text.length, state.replaced
    state.best.length, state.best.position = length, -1
    state.expected_tokens = state.expected_cost = 1.0
    if not found:
        return first
    state.best.position, state.best.match, state.best.evidence = at[0], lens[0], evidence[0]
    state.best.source = PREDICTION if at[0] < state.num_predicted else CONTEXT

    breaks, prices, last = tables.breaks, tables.prices, tables.breaks.shape[1] - 1
    kinds, shares = np.empty(breaks.shape[0], np.int64), np.empty(breaks.shape[0])
    num_likely = believed(state.beliefs[state.best.source], kinds, shares)
    branches, stakes = np.zeros(MAX_COPIES, BRANCH), np.zeros((MAX_COPIES, BY_KIND + num_likely))
    open_branches(state, at, lens, evidence, found, tables, kinds, shares[:num_likely], branches, stakes)
    state.expected_tokens, state.expected_cost = 1.0 + stakes[0, CHANCE], tables.costs[2]
    n = first
    while n - first < max_nodes:
        best = -1
        for j in range(found):
            is_open = stakes[j, CHANCE] >= MIN_PROB and branches[j].depth < max_depth
            if is_open and (best < 0 or stakes[j, WORTH] > stakes[best, WORTH]):
                best = j
        if best < 0 or stakes[best, WORTH] * WORTH_FACTOR < tables.slopes[1 + n - first]:
            break  # worth only falls from here: whatever follows would not pay for its positions
        branch = branches[best]
        if replaced.count and branch.left == 0 and branch.seen != branch.cursor:
            branch.seen = branch.cursor
            number = replacing.find(tokens, length, replaced, branch.cursor)
            if number >= 0:
                found = fork(tokens, state, number, block, first, n, best, found, branches, stakes)
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
