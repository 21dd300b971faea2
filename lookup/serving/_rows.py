"""One kernel call for all rows of a serving engine: what a DraftSession does per step, without Python in between.

The texts of all lines lie in one ``Text`` (``TextPool``); a ``LINE`` record says where, beside its session's state. The
arrays are those of the pool and of the caller: no address is kept.
    blocks int32 (num_lines, NUM_ROWS, width)  the last draft of each line; always a chain.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

import numpy as np
from numba import from_dtype, types

from zerodraft.lookup import _merge as merging
from zerodraft.lookup._block import NUM_ROWS, ORIGIN, TOKEN
from zerodraft.lookup._prices import Tables
from zerodraft.lookup.copy import _text as texts
from zerodraft.lookup.copy._text import Text, TextArrays
from zerodraft.lookup.memory._stored import Segments
from zerodraft.lookup.runtime._jit import Ints, Ints2D, Ints3D, Longs, ReadInts, ReadInts2D, ReadLongs, kernel
from zerodraft.lookup.session import _step as stepping
from zerodraft.lookup.session._state import State, States

LINE: Final = np.dtype(
    (
        np.record,
        [
            ("held", "i8"),  # tokens of the row that the session knows
            ("before", "i8"),  # those before its last step's
            ("scrubbed", "i8"),  # up to where the row was compared with them
            ("num_drafted", "i8"),  # nodes in the line's block
            ("at", "i8"),  # where its text lies in the pool: tokens and links, and how many there is room for
            ("capacity", "i8"),
            ("at_1", "i8"),  # its tables
            ("slots_1", "i8"),
            ("at_n", "i8"),
            ("slots_n", "i8"),
        ],
    )
)
Line = Annotated[Any, from_dtype(LINE)]
Lines = Annotated[Any, types.Array(from_dtype(LINE), 1, "C")]

# What a row needs after a call. DONE: nothing, its draft is in the block of its line.
DONE, ABSENT, NEW, LOST, GROW, ODD, CHECK = range(7)

TAIL: Final = 32  # tokens before the new ones that are compared with what the session holds, at every step
SCRUB: Final = 128  # and this many others, in turn, so that the whole text is compared again and again


@kernel
def text_of(pool: Text, line: Line) -> Text:
    """A line's own text."""
    at, end = line.at, line.at + line.capacity
    return TextArrays(
        pool.tokens[at:end],
        pool.links_1[at:end],
        pool.links_n[at:end],
        pool.heads_1[line.at_1 : line.at_1 + line.slots_1],
        pool.heads_n[line.at_n : line.at_n + line.slots_n],
    )


@kernel
def same_tokens(rows: ReadInts2D, row: int, tokens: ReadInts, start: int, end: int) -> bool:
    """True if the row holds ``tokens[start:end]`` at the same places."""
    differ = np.int32(0)
    ours, theirs = rows[row, start:end], tokens[start:end]
    for i in range(np.uint64(len(theirs))):
        differ |= ours[i] ^ theirs[i]
    return bool(differ == 0)


@kernel
def copied_here(rows: ReadInts2D, row: int, length: int, tokens: ReadInts, block: ReadInts2D, n: int) -> bool:
    """True if the row itself holds every drafted token at the place that it was copied from, and what stands before.

    What was not copied from the row's own text has no such place.
    """
    differ, first = np.int32(0), np.int64(-1)
    for i in range(n):
        place = np.int64(block[ORIGIN, i])
        if first < 0 <= place:
            first = place
        if 0 <= place < length:  # else the copy went on into itself
            differ |= rows[row, place] ^ block[TOKEN, i]
    return bool(differ == 0) and (first < 0 or same_tokens(rows, row, tokens, max(0, first - TAIL), first))


@kernel
def append(rows: ReadInts2D, row: int, length: int, text: Text, state: State) -> int:
    """Bring a session's text to the row's length: DONE, GROW or ODD."""
    num_known = state.text.length
    for i in range(num_known, length):
        if rows[row, i] < 0:
            return ODD
    new = rows[row, num_known:length]
    return DONE if texts.extend(new, 0, text, state.text) == len(new) else GROW


