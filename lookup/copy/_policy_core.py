"""Kernels of the adaptive policy: where a copy may go on, what each drafted node is worth, what an outcome teaches.

Arrays:
    breaks float64 (kinds, states)   breaks[k, m]: probability that a copy breaks at the next token after m matched
                                     ones, in text of kind k; m is cut at states - 1. Index 0 is unused.
    prices float64 (kinds, states)   prices[k, m]: forwards saved by having the token that follows state m already.
    costs float64 (rows,)            costs[r]: cost of one forward over r positions, costs[1] == 1.
    slopes float64 (rows,)           slopes[r]: the least that each further position costs, on average, from r on.
    weights float64 (sources, kinds) log-probability, up to a constant, of each kind for copies from each source.

Beside the kernels of this file, ``propose`` and ``learn`` call those of ``_replacement_core``.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
from numba import types

from zerodraft.lookup.copy import _replacement_core as replacing
from zerodraft.lookup.runtime.jit import I32_2D, I64, I64_2D, READ_I32, READ_I32_2D, kernel

Ints = npt.NDArray[np.int32]
Longs = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

F64: Final = types.Array(types.float64, 1, "C")
F64_2D: Final = types.Array(types.float64, 2, "C")
READ_F64: Final = types.Array(types.float64, 1, "C", readonly=True)
READ_F64_2D: Final = types.Array(types.float64, 2, "C", readonly=True)

U1: Final = np.uint64(1)
WINDOW: Final = 128  # every position this close to the copy pointer is considered
LIMIT: Final = 32  # and this many of the newest occurrences in each hash chain
LONG_GRAM: Final = 4  # n of the longer of the two families of hash chains (_ngram_core.ORDER)
SCORE_CAP: Final = 32  # a longer match is no better evidence: nearness to the copy pointer decides
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
MIN_GAIN: Final = 0.01  # nor a draft that is expected to save less than this part of a forward
MIN_RATE: Final = 1.05  # where no draft pays by price, one is taken if it brings more than this many tokens per cost
WORTH_FACTOR: Final = 1.1  # drafting slightly too much costs less than slightly too little
MAX_DOUBT: Final = 6.0  # a kind this far below the best in log weight is ignored, but falls no further: text changes

# settings int64: what the propose kernel is told about the session.
LENGTH, POINTER, MIN_LEN, MAX_LEN, NUM_PREDICTED, MAX_NODES, MAX_DEPTH, NUM_COPIES, NUM_SETTINGS = range(9)
# first int64: the best candidate of the last proposal (POSITION -1: none), which is compared with what came even if it
# was not drafted; and if all that came was expected of it, where it goes on when the text is GO_LENGTH long: for how
# many tokens it was right, how many of a replacement are still to come, and where in the source it goes on after those.
AT_LENGTH, POSITION, MATCH, SOURCE, EVIDENCE, GO_LENGTH, GO_AT, GO_MATCH, GO_LEFT, GO_BACK, NUM_FIRST = range(11)
EXPECTED_TOKENS, EXPECTED_COST = 0, 1
ROW_TOKEN, ROW_PARENT, ROW_PROB, ROW_MATCH, ROW_ORIGIN, ROW_SOURCE, NUM_ROWS = range(7)
CONTEXT, PREDICTION = 0, 1


@kernel(types.void(READ_F64, F64))
def find_slopes(costs: Floats, slopes: Floats) -> None:
    """Fill ``slopes`` from ``costs``; the last gets 0. Cost: rows² steps, a millisecond for 1,000."""
    rows = len(costs)
    slopes[rows - 1] = 0.0
    for r in range(rows - 1):
        slopes[r] = np.inf
        for later in range(r + 1, rows):
            slopes[r] = min(slopes[r], (costs[later] - costs[r]) / (later - r))


@kernel(types.void(READ_F64_2D, READ_F64, types.int64, F64_2D))
def solve_prices(breaks: Floats, costs: Floats, max_nodes: int, prices: Floats) -> None:
    """Solve backwards, for every kind and match length, the cheapest way to verify the rest of a copied run.

    toll[m] = min over n of costs[1 + n] + P(n + 1 more tokens match) · toll[m + n + 1] is the expected cost until the
    run breaks; what a token at state m saves is toll[m] - P(the next one matches) · toll[m + 1].
    Cost: kinds · states · max_nodes steps.
    """
    num_states = breaks.shape[1]
    last = num_states - 1
    toll = np.zeros(num_states)
    for kind in range(breaks.shape[0]):
        stay = 1.0 - breaks[kind, last]
        survive, best = 1.0, np.inf
        for n in range(max_nodes + 1):
            survive *= stay
            best = min(best, costs[1 + n] / (1.0 - survive))
        toll[last] = best
        for m in range(last - 1, 0, -1):
            survive, best = 1.0, np.inf
            for n in range(max_nodes + 1):
                survive *= 1.0 - breaks[kind, min(m + n, last)]
                best = min(best, costs[1 + n] + survive * toll[min(m + n + 1, last)])
            toll[m] = best
        for m in range(1, num_states):
            prices[kind, m] = toll[m] - (1.0 - breaks[kind, m]) * toll[min(m + 1, last)]


@kernel(types.int64(READ_I32, types.int64, types.int64, types.int64))
def match_length(tokens: Ints, length: int, position: int, max_len: int) -> int:
    """Number of tokens before ``position`` that equal the last ones of the text, at most ``max_len``."""
    most = min(position, max_len)
    ours, theirs = np.uint64(length - 1), np.uint64(position - 1)  # unsigned: no test for Python's negative indices
    for i in range(most):
        token = tokens[ours]
        if token < 0 or tokens[theirs] != token:
            return i
        ours -= U1
        theirs -= U1
    return most


@kernel(types.boolean(types.int64, types.int64, types.int64, types.int64, types.int64, types.int64))
def is_better(match_a: int, distance_a: int, at_a: int, match_b: int, distance_b: int, at_b: int) -> bool:
    """True if match - log2(1 + distance) / 5 is higher for a, or equal and a stands later; in exact integers."""
    lead = match_a - match_b
    if lead > 6:  # 32 ** 7 is more than any distance
        return True
    if lead < -6:
        return False
    left, right = 1 + distance_a, 1 + distance_b
    if lead >= 0:
        right <<= 5 * lead
    else:
        left <<= -5 * lead
    return left < right or (left == right and at_a > at_b)


@kernel(types.int64(READ_I32, types.int64, types.int64, types.int64, types.int64, types.int64, I64, I64))
def add_copy(
    tokens: Ints, pointer: int, position: int, match: int, found: int, room: int, at: Longs, lens: Longs
) -> int:
    """Insert a candidate into the list, best first, one per next token; return how many there are now."""
    token = tokens[position]
    slot = found
    for j in range(found):
        if tokens[at[j]] == token:
            slot = j
            break
    distance = abs(position - pointer)
    if slot < found or found == room:
        slot = min(slot, found - 1)
        if at[slot] == position or not is_better(
            match, distance, position, lens[slot], abs(at[slot] - pointer), at[slot]
        ):
            return found
    else:
        found += 1
    while slot > 0 and is_better(match, distance, position, lens[slot - 1], abs(at[slot - 1] - pointer), at[slot - 1]):
        at[slot], lens[slot] = at[slot - 1], lens[slot - 1]
        slot -= 1
    at[slot], lens[slot] = position, match
    return found


@kernel(types.int64(READ_I32, types.int64, types.int64, I64, I64, types.int64))
def weigh(tokens: Ints, position: int, match: int, others: Longs, other_lens: Longs, num_others: int) -> int:
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


@kernel(types.int64(READ_I32, READ_I32_2D, I64, I64, I64, I64, I64))
def find_copies(
    tokens: Ints, links: Ints, settings: Longs, first: Longs, at: Longs, lens: Longs, evidence: Longs
) -> int:
    """List the places where the text may be copied on from, best first, one per next token; return how many.

    Candidates are all positions within WINDOW of the pointer and the LIMIT newest occurrences of the last four tokens
    and of the last one; matches are capped at SCORE_CAP for the ranking and measured up to MAX_LEN afterwards. Where a
    match reaches the cap near the pointer it is the only candidate: what else there is would not be worth a node. The
    copy that was right so far is as good as its run is long, replacements included, though these tokens do not match.
    """
    length, pointer, min_len = settings[LENGTH], settings[POINTER], settings[MIN_LEN]
    if length < 2 or tokens[length - 1] < 0:
        return 0
    cap = min(settings[MAX_LEN], SCORE_CAP)
    room = min(settings[NUM_COPIES], MAX_COPIES)
    newest = tokens[length - 1]
    found, going, run = 0, np.int64(-1), np.int64(0)
    if first[GO_LENGTH] == length and first[GO_AT] < length and tokens[first[GO_AT]] >= 0:
        going, run = first[GO_AT], min(first[GO_MATCH], settings[MAX_LEN])
    if run >= min_len and run > 0:
        found = add_copy(tokens, pointer, going, min(run, cap), found, room, at, lens)
    for distance in range(WINDOW + 1):
        if found and lens[0] == cap:
            break  # nothing farther away can be better
        for side in range(2 if distance else 1):
            position = pointer + distance if side == 0 else pointer - distance
            if position < 1 or position >= length or tokens[position - 1] != newest or tokens[position] < 0:
                continue
            match = match_length(tokens, length, position, cap)
            if match >= min_len:
                found = add_copy(tokens, pointer, position, match, found, room, at, lens)
    if found and lens[0] == cap:
        lens[0] = max(match_length(tokens, length, at[0], settings[MAX_LEN]), run if at[0] == going else 0)
        evidence[0] = SINGLE
        return 1
    seen_at, seen_lens = np.empty((2, LIMIT), np.int64), np.empty((2, LIMIT), np.int64)
    num_seen = np.zeros(2, np.int64)
    for family in range(1, -1, -1):
        last, steps = links[family, length - 1], 0
        while last >= 0 and steps < LIMIT:
            steps += 1
            position = last + 1
            last = links[family, last]
            if tokens[position] < 0:
                continue
            match = match_length(tokens, length, position, cap if family else min(cap, LONG_GRAM))
            seen_at[family, num_seen[family]], seen_lens[family, num_seen[family]] = position, match
            num_seen[family] += 1
            if match >= min_len and (family or match < LONG_GRAM):  # longer ones stand in the other chain as well
                found = add_copy(tokens, pointer, position, match, found, room, at, lens)
    for j in range(found):
        family = 1 if lens[j] >= LONG_GRAM else 0  # the chain that holds everything matching as long as this one
        evidence[j] = weigh(tokens, at[j], lens[j], seen_at[family], seen_lens[family], num_seen[family])
        if lens[j] == SCORE_CAP:
            lens[j] = max(match_length(tokens, length, at[j], settings[MAX_LEN]), run if at[j] == going else 0)
            evidence[j] = SINGLE
    return found


@kernel(types.float64(types.float64, types.int64))
def right_at_first(breaks: float, evidence: int) -> float:
    """Probability that a candidate's first token is right, from how often copies of its length break and the others."""
    if evidence == CONTESTED:
        return RIGHT_IF_CONTESTED
    if evidence == OUTVOTED:
        return RIGHT_IF_OUTVOTED
    return 1.0 - breaks * BREAK_FACTOR[evidence]


