"""new_states: the state of requests before their first step, under the policy and memory of a drafter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from zerodraft.lookup.copy._work import Work
from zerodraft.lookup.memory.view import NOTHING
from zerodraft.lookup.policy import priors
from zerodraft.lookup.runtime._jit import dtype_of
from zerodraft.lookup.session._state import NUM_KINDS, PACE_COST, PACE_TOKENS, State
from zerodraft.lookup.session._step import Known

if TYPE_CHECKING:
    from zerodraft.lookup.drafter import Drafter


def known_by(drafter: Drafter) -> Known:
    """What sessions of a drafter know before their first step."""
    return Known(drafter.policy.tables(), NOTHING.records, np.zeros(1, dtype_of(Work)))  # type: ignore[arg-type]


def new_states(count: int, drafter: Drafter) -> Any:
    """A record array (count,) of ``_state.State``. What was learned from one request never reaches another."""
    policy, memory, beliefs = drafter.policy, drafter.memory, priors()[1]
    assert len(beliefs) == NUM_KINDS, "priors.json and _state.NUM_KINDS differ"
    states: Any = np.zeros(count, dtype_of(State))
    states["min_match"], states["max_match"] = policy.prompt_lookup_min, policy.prompt_lookup_max
    states["max_copies"] = policy.max_branches
    states["best"]["length"] = states["going"]["length"] = states["stored"]["pointer"] = -1
    states["beliefs"] = beliefs
    states["pace_tokens"], states["pace_cost"] = PACE_TOKENS, PACE_COST
    if memory is not None:
        states["stored"]["min_match"] = max(policy.prompt_lookup_min, memory.min_match_len)
        states["stored"]["min_prob"] = memory.min_prob
    return states