@kernel
def step_row(
    rows: ReadInts2D,
    row: int,
    length: int,
    room: int,
    text: Text,
    line: Line,
    state: State,
    tables: Tables,
    segments: Segments,
    block: Ints2D,
    drafted: Ints,
) -> int:
    """Append what is new in a row to a session, learn from it, and draft up to ``room`` tokens into ``drafted``.

    As ``DraftSession.commit`` and ``propose``. Every token drafted from the text is read again in the row itself, at
    the place it is said to be copied from: LOST if it is not there, so nothing of another row's text is ever drafted.
    """
    status = append(rows, row, length, text, state)
    if status != DONE:
        return status
    before, num_agreed, origin = line.held, 0, np.int64(-1)
    if line.num_drafted >= 0:  # else the session has learned from these tokens already
        while num_agreed < line.num_drafted and before + num_agreed < length:
            if block[TOKEN, num_agreed] != text.tokens[before + num_agreed]:
                break
            origin = np.int64(block[ORIGIN, num_agreed])
            num_agreed += 1
        stepping.learn(text, state, before, origin, line.num_drafted, True, tables, segments)
    line.num_drafted = 0
    n = 0
    if room > 0:
        wide, ends = np.empty((NUM_ROWS, 2 * room if len(segments) else room), np.int32), np.zeros(2, np.int64)
        n = stepping.propose(text, state, tables, segments, room, room, wide, ends, 0)
        if n < 0:
            line.num_drafted = -1
            return CHECK
        if n:
            n = merging.keep_likeliest(wide, n, drafted[:room])
            if not copied_here(rows, row, length, text.tokens, wide, n):
                return LOST  # and what is held stays: what came then belongs to another text
            for field in range(NUM_ROWS):
                block[field, :n] = wide[field, :n]
    line.held, line.num_drafted = length, n
    return DONE


@kernel
def goes_on(
    rows: ReadInts2D, row: int, length: int, num_new: int, is_first: bool, tokens: ReadInts, line: Line
) -> bool:
    """True if the row is the line's text, so far as is looked: the last TAIL tokens and SCRUB others in turn."""
    held = line.held
    if not (held + num_new == length or (not is_first and held <= length)):
        return False
    scrubbed = line.scrubbed if line.scrubbed < held else 0
    end = min(scrubbed + SCRUB, held)
    if not same_tokens(rows, row, tokens, max(0, held - TAIL), held):
        return False
    if not same_tokens(rows, row, tokens, scrubbed, end):
        return False
    line.scrubbed = end
    return True


@kernel
def step_rows(
    rows: ReadInts2D,
    lengths: ReadLongs,
    num_new: ReadLongs,
    numbers: ReadLongs,
    max_length: int,
    is_first: bool,
    pool: Text,
    lines: Lines,
    states: States,
    tables: Tables,
    segments: Segments,
    blocks: Ints3D,
    status: Longs,
    drafts: Ints2D,
    num_drafted: Longs,
) -> int:
    """One step of every row; return how many of them need something before they can take it.

    Args (n rows):
        rows: int32 (>= n, width), the texts; only ``rows[i, :lengths[i]]`` is ever read.
        num_new: tokens of it that were sampled in this step; 0: the row is not decoding.
        numbers: the line of the session that row i is believed to go on from; -1: none.
        max_length: no text may become longer, the token after the draft included.
        is_first: True: all rows, and only exactly the new tokens may have been appended since the last step. False:
            those whose status is neither DONE nor ODD, whatever was appended.
        status: what each row needs: DONE (nothing), ABSENT (there is a session but no new token), NEW (no session),
            LOST (the row is not what the session knows), GROW (its arrays are full), ODD (not a text), CHECK (a block
            of a memory's file, which the line's state names).
        drafts, num_drafted: int32 (>= n, width), (>= n,): the drafts of the rows that are DONE.
    """
    num_open, width = 0, rows.shape[1]
    for row in range(len(lengths)):
        if not is_first and (status[row] == DONE or status[row] == ODD):
            continue
        number, length, new = numbers[row], lengths[row], num_new[row]
        num_drafted[row] = 0
        if new == 0:
            status[row] = DONE if number < 0 else ABSENT
        elif not new <= length <= width:
            status[row] = ODD
        elif number < 0:
            status[row] = NEW
        else:
            line = lines[number]
            text = text_of(pool, line)
            status[row] = LOST
            if goes_on(rows, row, length, new, is_first, text.tokens, line):
                room = min(blocks.shape[2], max_length - length - 1)
                status[row] = step_row(
                    rows, row, length, room, text, line, states[number], tables, segments, blocks[number], drafts[row]
                )
            if status[row] == DONE:
                line.before, num_drafted[row] = length - new, line.num_drafted
        num_open += status[row] != DONE
    return num_open
