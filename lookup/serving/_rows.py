"""One kernel call for all rows of a serving engine: what a DraftSession does per step, without Python in between.

The texts of all lines lie in one ``Text`` (``TextPool``). Arrays are the pool's and the caller's: no address is kept.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numba import carray

from zerodraft.lookup import _merge as merging
from zerodraft.lookup._block import NUM_ROWS, ORIGIN, TOKEN
from zerodraft.lookup._merge import Parts
from zerodraft.lookup.copy import _text as texts
from zerodraft.lookup.copy._text import Text
from zerodraft.lookup.runtime._address import at
from zerodraft.lookup.runtime._jit import Ints2D, Ints3D, Longs, ReadInts, ReadInts2D, kernel, record
from zerodraft.lookup.session import _step as stepping
from zerodraft.lookup.session._state import State
from zerodraft.lookup.session._step import Known

# What a row needs after a call. DONE: nothing, its draft is in the block of its line. ABSENT: there is a session but no
# new token. NEW: no session. LOST: the row is not what the session knows. GROW: its arrays are full. ODD: it is no
# text. CHECK: a block of a memory's file is to be checked, which the line's state names.
DONE, ABSENT, NEW, LOST, GROW, ODD, CHECK = range(7)

TAIL: Final = 32  # tokens before the new ones that are compared with what the session holds, at every step
SCRUB: Final = 128  # and this many others, in turn, so that the whole text is compared again and again


@record
class Line:
    """What is known of a line beside its session's state."""

    held: int  # tokens of the row that the session knows
    before: int  # those before its last step's
    scrubbed: int  # up to where the row was compared with them
    num_drafted: int  # nodes in the line's block
    at: int  # where its text lies in the pool: tokens and links, and how many there is room for
    capacity: int
    at_1: int  # its tables
    slots_1: int
    at_n: int
    slots_n: int


class Batch(NamedTuple):
    """What an engine hands over for n rows, and what it gets back.

    Attributes:
        rows: int32 (>= n, width), the texts; only ``rows[i, :lengths[i]]`` is ever read.
        lengths: (n,).
        num_new: (n,), tokens of it that were sampled in this step; 0: the row is not decoding.
        numbers: (n,), the line of the session that a row is believed to go on from; -1: none.
        status: (n,), what each row needs: DONE ... CHECK.
        drafts, num_drafted: int32 (>= n, width of the blocks) and (>= n,), the drafts of the rows that are DONE.
    """

    rows: ReadInts2D
    lengths: Longs
    num_new: Longs
    numbers: Longs
    status: Longs
    drafts: Ints2D
    num_drafted: Longs


class Sessions(NamedTuple):
    """The sessions of all lines, and what they know in common.

    Attributes:
        texts: where the texts of all lines lie.
        blocks: int32 (lines, NUM_ROWS, width), the last draft of each line; always a chain.
        block: int32 (NUM_ROWS, 2 * width), to draft in.
    """

    texts: Text
    lines: list[Line]
    states: list[State]
    blocks: Ints3D
    block: Ints2D
    known: Known


@kernel
def text_of(pool: Text, line: Line) -> Text:
    """A line's own text. As arrays at addresses, taken now, rather than slices, since these would be counted."""
    at_1, at_n, size = 4 * line.at_1, 4 * line.at_n, (line.capacity,)
    return Text(
        carray(at(pool.tokens.ctypes.data + 4 * line.at), size, np.int32),
        carray(at(pool.links_1.ctypes.data + 4 * line.at), size, np.int32),
        carray(at(pool.links_n.ctypes.data + 4 * line.at), size, np.int32),
        carray(at(pool.heads_1.ctypes.data + at_1), (line.slots_1,), np.int32),
        carray(at(pool.heads_n.ctypes.data + at_n), (line.slots_n,), np.int32),
    )


