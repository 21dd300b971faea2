"""The state of one request as a record: what its kernels know of it. One session has one, a batch an array of them.

All zero is a new session, but for what ``new_states`` fills in.
"""

from __future__ import annotations

from typing import Annotated, Final

from zerodraft.lookup.copy._replaced import Replaced
from zerodraft.lookup.copy._text import Meta
from zerodraft.lookup.runtime._jit import Floats, record

NUM_KINDS: Final = 6  # of text, told apart by how often copies break: those of priors.json
NUM_BELIEFS: Final = 3  # copies from the context, from the prediction and from a memory: _block.CONTEXT ... MEMORY
# What is believed of a request before its first step, as the weight of so many tokens and the cost of their forwards.
PACE_TOKENS: Final = 8.0
PACE_COST: Final = 4.0


@record
class Best:
    """The likeliest copy at the last proposal, drafted or not. It is compared with what comes."""

    length: int  # of the text at that proposal
    position: int  # -1: there was none
    match: int
    source: int  # _block.CONTEXT or PREDICTION
    evidence: int  # _copies.SINGLE ... OUTVOTED


@record
class Going:
    """Where that copy goes on, if all that came was expected of it."""

    length: int  # of the text for which this holds
    at: int  # in the text
    match: int  # for how many tokens it was right
    left: int  # tokens of a replacement that are still to come
    back: int  # where in the source it goes on after those


@record
class Stored:
    """What a memory proposed last, and where its last copy that came true ended."""

    min_match: int  # shortest match that is drafted from
    min_prob: float  # of a node
    serial: int  # of the segment; 0: nothing was proposed
    position: int
    match: int
    count: int
    pointer_serial: int
    pointer: int
    fault_serial: int  # a segment of which a block is to be checked before it is read on
    fault_block: int


@record
class State:
    """What the kernels know of a request. All zero is a new one, but for what ``new_states`` fills in."""

    text: Meta
    num_predicted: int  # positions of the prediction, which stands first
    prompt_start: int
    pointer: int  # where the last accepted copy ended
    min_match: int
    max_match: int
    max_copies: int  # drafted side by side
    best: Best
    going: Going
    replaced: Replaced
    stored: Stored
    beliefs: Annotated[
        Floats, float, (NUM_BELIEFS, NUM_KINDS)
    ]  # log-probability, up to a constant, of each kind of text
    expected_tokens: float  # of what was drafted or, where nothing was, of the best that did not pay
    expected_cost: float
    pace_tokens: float  # emitted of late, and the cost of their forwards
    pace_cost: float
    own_cost: float  # that sources had of their own for the draft under way, in forwards
    num_steps: int
    num_unmatched: int  # steps where nothing matched
    num_stood_down: int  # steps where something matched and nothing paid
    tokens_stood_down: float  # expected there
    cost_stood_down: float
    num_emitted: int
