"""Chained: drafts for a target that checks one chain per step, and reads what it kept of a rejected one again."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from zerodraft.lookup._merge import MIN_RATE
from zerodraft.lookup.draft import Draft
from zerodraft.lookup.drafter import Drafter


class Chained:
    """A drafter whose sessions draft the likeliest chain, as long as it pays with what its rejection would cost.

    What a rejection costs is reckoned for a ``Drafter`` with the adaptive rule, whose policy has a cost curve and whose
    nodes have probabilities; of any other drafter the likeliest chain is taken as it is.
    """

    def __init__(self, drafter: Any, num_pending: Callable[[], int]) -> None:
        """``num_pending``: how many positions the next forward reads again; -1: this target reads nothing again."""
        self._drafter, self._num_pending = drafter, num_pending
        self._costs: npt.NDArray[np.float64] | None = None
        if not isinstance(drafter, Drafter):
            return
        policy = drafter.policy
        if policy.max_branches > 1:  # a second branch would only be cut off again
            self._drafter = drafter.with_policy(dataclasses.replace(policy, max_branches=1))
        self._costs = policy.tables().costs

    def begin(self, prompt_ids: Any, prediction_ids: Any = None, namespace: Any = None) -> ChainedSession:
        """Start drafting what follows a prompt; see ``Drafter.begin``."""
        return ChainedSession(self._drafter.begin(prompt_ids, prediction_ids, namespace), self)

    def worth_drafting(self, draft: Draft) -> int:
        """Of a chain, how many nodes to check: all of them where nothing is known about cost or nothing read again."""
        pending = self._num_pending()
        if self._costs is None or pending < 0:
            return len(draft)
        return affordable(draft.probs, self._costs, pending)


class ChainedSession:
    """One request of a ``Chained`` drafter; all but ``propose`` is the inner session's."""

    def __init__(self, session: Any, chained: Chained) -> None:
        self._session, self._chained = session, chained

    def propose(self, max_tokens: int, max_depth: int | None = None) -> Draft:
        """The likeliest chain of what the session would draft, its end left out where it does not pay."""
        draft: Draft = self._session.propose(max_tokens, max_depth)
        if not len(draft):
            return draft
        if not draft.is_chain or not draft.verify.all():
            draft = draft.only(likeliest_path(draft, draft.verify))
        count = self._chained.worth_drafting(draft)
        return draft if count == len(draft) else draft.only(np.arange(len(draft)) < count)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)


def affordable(probs: npt.NDArray[np.floating], costs: npt.NDArray[np.float64], pending: int) -> int:
    """How many nodes of a chain bring the most expected tokens per expected cost, what is read again counted in.

    A forward over n nodes costs what they add to the positions that are pending anyway. Where node d is the first that
    is wrong, the d positions before it and all that were pending are read again in the next forward; where none is,
    nothing is.

    Args:
        probs: (n,) probability that each node is reached and right.
        costs: (rows,) cost of a forward over so many positions, ``costs[1] == 1``.
        pending: positions that this forward reads again.

    Returns:
        0 to n; 0 where nothing brings more than ``MIN_RATE``.
    """
    n = len(probs)
    reached = np.minimum.accumulate(np.concatenate([[1.0], probs]))
    last = len(costs) - 1
    depth = np.arange(1, n + 1)
    wider = costs[np.minimum(1 + pending + depth, last)] - costs[min(1 + pending, last)]
    again = costs[np.minimum(1 + pending + depth, last)] - costs[1]
    lost = np.cumsum((reached[:-1] - reached[1:]) * again)
    rate = (1.0 + np.cumsum(probs)) / (1.0 + wider + lost)
    best = int(rate.argmax())
    return best + 1 if rate[best] > MIN_RATE else 0


def likeliest_path(draft: Draft, fits: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Of the nodes that fit, those of the path on which most are expected to be accepted, bool (n,)."""
    expected = np.full(len(draft), -1.0)
    parents, probs = draft.parents.tolist(), draft.probs.tolist()
    for node, parent in enumerate(parents):
        before = 0.0 if parent < 0 else expected[parent]
        if fits[node] and before >= 0.0:
            expected[node] = before + probs[node]
    chosen = np.zeros(len(draft), np.bool_)
    node = int(expected.argmax())
    while node >= 0 and expected[node] >= 0.0:
        chosen[node], node = True, parents[node]
    return chosen
