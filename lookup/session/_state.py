"""The state of one request as a record: what its kernels know of it. One session has one, a batch an array of them.

All zero is a new session, but for what ``new_states`` fills in.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

import numpy as np
from numba import from_dtype, types

from zerodraft.lookup.copy._replaced import REPLACED
from zerodraft.lookup.copy._text import META

NUM_KINDS: Final = 6  # of text, told apart by how often copies break: those of priors.json
NUM_BELIEFS: Final = 3  # copies from the context, from the prediction and from a memory: _block.CONTEXT ... MEMORY
# What is believed of a request before its first step, as the weight of so many tokens and the cost of their forwards.
PACE_TOKENS: Final = 8.0
PACE_COST: Final = 4.0

# The likeliest copy at the last proposal, drafted or not. It is compared with what comes.
BEST: Final = np.dtype(
    (
        np.record,
        [
            ("length", "i8"),  # of the text at that proposal
            ("position", "i8"),  # -1: there was none
            ("match", "i8"),
            ("source", "i8"),  # _block.CONTEXT or PREDICTION
            ("evidence", "i8"),  # _copies.SINGLE ... OUTVOTED
        ],
    )
)
# Where that copy goes on, if all that came was expected of it.
GOING: Final = np.dtype(
    (
        np.record,
        [
            ("length", "i8"),  # of the text for which this holds
            ("at", "i8"),  # in the text
            ("match", "i8"),  # for how many tokens it was right
            ("left", "i8"),  # tokens of a replacement that are still to come
            ("back", "i8"),  # where in the source it goes on after those
        ],
    )
)
# What a memory proposed last, and where its last copy that came true ended.
STORED: Final = np.dtype(
    (
        np.record,
        [
            ("min_match", "i8"),  # shortest match that is drafted from
            ("min_prob", "f8"),  # of a node
            ("serial", "i8"),  # of the segment; 0: nothing was proposed
            ("position", "i8"),
            ("match", "i8"),
            ("count", "i8"),
            ("pointer_serial", "i8"),
            ("pointer", "i8"),
            ("fault_serial", "i8"),  # a segment of which a block is to be checked before it is read on
            ("fault_block", "i8"),
        ],
    )
)
STATE: Final = np.dtype(
    (
        np.record,
        [
            ("text", META),
            ("num_predicted", "i8"),  # positions of the prediction, which stands first
            ("prompt_start", "i8"),
            ("pointer", "i8"),  # where the last accepted copy ended
            ("min_match", "i8"),
            ("max_match", "i8"),
            ("max_copies", "i8"),  # drafted side by side
            ("best", BEST),
            ("going", GOING),
            ("replaced", REPLACED),
            ("stored", STORED),
            ("beliefs", "f8", (NUM_BELIEFS, NUM_KINDS)),  # log-probability, up to a constant, of each kind of text
            ("expected_tokens", "f8"),  # of what was drafted or, where nothing was, of the best that did not pay
            ("expected_cost", "f8"),
            ("pace_tokens", "f8"),  # emitted of late, and the cost of their forwards
            ("pace_cost", "f8"),
            ("num_steps", "i8"),
            ("num_unmatched", "i8"),  # steps where nothing matched
            ("num_stood_down", "i8"),  # steps where something matched and nothing paid
            ("tokens_stood_down", "f8"),  # expected there
            ("cost_stood_down", "f8"),
            ("num_emitted", "i8"),
        ],
    )
)
State = Annotated[Any, from_dtype(STATE)]
States = Annotated[Any, types.Array(from_dtype(STATE), 1, "C")]
