"""RecycledSource: the target's own successors as a source of one session."""

from __future__ import annotations

from zerodraft.lookup._merge import SURE
from zerodraft.lookup.draft import IntArray
from zerodraft.lookup.recycle.token_recycler import NUM_TOPK, TokenRecycler
from zerodraft.lookup.sources.candidates import Candidates
from zerodraft.lookup.sources.source import Source, Step


class RecycledSource(Source):
    """Fills up what others propose with recycled successors, unless that is sure by itself. Reads the prompt first."""

    num_topk = NUM_TOPK

    def __init__(self, recycler: TokenRecycler, prompt: IntArray) -> None:
        self._recycler = recycler
        recycler.read(prompt)

    def complete(self, candidates: Candidates) -> None:
        if candidates.first_prob < SURE:
            c = candidates
            context = _last_two(c.text)
            bounds = c.max_nodes, c.max_depth
            c.grown(self._recycler.grow(context, c.tree, c.num_nodes, *bounds, c.price, c.tables.slopes))

    def learn(self, step: Step) -> None:
        self._recycler.update(_last_two(step.text[: step.start]), step.draft, step.outcome)


def _last_two(text: IntArray) -> tuple[int, int]:
    n = len(text)
    return (text.item(n - 2) if n > 1 else -1), (text.item(n - 1) if n else -1)