@kernel(types.int64(F64, I64, F64))
def believed(row: Floats, kinds: Longs, belief: Floats) -> int:
    """List the kinds that are not ruled out and exp of their log weights, the best 1; return how many."""
    top, n = row[0], 0
    for kind in range(len(row)):
        top = max(top, row[kind])
    for kind in range(len(row)):
        if row[kind] > top - MAX_DOUBT:
            kinds[n], belief[n] = kind, np.exp(row[kind] - top)
            n += 1
    return n


# branches int64 (MAX_COPIES, NUM_BRANCH): the copy position of a branch, where it stands in the source, how many tokens
# of a replacement it is still to draft before it goes on BACK in the source, where a replacement was considered last,
# its last node, its depth, and its match length.
AT, CURSOR, LEFT, BACK, SEEN, TIP, DEPTH, LENGTH_MATCHED, NUM_BRANCH = range(9)
# stakes float64 (MAX_COPIES, 2 + kinds): probability and worth of a branch's next node, then its probability by kind.
PROB, WORTH, BY_KIND = range(3)


@kernel(types.void(types.int64, I64, I64, I64, I64, READ_F64_2D, READ_F64_2D, I64, types.int64, I64_2D, F64_2D))
def open_branches(
    found: int,
    at: Longs,
    lens: Longs,
    evidence: Longs,
    first: Longs,
    breaks: Floats,
    prices: Floats,
    kinds: Longs,
    num_likely: int,
    branches: Longs,
    stakes: Floats,
) -> None:
    """Make a branch of every copy that was found, best first; ``stakes[0]`` holds the belief in each of the kinds."""
    last = breaks.shape[1] - 1
    rest, total = np.empty(num_likely), 0.0
    for k in range(num_likely):
        rest[k] = stakes[0, BY_KIND + k]
        total += rest[k]
        stakes[0, BY_KIND + k] = 0.0
    for k in range(num_likely):
        rest[k] /= total
    for j in range(found):
        branches[j, AT] = branches[j, CURSOR] = at[j]
        branches[j, SEEN] = branches[j, TIP] = -1
        branches[j, LENGTH_MATCHED] = lens[j]
        if first[GO_LENGTH] == first[AT_LENGTH] and first[GO_AT] == at[j]:
            branches[j, LEFT], branches[j, BACK] = first[GO_LEFT], first[GO_BACK]
        state = min(lens[j], last)
        for k in range(num_likely):
            right = right_at_first(breaks[kinds[k], state], evidence[j]) / (1.0 + RANK_PENALTY * j)
            stake = rest[k] * right
            rest[k] -= stake
            stakes[j, BY_KIND + k] = stake
            stakes[j, PROB] += stake
            stakes[j, WORTH] += stake * prices[kinds[k], min(state + 1, last)]


