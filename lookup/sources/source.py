"""Source: whatever proposes tokens for one request; Step: what it is told afterwards."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from zerodraft.lookup.draft import Draft, IntArray, Outcome

if TYPE_CHECKING:
    from zerodraft.lookup._prices import Tables
    from zerodraft.lookup.sources.candidates import Candidates


class Step(NamedTuple):
    """One forward, as a source sees it when it is over.

    Attributes:
        text: int32 (n,), the session's text with the tokens that came; valid during the call.
        start: where these begin.
        draft, outcome: what was verified, and what became of it.
        is_own: False where the draft is not the one that the session proposed last.
        tables: what breaks, prices and forwards cost under the policy in force.
    """

    text: IntArray
    start: int
    draft: Draft
    outcome: Outcome
    is_own: bool
    tables: Tables

    @property
    def came(self) -> IntArray:
        """The tokens that came, int32."""
        return self.text[self.start :]

    @property
    def may_break(self) -> bool:
        """True if a token that came otherwise than proposed says something: the walk was not cut."""
        return self.outcome.stop in ("rejected", "full")


class Source:
    """Proposes tokens for one request. Built-in ones and those of one's own are alike; each may do any of the three.

    ``Drafter(sources=[make])`` calls ``make(prompt)`` for every request; a class that takes the prompt is such a
    ``make``. Not thread-safe. An error that a source raises is raised by ``propose`` or ``commit`` of its session.

    Here is one that drafts a fixed phrase behind a certain token, and stops when it was wrong twice:

    >>> from zerodraft import Drafter
    >>> class Refrain(Source):
    ...     phrase, cue = [7, 8, 9], 1
    ...     def __init__(self, prompt):
    ...         self.num_wrong = 0
    ...     def propose(self, candidates):
    ...         if self.num_wrong < 2 and candidates.text[-1] == self.cue:
    ...             candidates.add(self.phrase, probs=[0.8, 0.7, 0.6])
    ...     def learn(self, step):
    ...         if step.text[step.start - 1] == self.cue and step.came[0] != self.phrase[0]:
    ...             self.num_wrong += 1
    >>> session = Drafter(sources=[Refrain]).begin([4, 5, 1])
    >>> session.propose(8).token_ids.tolist()
    [7, 8, 9]

    Attributes:
        num_topk: how many of the target's likeliest tokens it wants in ``Outcome.topk`` at every position.
        reason: why it stands down at the moment, None if it does not.
    """

    num_topk: int = 0
    reason: str | None = None

    def propose(self, candidates: Candidates) -> None:
        """Add what this source proposes by itself."""

    def complete(self, candidates: Candidates) -> None:
        """Add nodes to the tree that all sources together have proposed (``candidates.tree``)."""

    def learn(self, step: Step) -> None:
        """Take in what came after the last proposal, drafted or not."""
