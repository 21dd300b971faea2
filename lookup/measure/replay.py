"""Replay a known output against a session: what drafting would have done, with no model at hand."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from zerodraft.lookup.cost import CostCurve
from zerodraft.lookup.draft import Draft, Outcome, as_token_ids
from zerodraft.lookup.measure.stats import GenerationStats
from zerodraft.lookup.measure.trace import NUM_BINS, Trace, tally_probs


class Session(Protocol):
    """What is replayed: a DraftSession, or anything with the same two calls."""

    def propose(self, max_tokens: int, max_depth: int | None = None) -> Draft: ...

    def commit(self, draft: Draft, outcome: Outcome) -> None: ...


@dataclass
class Replay:
    """What one output, or several (``merge``), would have cost.

    Attributes:
        stats: the counters of a real run; its seconds are 0.
        forwards: number of decode forwards by the number of positions they computed.
        prob_sums: float64 (NUM_BINS, 3): over all drafted nodes whose probability fell into one of ten equal bins, how
            many there were, the sum of their probabilities, and how many were accepted.
    """

    stats: GenerationStats = field(default_factory=GenerationStats)
    forwards: Counter[int] = field(default_factory=Counter)
    prob_sums: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros((NUM_BINS, 3)))

    @property
    def num_decode_tokens(self) -> int:
        """Tokens emitted by decode forwards: all but each output's first, which the prefill emits."""
        return self.stats.num_emitted_tokens - self.stats.num_rows

    def cost(self, curve: CostCurve) -> float:
        """Cost of all decode forwards, in forwards over one position."""
        if not self.forwards:
            return 0.0
        table = curve.table(max(self.forwards))
        return float(sum(count * table[positions] for positions, count in self.forwards.items()))

    def speedup(self, curve: CostCurve) -> float:
        """Speed against plain decoding, prefill excluded: tokens per cost; 1.0 if nothing was decoded."""
        return self.num_decode_tokens / self.cost(curve) if self.forwards else 1.0

    @property
    def calibration_error(self) -> float:
        """Expected calibration error of the nodes' probabilities: mean gap of promise and outcome over ten bins."""
        num_nodes = self.prob_sums[:, 0].sum()
        return float(np.abs(self.prob_sums[:, 1] - self.prob_sums[:, 2]).sum() / num_nodes) if num_nodes else 0.0

    def merge(self, other: Replay) -> None:
        """Add another replay's counts to these."""
        self.stats.merge(other.stats)
        self.forwards.update(other.forwards)
        self.prob_sums += other.prob_sums


def replay(session: Session, output_ids: object, *, max_tokens: int = 4096, trace: bool = False) -> Replay:
    """Walk ``output_ids`` as a target would that writes exactly this, and count.

    Args:
        session: a fresh session that has been given the prompt.
        output_ids: (n,) the tokens that were written after it.
        max_tokens: most nodes asked for in one step.
        trace: keep every step in ``stats.trace``.

    Raises:
        ValueError: output ids that are not integers in [0, 2**31 - 1].
    """
    output = as_token_ids(output_ids, "output_ids")
    done = Replay(GenerationStats(trace=Trace() if trace else None))
    if not len(output):
        return done
    tokens: list[int] = output.tolist()
    prefill = Outcome(path=(), new_ids=(tokens[0],), stop="full")
    session.commit(Draft.empty(), prefill)
    done.stats.record(Draft.empty(), prefill, is_prefill=True)
    at = 1
    while at < len(tokens):
        draft = session.propose(max_tokens, len(tokens) - at - 1)
        outcome = walk_known(draft, tokens, at)
        session.commit(draft, outcome)
        at += len(outcome.new_ids)
        done.stats.record(draft, outcome)
        done.stats.num_decode_forwards += 1
        done.stats.num_positions += 1 + len(draft)
        done.forwards[1 + len(draft)] += 1
        if len(draft):
            tally_probs(draft, outcome, done.prob_sums)
    return done


def walk_known(draft: Draft, tokens: list[int], at: int) -> Outcome:
    """The outcome of a draft where the target is sure to write ``tokens[at:]``: accepted as far as it is right.

    Walks down the tree; of several children with the right token, which a verifiable draft has not, the first.
    """
    path: list[int] = []
    node, parents, ids = -1, draft.parents.tolist(), draft.token_ids.tolist()
    for child, (parent, token) in enumerate(zip(parents, ids)):
        # Parents come before their children, so one pass in index order finds the whole path.
        if parent == node and at + len(path) < len(tokens) and token == tokens[at + len(path)]:
            path.append(child)
            node = child
    end = min(at + len(path) + 1, len(tokens))
    is_full = node not in parents[node + 1 :] if len(draft) else True
    return Outcome(path=tuple(path), new_ids=tuple(tokens[at:end]), stop="full" if is_full else "rejected")
