"""One kernel call for all rows of a serving engine: what a DraftSession does per step, without Python in between.

The texts of all lines lie in one ``Text`` (``TextPool``). Arrays are the pool's and the caller's: no address is kept.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from zerodraft.lookup import _merge as merging
from zerodraft.lookup._block import NUM_ROWS, ORIGIN, TOKEN
from zerodraft.lookup._merge import Parts
from zerodraft.lookup.copy import _text as texts
from zerodraft.lookup.copy._text import Text
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
    """

    texts: Text
    lines: list[Line]
    states: list[State]
    blocks: Ints3D
    known: Known


@kernel
def text_of(pool: Text, line: Line) -> Text:
    """A line's own text."""
    at, end = line.at, line.at + line.capacity
    return Text(
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
def append(batch: Batch, row: int, text: Text, state: State) -> int:
    """Bring a session's text to the row's length: DONE, GROW or ODD."""
    num_known, length = state.text.length, batch.lengths[row]
    for i in range(num_known, length):
        if batch.rows[row, i] < 0:
            return ODD
    new = batch.rows[row, num_known:length]
    return DONE if texts.extend(new, 0, text, state.text) == len(new) else GROW


@kernel
def learn_row(batch: Batch, row: int, sessions: Sessions, text: Text) -> None:
    """Tell a session what became of its last draft, which the text itself says."""
    number, length = batch.numbers[row], batch.lengths[row]
    line, block, origin, agreed = sessions.lines[number], sessions.blocks[number], np.int64(-1), 0
    while (
        agreed < min(line.num_drafted, length - line.held) and block[TOKEN, agreed] == text.tokens[line.held + agreed]
    ):
        origin = np.int64(block[ORIGIN, agreed])
        agreed += 1
    stepping.learn(text, sessions.states, number, line.held, origin, line.num_drafted, True, sessions.known)


@kernel
def step_row(batch: Batch, row: int, room: int, sessions: Sessions) -> int:
    """Append what is new in a row to its session, learn from it, and draft up to ``room`` tokens.

    As ``DraftSession.commit`` and ``propose``. Every token drafted from the text is read again in the row itself, at
    the place it is said to be copied from: LOST if it is not there, so nothing of another row's text is ever drafted.
    """
    number, length = batch.numbers[row], batch.lengths[row]
    line, text = sessions.lines[number], text_of(sessions.texts, sessions.lines[number])
    status = append(batch, row, text, sessions.states[number])
    if status != DONE:
        return status
    if line.num_drafted >= 0:  # else the session has learned from these tokens already
        learn_row(batch, row, sessions, text)
    line.num_drafted, n = 0, 0
    if room > 0:
        width = 2 * room if len(sessions.known.segments) else room
        block = np.empty((NUM_ROWS, width), np.int32)
        parts = Parts(block, np.empty(2, np.int64))
        n = stepping.propose(text, sessions.states, number, sessions.known, room, room, parts)
        if n < 0:
            line.num_drafted = -1
            return CHECK
        n = merging.keep_likeliest(block, n, batch.drafts[row, :room])
        if not copied_here(batch.rows, row, length, text.tokens, block, n):
            return LOST  # and what is held stays: what came then belongs to another text
        for field in range(NUM_ROWS):
            sessions.blocks[number, field, :n] = block[field, :n]
    line.held, line.num_drafted = length, n
    return DONE


@kernel
def goes_on(batch: Batch, row: int, is_first: bool, tokens: ReadInts, line: Line) -> bool:
    """True if the row is the line's text, so far as is looked: the last TAIL tokens and SCRUB others in turn."""
    held, length = line.held, batch.lengths[row]
    if held + batch.num_new[row] != length and (is_first or held > length):
        return False
    scrubbed = line.scrubbed if line.scrubbed < held else 0
    end = min(scrubbed + SCRUB, held)
    if not same_tokens(batch.rows, row, tokens, max(0, held - TAIL), held):
        return False
    if not same_tokens(batch.rows, row, tokens, scrubbed, end):
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
            if goes_on(batch, row, is_first, text_of(sessions.texts, line).tokens, line):
                room = min(sessions.blocks.shape[2], max_length - length - 1)
                status[row] = step_row(batch, row, room, sessions)
            if status[row] == DONE:
                line.before, batch.num_drafted[row] = length - new, line.num_drafted
        num_open += status[row] != DONE
    return num_open
