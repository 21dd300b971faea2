"""Trace: what happened step by step, for those who want to look at a run. Counters alone are in stats.py."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from zerodraft.lookup.cost import CostCurve
from zerodraft.lookup.draft import SOURCE_NAMES, Draft, Outcome

NUM_BINS: Final = 10
PLAIN: Final = "plain"  # the source of a token that the target wrote and nobody drafted


class Step(NamedTuple):
    """One row's part in one forward."""

    row: int
    num_drafted: int  # nodes in the forward beside the row's last token, window nodes included
    num_emitted: int
    sources: tuple[int, ...]  # one of draft.py's constants per accepted token; the rest of the emitted ones are plain
    seconds: float  # of the whole step, shared by the rows of a batch; 0.0 where nothing was timed
    is_prefill: bool


@dataclass
class Trace:
    """The steps of one call in order, and how probable the drafted nodes were said to be.

    A few dozen bytes per step and per accepted token. ``GenerationStats(trace=Trace())`` turns it on.

    Attributes:
        steps: every row's prefill and decode steps; the rows of a batch take turns.
        prob_sums: float64 (NUM_BINS, 3): over all drafted nodes whose probability fell into one of ten equal bins, how
            many there were, the sum of their probabilities, and how many were accepted.
        num_rows: rows seen so far.
        curve: what the drafter took the forwards to cost, None where it did not say.
    """

    steps: list[Step] = field(default_factory=list)
    prob_sums: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros((NUM_BINS, 3)))
    num_rows: int = 0
    curve: CostCurve | None = None

    def record(self, draft: Draft, outcome: Outcome, *, row: int, seconds: float, is_prefill: bool) -> None:
        """Add one step of one row. Cost: O(number of drafted nodes)."""
        sources = tuple(int(draft.source[node]) for node in outcome.path)
        self.num_rows = max(self.num_rows, row + 1)
        self.steps.append(Step(row, len(draft), len(outcome.new_ids), sources, seconds, is_prefill))
        if len(draft):
            tally_probs(draft, outcome, self.prob_sums)

    def sources(self, row: int = 0) -> list[str]:
        """Where each emitted token of a row came from: a name of ``SOURCE_NAMES``, or "plain"."""
        names: list[str] = []
        for step in self.steps:
            if step.row == row:
                names += [SOURCE_NAMES[source] for source in step.sources]
                names += [PLAIN] * (step.num_emitted - len(step.sources))
        return names

    def merge(self, other: Trace) -> None:
        """Append another call's steps; its rows get the numbers after these."""
        self.steps += [step._replace(row=self.num_rows + step.row) for step in other.steps]
        self.num_rows += other.num_rows
        self.prob_sums += other.prob_sums
        self.curve = self.curve or other.curve

    def as_dict(self) -> dict[str, Any]:
        """Columns of plain JSON-ready values; a step's sources are a string of digits, indices of ``source_names``."""
        steps = self.steps
        return {
            "source_names": list(SOURCE_NAMES),
            "row": [step.row for step in steps],
            "num_drafted": [step.num_drafted for step in steps],
            "num_emitted": [step.num_emitted for step in steps],
            "sources": ["".join(map(str, step.sources)) for step in steps],
            "seconds": [round(step.seconds, 6) for step in steps],
            "is_prefill": [int(step.is_prefill) for step in steps],
            "prob_sums": self.prob_sums.tolist(),
            "curve": None if self.curve is None else self.curve.as_dict(),
        }


def tally_probs(draft: Draft, outcome: Outcome, sums: npt.NDArray[np.float64]) -> None:
    """Add a draft's probabilities and what became of them to ``sums``, as in ``Trace.prob_sums``."""
    probs = draft.probs[draft.verify].astype(np.float64)
    bins = np.minimum((probs * NUM_BINS).astype(np.int64), NUM_BINS - 1)
    sums[:, 0] += np.bincount(bins, minlength=NUM_BINS)
    sums[:, 1] += np.bincount(bins, probs, NUM_BINS)
    if outcome.path:
        reached = draft.probs[list(outcome.path)].astype(np.float64)
        bins = np.minimum((reached * NUM_BINS).astype(np.int64), NUM_BINS - 1)
        sums[:, 2] += np.bincount(bins, minlength=NUM_BINS)
