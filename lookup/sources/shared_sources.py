"""SharedSources: what one session drafts from memory and phrases, merged with what it drafts from its own text."""

from __future__ import annotations

import logging
from typing import Final

import numpy as np
import numpy.typing as npt

from zerodraft.lookup import _merge_core as core
from zerodraft.lookup.copy import _policy_core as rule
from zerodraft.lookup.draft import BLOCK_ROWS, IntArray
from zerodraft.lookup.memory.draft_memory import DraftMemory, StoredMatch
from zerodraft.lookup.memory.segment_file import MemoryFileError
from zerodraft.lookup.policy import DraftPolicy, Tables, priors
from zerodraft.lookup.sources.phrases import PhraseBook, fill_chain

MIN_PHRASE_PROB: Final = 0.05
SURE: Final = 0.98  # where the session's own draft is that sure of its first token nobody else is asked
_SURE_BITS: Final = int(np.float32(SURE).view(np.int32))
_OF_MEMORY, _OF_PHRASES = range(2)
_log = logging.getLogger(__name__)


class SharedSources:
    """One session's view of the drafter's memory and phrase book. Not thread-safe; the memory itself is.

    What either proposes is believed as the policy believes a copy with the same match length, and the belief in each of
    the two follows what came, within the session. Their nodes join the session's own draft: the same token in the same
    place is one node; where they differ, the more confident source comes first and the other shares what is left over.
    Neither is asked where the session is nearly sure of its own first token: that costs more than it brings.
    Then the whole is cut to the nodes that pay under the cost curve, and to the budget.
    """

    __slots__ = ("_chains", "_cursor", "_memory", "_namespace", "_origin", "_pointer", "_weights")

    def __init__(
        self, memory: DraftMemory | None, phrases: PhraseBook | None, namespace: str | None, context: IntArray
    ) -> None:
        self._memory = memory
        self._namespace = namespace
        self._cursor = None if phrases is None else phrases.begin(context)
        self._weights = [priors()[1][0].copy() for _ in range(2)]  # memory, phrases
        self._pointer: StoredMatch | None = None  # where the last copy from the memory that came true ended
        self._origin: StoredMatch | None = None  # where the memory's last proposal was copied from
        self._chains: list[tuple[IntArray, int, int]] = []  # tokens, match length, whose: as last proposed

    def merge(
        self,
        own: IntArray,
        num_own: int,
        context: IntArray,
        room: int,
        max_depth: int,
        tables: Tables,
        policy: DraftPolicy,
    ) -> tuple[IntArray, int]:
        """Merge the session's own draft with what the shared sources propose.

        Args:
            own: int32 (len(BLOCK_ROWS), >= num_own), the session's own draft.
            context: int32 (n,), the end of the text, MAX_MATCH tokens at most, without barriers.
            room: upper bound on the nodes of the result.
            max_depth: upper bound on their depth.
            tables: the policy's, for this context.
            policy: its ``prompt_lookup_min`` binds each source; with a ``length_factor`` it bounds the length of each,
                and nothing has to pay.

        Returns:
            (block, number of nodes).
        """
        self._chains = []
        if num_own and own.item(core.ROW_PROB, 0) >= _SURE_BITS:
            return own, num_own
        drafts = self._drafts(context, min(room, max_depth), tables, policy)
        if not drafts:
            return own, num_own
        if num_own:
            drafts.append((own, num_own))
        block, ends = _joined(drafts)
        total = int(ends[-1])
        out = np.empty((len(BLOCK_ROWS), min(room, total)), np.int32)
        pays = policy.length_factor is None
        costs = tables.costs if pays else np.zeros(out.shape[1] + 2)
        n = core.choose(
            block,
            ends,
            min(out.shape[1], len(costs) - 2),
            self._weights[0],
            tables.prices,
            costs,
            rule.MIN_PROB,
            rule.WORTH_FACTOR,
            rule.MIN_GAIN if pays else 0.0,
            out,
        )
        return out, n

    def learn(self, came: IntArray, may_break: bool, tables: Tables) -> None:
        """Compare what was proposed last with the tokens that came, and go on in the phrases."""
        for chain, match, source in self._chains:
            weights = self._weights[source]
            agreed = core.learn_chain(chain, match, came, may_break, tables.breaks, weights, rule.MAX_DOUBT)
            if agreed and source == _OF_MEMORY and self._origin is not None:
                self._pointer = self._origin._replace(position=self._origin.position + agreed)
        self._chains = []
        if self._cursor is not None:
            self._cursor.feed(came)

    def _drafts(self, context: IntArray, room: int, tables: Tables, policy: DraftPolicy) -> list[tuple[IntArray, int]]:
        drafts: list[tuple[IntArray, int]] = []
        if self._memory is not None:
            block, n = self._remembered(context, room, policy.prompt_lookup_min)
            if n:
                match = int(block[core.ROW_MATCH, 0])
                n = min(n, _longest(policy, match, room))
                self._chains.append((block[core.ROW_TOKEN, :n], match, _OF_MEMORY))
                n = core.rate_chain(block, n, self._weights[_OF_MEMORY], tables.breaks, self._memory.min_prob)
                drafts += [(block, n)] if n else []
        if self._cursor is not None:
            match, rests = self._cursor.match()
            rests = rests if match >= policy.prompt_lookup_min else []
            longest = _longest(policy, match, room)
            for number, rest in enumerate(rests):
                block = np.empty((len(BLOCK_ROWS), min(longest, len(rest))), np.int32)
                fill_chain(block, rest[:longest], match)
                if number == 0:
                    self._chains.append((block[core.ROW_TOKEN], match, _OF_PHRASES))
                n = core.rate_chain(block, block.shape[1], self._weights[_OF_PHRASES], tables.breaks, MIN_PHRASE_PROB)
                drafts += [(block, n)] if n else []
        return drafts

    def _remembered(self, context: IntArray, room: int, min_match: int) -> tuple[IntArray, int]:
        assert self._memory is not None
        try:
            block, n, self._origin = self._memory.chain(context, room, self._namespace, 0.0, self._pointer, min_match)
            return block, n
        except MemoryFileError as error:  # the memory has taken the file out of use: say so once, write on without it
            _log.warning("drafting without a damaged memory file: %s", error)
            return self._remembered(context, room, min_match)


def _joined(drafts: list[tuple[IntArray, int]]) -> tuple[IntArray, npt.NDArray[np.int64]]:
    """All drafts as one, the most confident first, and where the nodes that each added end."""
    if len(drafts) == 1:
        return drafts[0][0], np.array([drafts[0][1]])
    drafts.sort(key=_confidence, reverse=True)
    capacity = sum(n for _, n in drafts)
    block, place = np.empty((len(BLOCK_ROWS), capacity), np.int32), np.empty(capacity, np.int64)
    ends, total = np.empty(len(drafts), np.int64), 0
    for i, (draft, n) in enumerate(drafts):
        ends[i] = total = core.insert(block, total, draft, n, place)
    return block, ends


def _longest(policy: DraftPolicy, match: int, room: int) -> int:
    return room if policy.length_factor is None else policy.draft_length(match, room)


def _confidence(draft: tuple[IntArray, int]) -> int:
    """Probability of the first node, as the bits of a float32: they order like it, and cost less to read."""
    bits: int = draft[0].item(core.ROW_PROB, 0)
    return bits
