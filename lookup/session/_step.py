"""Kernels of one step of one session: one session calls them once, a batch of sessions for each of its rows."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from zerodraft.lookup import _merge as merging
from zerodraft.lookup._block import PROB
from zerodraft.lookup._merge import Parts
from zerodraft.lookup._prices import Tables
from zerodraft.lookup.copy import _copies as copies
from zerodraft.lookup.copy._text import Text
from zerodraft.lookup.copy._work import Work
from zerodraft.lookup.memory import _stored as stored
from zerodraft.lookup.memory._stored import Segment
from zerodraft.lookup.runtime._jit import kernel
from zerodraft.lookup.session._state import State

PACE_DECAY: Final = 0.95
CHECK: Final = (
    -1
)  # instead of a number: a block of a memory's file is to be checked first, which ``state.stored`` names


class Known(NamedTuple):
    """What drafting looks up beside the text: the policy's tables, the memory's segments (none without a memory); and
    one ``Work`` to compute on, which no two threads may share."""

    tables: Tables
    segments: list[Segment]
    work: list[Work]


@kernel
def gather(
    text: Text, states: list[State], i: int, known: Known, max_nodes: int, max_depth: int, parts: Parts, num_parts: int
) -> int:
    """Let text and memory write their parts behind the ``num_parts`` that are there; return how many there are then.

    The memory is not asked where the text is sure of its first token. CHECK: call again after the check. Up to
    ``max_nodes`` nodes of each, none deeper than ``max_depth``; there must be room for them, and for two ends.
    """
    state, block = states[i], parts.block
    first = parts.ends[num_parts - 1] if num_parts else np.int64(0)
    end = copies.write(text, state, known.tables, known.work[0], max_nodes, max_depth, block, first)
    if end > first:
        parts.ends[num_parts] = end
        num_parts += 1
    if len(known.segments) == 0 or (end > first and block[PROB].view(np.float32)[first] >= merging.SURE):
        state.stored.serial = 0
        return num_parts
    first = end
    end = stored.write(text.tokens, known.segments, state, known.tables, min(max_nodes, max_depth), block, first)
    if end < 0:
        return CHECK
    if end > first:
        parts.ends[num_parts] = end
        num_parts += 1
    return num_parts


@kernel
def propose(text: Text, states: list[State], i: int, known: Known, max_nodes: int, max_depth: int, parts: Parts) -> int:
    """Leave what text and memory draft in the first columns of the block; return its number of nodes, or CHECK."""
    num_parts = gather(text, states, i, known, max_nodes, max_depth, parts, 0)
    if num_parts < 0:
        return CHECK
    return merging.choose(parts, num_parts, max_nodes, known.tables.costs, states[i])


@kernel
def learn(
    text: Text, states: list[State], i: int, start: int, origin: int, num_drafted: int, may_break: bool, known: Known
) -> None:
    """Learn from ``tokens[start : length]``, which came, and move the copy pointer to the end of the accepted copy.

    Args:
        origin: position in the text that the last accepted node was copied from, -1: from elsewhere, or none was.
        num_drafted: nodes of the draft that was verified.
        may_break: a token that came otherwise than expected says something about the sources.
    """
    state, costs = states[i], known.tables.costs
    length = state.text.length
    if state.best.length == start:  # else nothing was proposed
        state.num_steps += 1
        state.num_emitted += length - start
        if num_drafted == 0 and state.best.position < 0:
            state.num_unmatched += 1
        elif num_drafted == 0:
            state.num_stood_down += 1
            state.tokens_stood_down += state.expected_tokens
            state.cost_stood_down += state.expected_cost
    state.pace_tokens = PACE_DECAY * state.pace_tokens + length - start
    state.pace_cost = PACE_DECAY * state.pace_cost + costs[min(1 + num_drafted, len(costs) - 1)] + state.own_cost
    state.own_cost = 0.0
    cursor = copies.learn(text, state, start, may_break, known.tables)
    if len(known.segments):
        stored.learn(text.tokens, known.segments, state, start, may_break, known.tables)
    if cursor >= 0:
        state.pointer = cursor
    elif 0 <= origin < length:
        state.pointer = origin + 1
