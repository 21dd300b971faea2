"""Kernels that find where the text may be copied on from."""

from __future__ import annotations

from typing import Final

import numpy as np

from zerodraft.lookup.copy._text import ORDER, SCORE_CAP, WINDOW, Text, beats, match_length
from zerodraft.lookup.copy._work import LIMIT, MAX_COPIES, Work
from zerodraft.lookup.runtime._jit import Longs, ReadInts, kernel
from zerodraft.lookup.session._state import State

# What the other occurrences of a match say about the token that follows it: one, two, three or more of them, all with
# this token; others go on differently, but not more of them; most others do.
SINGLE, PAIR, MANY, CONTESTED, OUTVOTED = range(5)
EVIDENCE_NAMES: Final = ("single", "pair", "many", "contested", "outvoted")


@kernel
def add_copy(tokens: ReadInts, pointer: int, position: int, match: int, count: int, room: int, work: Work) -> int:
    """Insert a candidate into the list; return how many there are now."""
    at, lens = work.at, work.lens
    slot = count
    for j in range(count):
        if tokens[at[j]] == tokens[position]:
            slot = j
            break
    distance = abs(position - pointer)
    if slot < count or count == room:
        slot = min(slot, count - 1)
        if at[slot] == position or not beats(match, distance, position, lens[slot], abs(at[slot] - pointer), at[slot]):
            return count
    else:
        count += 1
    while slot > 0 and beats(match, distance, position, lens[slot - 1], abs(at[slot - 1] - pointer), at[slot - 1]):
        at[slot], lens[slot] = at[slot - 1], lens[slot - 1]
        slot -= 1
    at[slot], lens[slot] = position, match
    return count


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
def find_near(tokens: ReadInts, state: State, count: int, work: Work) -> int:
    """Add the copies within WINDOW of the pointer; return how many candidates there are then."""
    length, pointer, min_match = state.text.length, state.pointer, state.min_match
    cap, newest, room = min(state.max_match, SCORE_CAP), tokens[length - 1], min(state.max_copies, MAX_COPIES)
    for distance in range(WINDOW + 1):
        if count and work.lens[0] == cap:
            break  # nothing farther away can be better
        for side in range(2 if distance else 1):
            position = pointer + distance if side == 0 else pointer - distance
            if position < 1 or position >= length or tokens[position - 1] != newest or tokens[position] < 0:
                continue
            match = match_length(tokens, length, tokens, position, cap)
            if match >= min_match:
                count = add_copy(tokens, pointer, position, match, count, room, work)
    return count


@kernel
def find_copies(text: Text, state: State, work: Work) -> int:
    """List the places where the text may be copied on from; return how many.

    Candidates are all positions within WINDOW of the pointer and the LIMIT newest occurrences of the last four tokens
    and of the last one; matches are capped at SCORE_CAP for the ranking and measured up to max_match afterwards. Where
    a match reaches the cap near the pointer it is the only candidate: what else there is would not be worth a node. The
    copy that was right so far is as good as its run is long, replacements included, though these tokens do not match.
    """
    tokens, length, pointer, min_match = text.tokens, state.text.length, state.pointer, state.min_match
    if length < 2 or tokens[length - 1] < 0:
        return 0
    cap, room = min(state.max_match, SCORE_CAP), min(state.max_copies, MAX_COPIES)
    at, lens, evidence, seen_at, seen_lens = work.at, work.lens, work.evidence, work.seen_at, work.seen_lens
    count, going, run = 0, np.int64(-1), np.int64(0)
    if state.going.length == length and state.going.at < length and tokens[state.going.at] >= 0:
        going, run = state.going.at, min(state.going.match, state.max_match)
    if run >= min_match and run > 0:
        count = add_copy(tokens, pointer, going, min(run, cap), count, room, work)
    count = find_near(tokens, state, count, work)
    if count and lens[0] == cap:
        match = match_length(tokens, length, tokens, at[0], state.max_match)
        lens[0], evidence[0] = max(match, run if at[0] == going else 0), SINGLE
        return 1
    num_1, num_n = 0, 0
    for family in range(1, -1, -1):
        last, steps, seen = np.int64(text.links_n[length - 1] if family else text.links_1[length - 1]), 0, 0
        while last >= 0 and steps < LIMIT:
            steps += 1
            position = last + 1
            last = np.int64(text.links_n[last] if family else text.links_1[last])
            if tokens[position] < 0:
                continue
            match = match_length(tokens, length, tokens, position, cap if family else min(cap, ORDER))
            seen_at[family, seen], seen_lens[family, seen] = position, match
            seen += 1
            if match >= min_match and (family or match < ORDER):  # longer ones stand in the other chain as well
                count = add_copy(tokens, pointer, position, match, count, room, work)
        num_1, num_n = (num_1, seen) if family else (seen, num_n)
    for j in range(count):
        family = 1 if lens[j] >= ORDER else 0  # the chain that holds everything matching as long as this one
        evidence[j] = weigh(tokens, at[j], lens[j], seen_at[family], seen_lens[family], num_n if family else num_1)
        if lens[j] == SCORE_CAP:
            match = match_length(tokens, length, tokens, at[j], state.max_match)
            lens[j], evidence[j] = max(match, run if at[j] == going else 0), SINGLE
    return count
