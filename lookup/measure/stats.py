"""What one call of ``generate`` did and cost: counts first, everything else derived from them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

from zerodraft.lookup.checks import instance_of, int_in, number_in, shown
from zerodraft.lookup.draft import SOURCE_NAMES, Draft, Outcome
from zerodraft.lookup.measure.trace import Trace

# Why a row ended: an end token; a stop string; a criterion of the caller's or max_time; max_new_tokens or max_length;
# the model's context. Where several are met on one token the first of them is named.
FINISH_REASONS: Final = ("eos", "stop", "criterion", "length", "context")
_PAYING: Final = 1.1  # tokens per step of a row from which on drafting has clearly paid


@dataclass
class GenerationStats:
    """Counters of one generate call (or of one row of it; rows add up with ``merge``).

    ``num_emitted_tokens == num_accepted_tokens + num_row_steps + num_rows - num_stopped_on_accepted`` always holds: one
    bonus token per decode step of a row and one token from its prefill, less the walks that ended on a drafted token.
    At batch 1 ``num_row_steps`` equals ``num_decode_forwards``. ``trace``, where given, gets every single step too.
    ``stand_down_reason`` says why hardly anything was drafted; it is None where drafting paid.
    """

    num_rows: int = 0
    num_emitted_tokens: int = 0
    num_prefill_forwards: int = 0
    num_decode_forwards: int = 0  # forwards after the prefill, shared by the rows of a batch
    num_row_steps: int = 0  # row × decode forward, rows that were still running
    num_positions: int = 0  # positions computed in decode forwards, padding of narrower rows included
    num_replayed_positions: int = 0  # of these, ones read again after a rejected draft
    num_drafts: int = 0  # row steps with at least one verifiable drafted token
    num_empty_drafts: int = 0  # row steps without
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_stopped_on_accepted: int = 0  # walks that ended on a drafted token: no bonus
    num_cuts: int = 0  # walks cut by EOS, a stopping criterion or the length limit
    num_near_ties: int = 0  # places the tie guard saw where a forward's width could turn the choice
    num_window_nodes: int = 0  # drafted nodes that are computed, never walked (Lookahead)
    num_foreign_tokens: int = 0  # ids in prompts and predictions that the target does not have: left out there
    num_pruned_tokens: int = 0  # nodes left out of drafts: ids it does not have or may not say, and those below
    drafted_by_depth: Counter[int] = field(default_factory=Counter)  # depth 1 = right after the root
    accepted_by_depth: Counter[int] = field(default_factory=Counter)
    drafted_by_source: Counter[str] = field(default_factory=Counter)
    accepted_by_source: Counter[str] = field(default_factory=Counter)
    finish_reasons: list[str] = field(default_factory=list)  # why each row ended, in row order; see FINISH_REASONS
    stand_down_reason: str | None = None
    prefill_seconds: float = 0.0
    forward_seconds: float = 0.0  # decode forwards
    draft_seconds: float = 0.0  # begin, propose and commit
    verify_seconds: float = 0.0  # processors, picking, criteria and streaming, once per emitted token
    total_seconds: float = 0.0
    trace: Trace | None = None

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if name.startswith("num_"):
                int_in(name, value, 0, None)
            elif name.endswith("_seconds"):
                number_in(name, value, 0.0)
        for name, kind in (("trace", Trace), ("stand_down_reason", str)):
            instance_of(name, getattr(self, name), kind)
        if not all(isinstance(counts, Counter) for name, counts in vars(self).items() if "ed_by_" in name):
            raise ValueError("drafted_by_... and accepted_by_... must be Counters")
        if not isinstance(self.finish_reasons, list) or not set(self.finish_reasons) <= set(FINISH_REASONS):
            raise ValueError(f"finish_reasons must be a list of {FINISH_REASONS}, got {shown(self.finish_reasons)}")

    def record(
        self, draft: Draft, outcome: Outcome, *, is_prefill: bool = False, row: int = 0, seconds: float = 0.0
    ) -> None:
        """Count one step of one row. Cost: O(number of drafted nodes). ``row`` and ``seconds`` are for the trace."""
        if self.trace is not None:
            self.trace.record(draft, outcome, row=row, seconds=seconds, is_prefill=is_prefill)
        self.num_emitted_tokens += len(outcome.new_ids)
        self.num_cuts += outcome.stop in ("eos", "stop", "length")
        if is_prefill:
            self.num_rows += 1
            return
        self.num_row_steps += 1
        self.num_accepted_tokens += outcome.num_accepted
        self.num_stopped_on_accepted += outcome.stopped_on_accepted
        num_verifiable = self._record_nodes(draft, outcome) if len(draft) else 0
        self.num_draft_tokens += num_verifiable
        self.num_drafts += num_verifiable > 0
        self.num_empty_drafts += num_verifiable == 0

    def _record_nodes(self, draft: Draft, outcome: Outcome) -> int:
        depth = [0] * len(draft)
        sources, verify = draft.source.tolist(), draft.verify.tolist()
        for node, parent in enumerate(draft.parents.tolist()):
            depth[node] = 1 if parent < 0 else depth[parent] + 1
            if verify[node]:
                self.drafted_by_depth[depth[node]] += 1
                self.drafted_by_source[SOURCE_NAMES[sources[node]]] += 1
        for node in outcome.path:
            self.accepted_by_depth[depth[node]] += 1
            self.accepted_by_source[SOURCE_NAMES[sources[node]]] += 1
        num_verifiable = int(draft.verify.sum())
        self.num_window_nodes += len(draft) - num_verifiable
        return num_verifiable

    @property
    def tokens_per_forward(self) -> float:
        """Tokens emitted after each row's first one, per decode forward; 0.0 before the first forward."""
        return _ratio(self.num_emitted_tokens - self.num_rows, self.num_decode_forwards)

    @property
    def has_paid(self) -> bool:
        """True if drafting clearly saved forwards: 1.1 tokens or more per step of a row."""
        return has_paid(self.num_emitted_tokens - self.num_rows, self.num_row_steps)

    @property
    def mean_acceptance_length(self) -> float:
        """1 + accepted tokens per draft, the bonus counted (vLLM's figure; Eq. 1 of Leviathan et al., 2211.17192)."""
        return 1.0 + _ratio(self.num_accepted_tokens, self.num_drafts)

    @property
    def draft_acceptance_rate(self) -> float:
        """Accepted per drafted token; not the paper's alpha, which is ``accepted_by_depth / drafted_by_depth``."""
        return _ratio(self.num_accepted_tokens, self.num_draft_tokens)

    @property
    def draft_cost_ratio(self) -> float:
        """The paper's c: seconds of drafting per second of target forwards."""
        return _ratio(self.draft_seconds, self.forward_seconds)

    def merge(self, other: GenerationStats) -> None:
        """Add another call's (or row's) counters to these; its rows' reasons follow these."""
        if not isinstance(other, GenerationStats):
            raise ValueError(f"other must be GenerationStats, got {shown(other)}")
        reason = self.stand_down_reason or other.stand_down_reason
        for name, value in vars(other).items():
            if name == "stand_down_reason":
                continue
            if isinstance(value, Counter):
                getattr(self, name).update(value)
            elif name == "trace":
                if self.trace is not None and value is not None:
                    self.trace.merge(value)
            else:
                setattr(self, name, getattr(self, name) + value)
        self.stand_down_reason = None if self.has_paid else reason

    def as_dict(self) -> dict[str, Any]:
        """Counters and derived ratios as plain JSON-ready values; the trace has an ``as_dict`` of its own."""
        plain = {name: dict(value) if isinstance(value, Counter) else value for name, value in vars(self).items()}
        plain["finish_reasons"] = list(self.finish_reasons)
        del plain["trace"]
        derived = ("tokens_per_forward", "mean_acceptance_length", "draft_acceptance_rate", "draft_cost_ratio")
        return plain | {name: getattr(self, name) for name in derived}


def has_paid(num_tokens: float, num_steps: float) -> bool:
    """True if so many tokens in so many steps are clearly more than plain decoding's one each."""
    return num_steps > 0 and num_tokens >= _PAYING * num_steps


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
