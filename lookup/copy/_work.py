"""Work: what the kernels of one proposal compute on, as a record that is made once and used again.

Arrays of a record cost a kernel nothing to hold, while every array that it makes, or takes out of a tuple, is counted.
"""

from __future__ import annotations

from typing import Annotated, Final

from zerodraft.lookup.runtime._jit import Floats, Floats2D, Longs, Longs2D, record
from zerodraft.lookup.session._state import NUM_KINDS

MAX_COPIES: Final = 16  # most branches of a draft
LIMIT: Final = 32  # of the newest occurrences in each hash chain are considered, beside those near the pointer
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


@record
class Work:
    """Scratch of one proposal; nothing in it outlives the call."""

    at: Annotated[Longs, int, (MAX_COPIES,)]  # places to copy from, best first, one per next token
    lens: Annotated[Longs, int, (MAX_COPIES,)]  # how many tokens before them match
    evidence: Annotated[Longs, int, (MAX_COPIES,)]  # _search.SINGLE ... OUTVOTED
    seen_at: Annotated[Longs2D, int, (2, LIMIT)]  # occurrences of the last token, and of the last four
    seen_lens: Annotated[Longs2D, int, (2, LIMIT)]
    branches: Annotated[list[Branch], Branch, (MAX_COPIES,)]
    # Probability and worth of each branch's next node, then its probability in text of each of the likely kinds.
    stakes: Annotated[Floats2D, float, (MAX_COPIES, BY_KIND + NUM_KINDS)]
    kinds: Annotated[Longs, int, (NUM_KINDS,)]  # of text that are believed in
    shares: Annotated[Floats, float, (NUM_KINDS,)]  # of the belief that each of them holds
    ends: Annotated[Longs, int, (2,)]  # of the parts that text and memory write