@kernel(types.void(types.int64, types.int64, types.int64, I64_2D, types.int64, I32_2D))
def add_node(token: int, num_predicted: int, n: int, branches: Longs, j: int, block: Ints) -> None:
    """Write a branch's next node into column ``n``, its probability left out, and move the branch on."""
    block[ROW_TOKEN, n] = token
    block[ROW_PARENT, n] = branches[j, TIP]
    block[ROW_MATCH, n] = branches[j, LENGTH_MATCHED]
    block[ROW_ORIGIN, n] = branches[j, CURSOR]
    block[ROW_SOURCE, n] = PREDICTION if branches[j, CURSOR] < num_predicted else CONTEXT
    branches[j, TIP] = n
    branches[j, DEPTH] += 1
    branches[j, CURSOR] += 1
    if branches[j, LEFT]:
        branches[j, LEFT] -= 1
        if branches[j, LEFT] == 0:
            branches[j, CURSOR] = branches[j, BACK]


@kernel(types.int64(READ_I32, types.int64, I64_2D, types.int64))
def next_token(tokens: Ints, length: int, branches: Longs, j: int) -> int:
    """The token that a branch would draft next; past the text's end the copy goes on into itself."""
    at, cursor = branches[j, AT], branches[j, CURSOR]
    place = cursor if cursor < length else at + (cursor - at) % (length - at)
    token: int = np.int64(tokens[place])
    return token


