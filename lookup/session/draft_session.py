"""DraftSession: one request, from the text so far to a Draft, and from its Outcome back into the text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from zerodraft.lookup._block import NUM_ROWS
from zerodraft.lookup._merge import Parts
from zerodraft.lookup.checks import bounds, one_of, shown
from zerodraft.lookup.copy._search import EVIDENCE_NAMES
from zerodraft.lookup.copy.ngram_index import NgramIndex
from zerodraft.lookup.draft import INT32, Draft, IntArray, Outcome
from zerodraft.lookup.measure.stats import has_paid
from zerodraft.lookup.memory.view import NOTHING, MemoryView, checked
from zerodraft.lookup.runtime._jit import direct
from zerodraft.lookup.session import _step as core
from zerodraft.lookup.session.states import known_by, new_states
from zerodraft.lookup.sources.candidates import Candidates
from zerodraft.lookup.sources.source import Source, Step

if TYPE_CHECKING:
    from zerodraft.lookup.drafter import Drafter

_gather, _propose, _learn = direct(core.gather), direct(core.propose), direct(core.learn)

REMEMBER: Final = (False, True, "output", "both")
Remember = Literal["output", "both"]


class DraftSession:
    """One request: ``propose``, verify, ``commit``, and again; then ``finish``. Not thread-safe.

    Its arena is prediction, barrier, prompt, output. The barrier never matches and is never drafted. The copy pointer
    is the arena position where the last accepted copy ended; it starts at the beginning of the prediction if there is
    one, else of the prompt, and stays where it is when a draft is rejected as a whole.
    """

    def __init__(
        self,
        drafter: Drafter,
        prompt: IntArray,
        prediction: IntArray,
        namespace: str | None,
        sources: Sequence[Source] = (),
    ) -> None:
        """``sources``: those that are asked beside the text itself and the drafter's memory."""
        self._drafter, self._namespace, self._sources = drafter, namespace, tuple(sources)
        self._states = new_states(1, drafter)
        state = self._state = self._states[0]
        self._index = NgramIndex(self._states["text"])
        if len(prediction):
            self._index.extend(prediction)
            self._index.add_barrier()
            state.num_predicted = len(prediction)
        state.prompt_start = len(self._index)
        self._index.extend(prompt)
        self._output_start = len(self._index)
        self._is_finished = False
        self._most = drafter.policy.max_row_tokens
        self._view: MemoryView = NOTHING
        self._ends = np.zeros(2, np.int64)
        self._last: Draft | None = None  # as it was proposed
        self._tables_for = (0, 0)
        self._known = known_by(drafter)

    @property
    def num_topk(self) -> int:
        """How many of the target's likeliest tokens ``commit`` wants in ``Outcome.topk`` for every position."""
        return max((source.num_topk for source in self._sources), default=0)

    @property
    def copy_pointer(self) -> int:
        """Arena position where the last accepted copy ended."""
        return int(self._state.pointer)

    @property
    def index(self) -> NgramIndex:
        """The session's own text: prediction, barrier, prompt, output."""
        return self._index

    @property
    def best_copy(self) -> tuple[int, int, str] | None:
        """(arena position, match length, evidence) of the likeliest copy at the last ``propose``, drafted or not."""
        best = self._state.best
        if best.length != len(self._index) or best.position < 0:
            return None
        return int(best.position), int(best.match), EVIDENCE_NAMES[best.evidence]

    @property
    def stand_down_reason(self) -> str | None:
        """Why most steps so far drafted nothing, in numbers; None if most of them did draft, or the others made up for
        it. What a source says of itself comes first."""
        reason = next((source.reason for source in reversed(self._sources) if source.reason is not None), None)
        if reason is not None:
            return reason
        state = self._state
        steps, unmatched, stood_down = int(state.num_steps), int(state.num_unmatched), int(state.num_stood_down)
        if 2 * (unmatched + stood_down) <= steps or has_paid(int(state.num_emitted), steps):
            return None
        if unmatched >= stood_down:
            return f"stood down: nothing to copy at {unmatched} of {steps} steps"
        tokens, cost = state.tokens_stood_down / stood_down, state.cost_stood_down / stood_down
        return f"stood down: expected {tokens:.2f} tokens for {cost:.2f} cost"

    def propose(self, max_tokens: int, max_depth: int | None = None, *, num_rows: int = 1) -> Draft:
        """Draft the likeliest continuation of the text so far.

        Changes nothing that a later ``propose`` could see. Cost: microseconds, whatever the length of the text.

        Args:
            max_tokens: upper bound on the number of nodes.
            max_depth: upper bound on the depth of every node (1: directly after the last token); None: no bound.
            num_rows: rows that share the target's forward; the more, the less each of them drafts.

        Returns:
            A chain, or a tree of up to ``max_branches`` chains and what other sources propose; empty where nothing
            matches, where drafting does not pay (``stand_down_reason`` says why) or where the bounds leave no room.

        Raises:
            ValueError: a negative bound, or num_rows below 1.
            RuntimeError: the session is finished.
        """
        if self._is_finished:
            self._check_running()
        if type(max_tokens) is not int or max_tokens < 0 or not (max_depth is None or type(max_depth) is int):
            max_tokens, max_depth = bounds(max_tokens, max_depth)
        room = self._most if self._most < max_tokens else max_tokens
        depth = room if max_depth is None or max_depth > room else max_depth
        if depth < 0:
            bounds(max_tokens, max_depth)
        bits = len(self._index).bit_length()
        if self._tables_for != (num_rows, bits):
            tables = self._drafter.policy.tables(num_rows, len(self._index))
            self._known, self._tables_for = self._known._replace(tables=tables), (num_rows, bits)
        if room == 0 or depth == 0:
            return Draft.empty()
        memory = self._drafter.memory
        if memory is not None and self._view is not (view := memory.view(self._namespace)):
            self._view, self._known = view, self._known._replace(segments=view.records)
        if self._sources:
            self._last = draft = self._merged(room, depth)
            return draft
        parts = Parts(np.empty((NUM_ROWS, room if memory is None else 2 * room), INT32), self._ends)
        n = _propose(self._index.arrays, self._states, 0, self._known, room, depth, parts)
        if n == core.CHECK:
            n = self._checked(_propose, room, depth, parts)
        return Draft.from_block(parts.block[:, :n])

    def _merged(self, room: int, depth: int) -> Draft:
        """What all sources propose."""
        state, text = self._state, self._index.arrays.tokens[: len(self._index)]
        price = float(state.pace_cost / max(state.pace_tokens, state.pace_cost))
        candidates = Candidates(text, room, depth, price, self._known.tables)
        for source in self._sources:
            source.propose(candidates)
        parts = candidates.parts(2 * room)
        candidates.join(parts, self._checked(_gather, room, depth, parts, candidates.num_parts))
        for source in self._sources:
            source.complete(candidates)
        state.own_cost = candidates.cost
        return candidates.draft(self._states)

    def _checked(self, kernel: Any, *args: Any) -> int:
        """Call a kernel that reads the memory, and check what it asks to have checked."""
        while (n := kernel(self._index.arrays, self._states, 0, self._known, *args)) == core.CHECK:
            assert self._drafter.memory is not None
            self._view = checked(self._drafter.memory, self._namespace, self._view, self._state.stored)
            self._known = self._known._replace(segments=self._view.records)
        return int(n)

    def commit(self, draft: Draft, outcome: Outcome) -> None:
        """Append what was emitted and move the copy pointer to the end of the accepted copy.

        The draft may come from elsewhere: nodes without an origin in this session's text leave the pointer alone.
        The first token of an output is ``commit(Draft.empty(), Outcome(path=(), new_ids=(token,), stop="full"))``.

        Raises:
            ValueError: a path that is not in the draft, or bad token ids; the session is then unchanged.
            RuntimeError: the session is finished.
        """
        self._check_running()
        if not isinstance(draft, Draft) or not isinstance(outcome, Outcome):
            raise ValueError(f"expected a Draft and its Outcome, got {shown(draft)} and {shown(outcome)}")
        origin = -1
        if outcome.path:
            node = outcome.path[-1]
            if not 0 <= node < len(draft):
                raise ValueError(f"path must hold nodes of the draft, in [0, {len(draft) - 1}], got {node}")
            origin = int(draft.origin[node])
        start = len(self._index)
        self._index.extend(outcome.new_ids)
        may_break = outcome.stop in ("rejected", "full")
        arrays = self._index.arrays
        _learn(arrays, self._states, 0, start, origin, len(draft), may_break, self._known)
        if self._sources:
            text = arrays.tokens[: len(self._index)]
            step = Step(text, start, draft, outcome, draft is self._last, self._known.tables)
            for source in self._sources:
                source.learn(step)
        self._last = None

    def finish(self, remember: bool | Remember = False) -> None:
        """End the session; proposing or committing afterwards is an error. Finishing twice is not, and does nothing.

        Args:
            remember: what to add to the drafter's memory, under the session's namespace: "output" (or True), "both"
                for prompt and output as one text, False for nothing.

        Raises:
            ValueError: another value, or something to remember where the drafter has no memory. The session is
                finished all the same.
        """
        was_finished, self._is_finished = self._is_finished, True
        one_of("remember", remember, REMEMBER)
        if remember is False or was_finished:
            return
        if self._drafter.memory is None:
            raise ValueError("remember needs a drafter with a memory, got a drafter without")
        start = int(self._state.prompt_start) if remember == "both" else self._output_start
        self._drafter.memory.add(self._index.token_ids[start:], self._namespace)

    def _check_running(self) -> None:
        if self._is_finished:
            raise RuntimeError("the session is finished; begin a new one")
