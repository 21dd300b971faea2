"""PhraseSource: what one session drafts from a phrase book."""

from __future__ import annotations

from typing import Final

from zerodraft.lookup.draft import IntArray
from zerodraft.lookup.memory import _stored as core
from zerodraft.lookup.policy import priors
from zerodraft.lookup.runtime._jit import direct
from zerodraft.lookup.sources.candidates import Candidates
from zerodraft.lookup.sources.phrases import PhraseBook, chain_of
from zerodraft.lookup.sources.source import Source, Step

MIN_PROB: Final = 0.05  # a node less likely than this is not proposed
_rate_chain, _doubt_chain = direct(core.rate_chain), direct(core.doubt_chain)


class PhraseSource(Source):
    """The rest of the phrases that the text is in the middle of. Believed as a copy with a match of that length is."""

    def __init__(self, book: PhraseBook, prompt: IntArray, min_match: int) -> None:
        self._cursor = book.begin(prompt)
        self._min_match = min_match
        self._beliefs = priors()[1].copy()
        self._first: tuple[IntArray, int] | None = None  # the likeliest rest as last proposed, and its match length

    def propose(self, candidates: Candidates) -> None:
        self._first = None
        match, rests = self._cursor.match()
        if match < self._min_match:
            return
        for rest in rests:
            tokens = rest[: min(candidates.max_nodes, candidates.max_depth)]
            if self._first is None:
                self._first = tokens, match
            part = chain_of(tokens, match)
            n = _rate_chain(part, 0, len(tokens), self._beliefs, candidates.tables, MIN_PROB)
            candidates.add_part(part[:, :n])

    def learn(self, step: Step) -> None:
        if self._first is not None:
            _doubt_chain(*self._first, step.came, step.may_break, self._beliefs, step.tables)
        self._first = None
        self._cursor.feed(step.came)