@kernel(
    types.int64(
        READ_I32,
        types.int64,
        I64_2D,
        types.int64,
        I32_2D,
        types.int64,
        types.int64,
        types.int64,
        types.int64,
        I64_2D,
        F64_2D,
    ),
    uses=(replacing,),
)
def fork(
    tokens: Ints,
    length: int,
    replaced: Longs,
    row: int,
    block: Ints,
    n: int,
    j: int,
    found: int,
    room: int,
    branches: Longs,
    stakes: Floats,
) -> int:
    """Draft both where branch ``j`` stands before tokens that were replaced before; return how many branches there are.

    Where there is no room for another branch only the likelier of the two is drafted.
    """
    new_at, share = replaced[row, replacing.NEW_AT], replacing.chance(tokens, replaced, row, branches[j, CURSOR])
    for node in range(n):
        if block[ROW_PARENT, node] == branches[j, TIP] and block[ROW_TOKEN, node] == tokens[new_at]:
            return found  # another copy said so already
    for other in range(found):
        if branches[other, TIP] == branches[j, TIP] and next_token(tokens, length, branches, other) == tokens[new_at]:
            return found  # or is going to
    to = j
    if found < room:
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
    branches[to, BACK] = branches[j, CURSOR] + replaced[row, replacing.OLD_LEN]
    branches[to, CURSOR], branches[to, LEFT] = new_at, replaced[row, replacing.NEW_LEN]
    return found


