"""Kernels of one step of one session: one session calls them once, a batch of sessions for each of its rows."""

from __future__ import annotations

from typing import Final

import numpy as np

from zerodraft.lookup import _merge as merging
from zerodraft.lookup._block import PROB
from zerodraft.lookup._prices import Tables
from zerodraft.lookup.copy import _copies as copies
from zerodraft.lookup.copy._text import Text
from zerodraft.lookup.memory import _stored as stored
from zerodraft.lookup.memory._stored import Segments
from zerodraft.lookup.runtime._jit import Ints2D, Longs, kernel
from zerodraft.lookup.session._state import State, States

PACE_DECAY: Final = 0.95
CHECK: Final = (
    -1
)  # instead of a number: a block of a memory's file is to be checked first, which ``state.stored`` names


@kernel
def gather(
    text: Text,
    state: State,
    tables: Tables,
    segments: Segments,
    max_nodes: int,
    max_depth: int,
    block: Ints2D,
    ends: Longs,
    num_parts: int,
) -> int:
    """Let the text and the memory write their parts behind those that are there; return how many parts there are.

    The memory is not asked where the text is sure of its first token. CHECK: call again after the check.
    """
    first = ends[num_parts - 1] if num_parts else np.int64(0)
    end = copies.write(text, state, tables, max_nodes, max_depth, block, first)
    if end > first:
        ends[num_parts] = end
        num_parts += 1
    if len(segments) == 0 or (end > first and block[PROB].view(np.float32)[first] >= merging.SURE):
        state.stored.serial = 0
        return num_parts
    first, end = end, stored.write(text.tokens, segments, state, tables, min(max_nodes, max_depth), block, end)
    if end < 0:
        return CHECK
    if end > first:
        ends[num_parts] = end
        num_parts += 1
    return num_parts


@kernel
def propose(
    text: Text,
    state: State,
    tables: Tables,
    segments: Segments,
    max_nodes: int,
    max_depth: int,
    block: Ints2D,
    ends: Longs,
    num_parts: int,
) -> int:
    """Leave a draft in the first columns of the block; return its number of nodes, or CHECK.

    Args:
        max_nodes, max_depth: upper bounds on nodes and on their depth.
        block: with ``num_parts`` parts of other sources in it, and room for ``max_nodes`` nodes for each of ours.
        ends: where these parts end, with room for two more.
    """
    num_parts = gather(text, state, tables, segments, max_nodes, max_depth, block, ends, num_parts)
    if num_parts < 0:
        return CHECK
    return merging.choose(block, ends, num_parts, max_nodes, tables.costs, state)


@kernel
def learn(
    text: Text,
    state: State,
    start: int,
    origin: int,
    num_drafted: int,
    may_break: bool,
    tables: Tables,
    segments: Segments,
) -> None:
    """Learn from ``tokens[start : length]``, which came, and move the copy pointer to the end of the accepted copy.

    Args:
        origin: position in the text that the last accepted node was copied from, -1: from elsewhere, or none was.
        num_drafted: nodes of the draft that was verified.
        may_break: a token that came otherwise than expected says something about the sources.
    """
    length = state.text.length
    state.num_steps += 1
    state.num_emitted += length - start
    if num_drafted == 0 and state.best.length == start:
        if state.best.position < 0:
            state.num_unmatched += 1
        else:
            state.num_stood_down += 1
            state.tokens_stood_down += state.expected_tokens
            state.cost_stood_down += state.expected_cost
    cost = tables.costs[min(1 + num_drafted, len(tables.costs) - 1)]
    state.pace_tokens = PACE_DECAY * state.pace_tokens + length - start
    state.pace_cost = PACE_DECAY * state.pace_cost + cost
    cursor = copies.learn(text, state, start, may_break, tables)
    if len(segments):
        stored.learn(text.tokens, segments, state, start, may_break, tables)
    if cursor >= 0:
        state.pointer = cursor
    elif 0 <= origin < length:
        state.pointer = origin + 1


@kernel
def gather_one(
    text: Text,
    states: States,
    tables: Tables,
    segments: Segments,
    max_nodes: int,
    max_depth: int,
    block: Ints2D,
    ends: Longs,
    num_parts: int,
) -> int:
    """``gather`` for Python."""
    return gather(text, states[0], tables, segments, max_nodes, max_depth, block, ends, num_parts)


@kernel
def propose_one(
    text: Text,
    states: States,
    tables: Tables,
    segments: Segments,
    max_nodes: int,
    max_depth: int,
    block: Ints2D,
    ends: Longs,
    num_parts: int,
) -> int:
    """``propose`` for Python."""
    return propose(text, states[0], tables, segments, max_nodes, max_depth, block, ends, num_parts)


@kernel
def learn_one(
    text: Text,
    states: States,
    start: int,
    origin: int,
    num_drafted: int,
    may_break: bool,
    tables: Tables,
    segments: Segments,
) -> None:
    """``learn`` for Python."""
    learn(text, states[0], start, origin, num_drafted, may_break, tables, segments)
