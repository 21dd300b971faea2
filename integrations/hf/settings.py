"""Settings: what ``attach`` and ``speculate`` were given, for every call that follows; checked at the door."""

from __future__ import annotations

import dataclasses
import threading
from typing import TYPE_CHECKING, Any

from transformers import PreTrainedModel

from zerodraft.integrations.hf.sessions import SessionMaker
from zerodraft.integrations.hf.shapes import COMPILE_OPTIONS
from zerodraft.lookup.checks import flag, instance_of, one_of, with_methods
from zerodraft.lookup.drafter import Drafter
from zerodraft.lookup.lookahead.beside import Beside
from zerodraft.lookup.policy import DraftPolicy
from zerodraft.lookup.runtime.at_fork import NEVER, held_at_fork

if TYPE_CHECKING:
    from zerodraft.lookup.cost import CostCurve
    from zerodraft.lookup.lookahead.lookahead import Lookahead

_TIE_GUARDS = ("off", "report")
_MIN_PARAMETERS_TO_MEASURE = 20_000_000  # below, a forward's time is Python's and says little about its width


class Settings:
    """What attach and speculate share: the drafter, whether near-ties are counted, how forwards are compiled."""

    def __init__(
        self,
        drafter: SessionMaker | None,
        policy: DraftPolicy | None,
        tie_guard: str,
        compile: str = "off",
        lookahead: Lookahead | None = None,
        trace: bool = False,
    ) -> None:
        one_of("tie_guard", tie_guard, _TIE_GUARDS)
        one_of("compile", compile, COMPILE_OPTIONS)
        flag("trace", trace)
        _check_drafter(drafter)
        instance_of("policy", policy, DraftPolicy)
        if drafter is not None and policy is not None:
            raise ValueError("give a drafter or a policy, not both: Drafter(policy=...) takes the policy")
        if drafter is None:
            drafter = Drafter() if policy is None else Drafter(policy=policy)
        if isinstance(drafter, Beside) and lookahead is None:
            lookahead, drafter = drafter.lookahead, drafter.drafter
        if lookahead is not None:
            Beside(drafter, lookahead)  # refuses what is none, before the model is touched
        self.drafter, self._lookahead = drafter, lookahead
        self.tie_guard, self.compile, self.trace = tie_guard, compile, trace
        self._lock = held_at_fork(threading.Lock(), NEVER)
        self._is_priced = False

    @property
    def maker(self) -> SessionMaker:
        """Where sessions come from: the drafter, with the lookahead beside it if there is one."""
        return self.drafter if self._lookahead is None else Beside(self.drafter, self._lookahead)

    @property
    def curve(self) -> CostCurve | None:
        """What the drafter takes forwards to cost, None for drafters without a policy."""
        return self.drafter.policy.curve if isinstance(self.drafter, Drafter) else None

    def price(self, model: PreTrainedModel) -> None:
        """Replace a policy's cost "auto" by this model's measured curve, once, where the model is worth measuring."""
        with self._lock:
            drafter = self.drafter
            if self._is_priced or not isinstance(drafter, Drafter) or drafter.policy.cost != "auto":
                return
            try:
                if model.num_parameters() >= _MIN_PARAMETERS_TO_MEASURE:
                    from zerodraft.integrations.hf.cost_measure import measured_curve

                    policy = dataclasses.replace(drafter.policy, cost=measured_curve(model))
                    policy.tables()  # milliseconds, which the first request need not wait for
                    self.drafter = drafter.with_policy(policy)
            finally:
                self._is_priced = True  # last: a fork on the way prices again


def _check_drafter(drafter: Any) -> None:
    place = _PLACES.get(type(drafter).__name__)
    hint = f"give it as {place}" if place else ""
    with_methods("drafter", drafter, "begin(prompt_ids, prediction_ids, namespace)", hint=hint)


_PLACES = {
    "DraftPolicy": "policy=...",
    "CostCurve": "policy=DraftPolicy(cost=...)",
    "DraftMemory": "Drafter(memory=...)",
}