@kernel(
    types.int64(
        READ_I32,
        READ_I32_2D,
        I64,
        I64_2D,
        F64_2D,
        READ_F64_2D,
        READ_F64_2D,
        READ_F64,
        READ_F64,
        I32_2D,
        I64,
        F64,
    ),
    uses=(replacing,),
)
def propose(
    tokens: Ints,
    links: Ints,
    settings: Longs,
    replaced: Longs,
    weights: Floats,
    breaks: Floats,
    prices: Floats,
    costs: Floats,
    slopes: Floats,
    block: Ints,
    first: Longs,
    expected: Floats,
) -> int:
    """Write the best draft into the columns of ``block``; return its number of nodes.

    Every node is worth the probability that it is reached and right times the price of its token. Nodes are taken by
    worth, parents first; the draft ends where the sum of their worth exceeds the extra cost of the forward most.
    Where none does, the draft with the most expected tokens per cost is taken if they are more than ``MIN_RATE``:
    prices hope for a cheaper draft later, which a fork ahead can forbid for as long as the copy lasts.
    ``first`` gets the best candidate; ``expected`` the expected tokens and the cost of what was drafted or, where
    nothing was, of the best draft that did not pay.
    """
    at, lens = np.empty(MAX_COPIES, np.int64), np.empty(MAX_COPIES, np.int64)
    evidence = np.empty(MAX_COPIES, np.int64)
    found = find_copies(tokens, links, settings, first, at, lens, evidence)
    length = settings[LENGTH]
    first[AT_LENGTH], first[POSITION] = length, -1
    expected[EXPECTED_TOKENS] = expected[EXPECTED_COST] = 1.0
    if not found:
        return 0
    first[POSITION], first[MATCH], first[EVIDENCE] = at[0], lens[0], evidence[0]
    first[SOURCE] = PREDICTION if at[0] < settings[NUM_PREDICTED] else CONTEXT

    branches, kinds = np.zeros((MAX_COPIES, NUM_BRANCH), np.int64), np.empty(breaks.shape[0], np.int64)
    stakes = np.zeros((MAX_COPIES, BY_KIND + breaks.shape[0]))
    num_likely = believed(weights[first[SOURCE]], kinds, stakes[0, BY_KIND:])
    open_branches(found, at, lens, evidence, first, breaks, prices, kinds, num_likely, branches, stakes)

    probs = block[ROW_PROB].view(np.float32)
    max_nodes, room = min(settings[MAX_NODES], block.shape[1]), min(settings[NUM_COPIES], MAX_COPIES)
    expected[EXPECTED_TOKENS], expected[EXPECTED_COST] = 1.0 + stakes[0, PROB], costs[2]
    gain, tokens_then = 0.0, 1.0
    best_gain, best_n, best_any = MIN_GAIN, 0, -np.inf
    best_rate, rate_n = MIN_RATE, 0
    n, last = 0, breaks.shape[1] - 1
    while n < max_nodes:
        best = -1
        for j in range(found):
            is_open = stakes[j, PROB] >= MIN_PROB and branches[j, DEPTH] < settings[MAX_DEPTH]
            if is_open and (best < 0 or stakes[j, WORTH] > stakes[best, WORTH]):
                best = j
        if best < 0:
            break
        if stakes[best, WORTH] * WORTH_FACTOR < slopes[1 + n]:
            break  # worth only falls from here: whatever follows would not pay for its positions
        cursor = branches[best, CURSOR]
        if replaced[0, replacing.COUNT] and branches[best, LEFT] == 0 and branches[best, SEEN] != cursor:
            branches[best, SEEN] = cursor
            row = replacing.find(tokens, length, replaced, cursor)
            if row:
                found = fork(tokens, length, replaced, row, block, n, best, found, room, branches, stakes)
                continue
        token = np.int64(tokens[cursor]) if cursor < length else next_token(tokens, length, branches, best)
        if token < 0:
            stakes[best, PROB] = 0.0  # a barrier: nothing to copy behind it
            continue
        probs[n] = stakes[best, PROB]
        add_node(token, settings[NUM_PREDICTED], n, branches, best, block)
        n += 1
        gain += stakes[best, WORTH] * WORTH_FACTOR
        tokens_then += stakes[best, PROB]
        net = gain - (costs[1 + n] - costs[1])
        if net > best_any:
            best_any = net
            expected[EXPECTED_TOKENS], expected[EXPECTED_COST] = tokens_then, costs[1 + n]
        if net > best_gain:
            best_gain, best_n = net, n
        if tokens_then > best_rate * costs[1 + n]:
            best_rate, rate_n = tokens_then / costs[1 + n], n
        state = min(branches[best, LENGTH_MATCHED] + branches[best, DEPTH], last)
        after, prob, worth = min(state + 1, last), 0.0, 0.0
        for k in range(num_likely):  # here, not in a kernel of its own: a call per node would take as long as the rest
            stake = stakes[best, BY_KIND + k] * (1.0 - breaks[kinds[k], state])
            stakes[best, BY_KIND + k] = stake
            prob += stake
            worth += stake * prices[kinds[k], after]
        stakes[best, PROB], stakes[best, WORTH] = prob, worth
    if best_n == 0 and rate_n:
        best_n = rate_n
        expected[EXPECTED_TOKENS], expected[EXPECTED_COST] = best_rate * costs[1 + rate_n], costs[1 + rate_n]
    return best_n