@kernel
def same_tokens(rows: ReadInts2D, row: int, tokens: ReadInts, start: int, end: int) -> bool:
    """True if the row holds ``tokens[start:end]`` at the same places."""
    differ = np.int32(0)
    for i in range(np.uint64(start), np.uint64(end)):
        differ |= rows[row, i] ^ tokens[i]
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
def last_origin(block: ReadInts2D, num_drafted: int, tokens: ReadInts, start: int, length: int) -> int:
    """Where the last accepted node of a chain was copied from, -1 if none was: ``tokens[start:length]`` came."""
    agreed = 0
    while agreed < num_drafted and start + agreed < length and block[TOKEN, agreed] == tokens[start + agreed]:
        agreed += 1
    return int(block[ORIGIN, agreed - 1]) if agreed else -1


@kernel
def step_row(batch: Batch, row: int, room: int, sessions: Sessions, text: Text) -> int:
    """Append what is new in a row to its session, learn from it, and draft up to ``room`` tokens.

    As ``DraftSession.commit`` and ``propose``. Every token drafted from the text is read again in the row itself, at
    the place it is said to be copied from: LOST if it is not there, so nothing of another row's text is ever drafted.
    """
    number, length = batch.numbers[row], batch.lengths[row]
    line = sessions.lines[number]
    status = append(batch.rows, row, length, text, sessions.states[number])
    if status != DONE:
        return status
    if line.num_drafted >= 0:  # else the session has learned from these tokens already
        origin = last_origin(sessions.blocks[number], line.num_drafted, text.tokens, line.held, length)
        stepping.learn(text, sessions.states, number, line.held, origin, line.num_drafted, True, sessions.known)
    line.num_drafted, n = 0, 0
    if room > 0:
        block = sessions.block
        parts = Parts(block, sessions.known.work[0].ends[:])
        n = stepping.propose(text, sessions.states, number, sessions.known, room, room, parts)
        if n < 0:
            line.num_drafted = -1
            return CHECK
        n = merging.keep_likeliest(block, n, batch.drafts[row, :room])
        if not copied_here(batch.rows, row, length, text.tokens, block, n):
            return LOST  # and what is held stays: what came then belongs to another text
        for field in range(NUM_ROWS):
            for i in range(n):
                sessions.blocks[number, field, i] = block[field, i]
    line.held, line.num_drafted = length, n
    return DONE


@kernel
def goes_on(rows: ReadInts2D, row: int, tokens: ReadInts, line: Line) -> bool:
    """True if the row is the line's text, so far as is looked: the last TAIL tokens and SCRUB others in turn."""
    held = line.held
    scrubbed = line.scrubbed if line.scrubbed < held else 0
    end = min(scrubbed + SCRUB, held)
    if not same_tokens(rows, row, tokens, max(0, held - TAIL), held):
        return False
    if not same_tokens(rows, row, tokens, scrubbed, end):
        return False
    line.scrubbed = end
    return True


@kernel
def step_rows(batch: Batch, sessions: Sessions, max_length: int, is_first: bool) -> int:
    """One step of every row; return how many of them need something before they can take it.

    Args:
        max_length: no text may become longer, the token after the draft included.
        is_first: True: all rows, and only exactly the new tokens may have been appended since the last step. False:
            those whose status is neither DONE nor ODD, whatever was appended.
    """
    num_open, status = 0, batch.status
    for row in range(len(batch.lengths)):
        if not is_first and (status[row] == DONE or status[row] == ODD):
            continue
        number, length, new = batch.numbers[row], batch.lengths[row], batch.num_new[row]
        batch.num_drafted[row] = 0
        if new == 0:
            status[row] = DONE if number < 0 else ABSENT
        elif not new <= length <= batch.rows.shape[1]:
            status[row] = ODD
        elif number < 0:
            status[row] = NEW
        else:
            line, status[row] = sessions.lines[number], LOST
            text = text_of(sessions.texts, line)
            has_grown = line.held + new == length or (not is_first and line.held <= length)
            if has_grown and goes_on(batch.rows, row, text.tokens, line):
                room = min(sessions.blocks.shape[2], max_length - length - 1)
                status[row] = step_row(batch, row, room, sessions, text)
            if status[row] == DONE:
                line.before, batch.num_drafted[row] = length - new, line.num_drafted
        num_open += status[row] != DONE
    return num_open