@kernel(types.int64(READ_I32, types.int64, types.int64, I64, I64_2D), uses=(replacing,))
def resume(tokens: Ints, start: int, length: int, first: Longs, replaced: Longs) -> int:
    """Where a watched site ends with the text, go on in its source from there; return where that is, else -1."""
    there = replacing.close(tokens, start, length, replaced)
    if there >= 0 and first[GO_LENGTH] != length:
        first[GO_LENGTH], first[GO_AT], first[GO_MATCH], first[GO_LEFT] = length, there, replacing.RESUMED, 0
        return there
    return -1


@kernel(types.int64(READ_I32, types.int64, types.boolean, I64, READ_F64_2D, F64_2D, I64_2D), uses=(replacing,))
def learn(
    tokens: Ints, length: int, may_break: bool, first: Longs, breaks: Floats, weights: Floats, replaced: Longs
) -> int:
    """Compare what came with the best candidate: shift belief among the kinds, count replacements, watch for new ones.

    ``tokens[first[AT_LENGTH] : length]`` came. A disagreement counts only if ``may_break``. Returns where the copy goes
    on, -1 if not one token of it came.
    """
    start = first[AT_LENGTH]
    if first[POSITION] < 0:
        return resume(tokens, start, length, first, replaced)
    row, last = weights[first[SOURCE]], breaks.shape[1] - 1
    cursor, i, n = first[POSITION], 0, length - start
    site, begun, left, back = np.int64(-1), 0, np.int64(0), np.int64(0)
    if first[GO_LENGTH] == start and first[GO_AT] == cursor:
        left, back = first[GO_LEFT], first[GO_BACK]
    while i < n:
        known = 0 if left else replacing.find(tokens, start, replaced, cursor)
        if known and tokens[start + i] == tokens[replaced[known, replacing.NEW_AT]]:
            replacing.count(tokens, replaced, known, cursor, replacing.HITS)
            site, begun, back = cursor, i, cursor + replaced[known, replacing.OLD_LEN]
            cursor, left = replaced[known, replacing.NEW_AT], replaced[known, replacing.NEW_LEN]
        is_same = tokens[cursor] == tokens[start + i]
        if not is_same and not may_break:
            break
        if left == 0:
            if known and is_same:
                replacing.count(tokens, replaced, known, cursor, replacing.MISSES)
            state = min(first[MATCH] + i, last)
            for kind in range(len(row)):
                right = 1.0 - breaks[kind, state] if i else right_at_first(breaks[kind, state], first[EVIDENCE])
                row[kind] += np.log(right if is_same else 1.0 - right)
        if not is_same:
            if left == 0 and first[MATCH] + i >= replacing.MIN_RUN:
                replacing.watch(replaced, cursor, start + i)
            elif left and site >= 0:
                replacing.watch(replaced, site, start + begun)
            break
        i, cursor = i + 1, cursor + 1
        if left:
            left -= 1
            if left == 0:
                cursor = back
    floor = row.max() - MAX_DOUBT
    for kind in range(len(row)):
        row[kind] = max(row[kind], floor)
    first[GO_LENGTH] = length if i == n else -1
    first[GO_AT], first[GO_MATCH], first[GO_LEFT], first[GO_BACK] = cursor, first[MATCH] + i, left, back
    there = resume(tokens, start, length, first, replaced)
    return there if there >= 0 else cursor if i else -1
