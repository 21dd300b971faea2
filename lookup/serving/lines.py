"""SessionLines: the sessions of a serving engine's rows, stepped all at once by one kernel call."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from zerodraft.lookup import _merge as merging
from zerodraft.lookup._block import NUM_ROWS
from zerodraft.lookup.checks import int_in
from zerodraft.lookup.copy.ngram_index import NgramIndex
from zerodraft.lookup.draft import Draft, IntArray, Outcome, as_token_ids
from zerodraft.lookup.drafter import Drafter
from zerodraft.lookup.memory.draft_memory import check_namespace
from zerodraft.lookup.memory.view import NOTHING, MemoryView, checked
from zerodraft.lookup.policy import MAX_DRAFT_TOKENS
from zerodraft.lookup.runtime._jit import direct, dtype_of
from zerodraft.lookup.serving import _rows as core
from zerodraft.lookup.serving.text_pool import TextPool
from zerodraft.lookup.session.states import known_by, new_states
from zerodraft.lookup.sources.candidates import Candidates
from zerodraft.lookup.sources.phrase_source import PhraseSource
from zerodraft.lookup.sources.source import Step

Longs = npt.NDArray[np.int64]
ROOM: Final = 512  # tokens that a session can take before its text is moved, which takes Python
_step_rows, _keep_likeliest = direct(core.step_rows), direct(merging.keep_likeliest)
_CAME: Final = Outcome(path=(), new_ids=(), stop="rejected")
_NO_PHRASES: Final = (None, 0)


class SessionLines:
    """Draft sessions by line number. A step of a batch costs a few microseconds per row and no Python for any of them.

    Chains only. What a line drafts is what a session would draft by itself with these bounds (the tests compare them).
    Not thread-safe.

    Attributes:
        drafts, num_drafted: int32 (>= rows, width), (>= rows,): the last step's drafts, by row.
    """

    def __init__(self, drafter: Drafter, max_draft_tokens: int, namespace: str | None = None) -> None:
        """Take the drafter's policy, memory and phrases.

        Args:
            max_draft_tokens: upper bound on the tokens of every draft, at most what the policy allows.
            namespace: whose remembered texts are drafted from.

        Raises:
            ValueError: a drafter whose drafts may be trees, or that has sources which no kernel can ask.
        """
        policy = drafter.policy
        wrong = {
            "max_branches": policy.max_branches != 1,
            "max_batch_tokens": policy.max_batch_tokens is not None,
            "recycle": drafter.recycle is not False,
            "suffix_tree": drafter.suffix_tree,
            "sources": drafter.sources != (),
        }
        for name, is_wrong in wrong.items():
            if is_wrong:
                raise ValueError(f"lines draft chains of one copy by the adaptive rule, got another {name}")
        check_namespace(namespace)
        self.max_draft_tokens: Final = int_in(
            "max_draft_tokens", max_draft_tokens, 1, min(policy.max_draft_tokens, MAX_DRAFT_TOKENS)
        )
        self._drafter, self._namespace = drafter, namespace
        self._pool = TextPool()
        self._lines: Any = np.zeros(0, dtype_of(core.Line))
        self._states = new_states(0, drafter)
        self._blocks = np.zeros((0, NUM_ROWS, max_draft_tokens), np.int32)
        self._block = np.zeros((NUM_ROWS, 2 * max_draft_tokens), np.int32)
        self._known = known_by(drafter)
        self._phrases: list[tuple[Any, int]] = []  # a line's source, and the length at which it was told what came
        self._free: list[int] = []
        self.drafts = np.zeros((8, max_draft_tokens), np.int32)
        self.num_drafted = np.zeros(8, np.int64)
        self._has_context_cost: Final = bool(policy.curve.long_points)
        self._view: MemoryView = NOTHING
        self._tables = policy.tables()
        self._tables_for = (1, 0)

    @property
    def num_sessions(self) -> int:
        """Sessions that are on a line."""
        return len(self._lines) - len(self._free)

    def begin(self, prompt_ids: IntArray) -> int:
        """Start a session for a text; return its line. Cost: O(prompt), tens of nanoseconds per token.

        Raises:
            ValueError: ids that are not integers in [0, 2**31 - 1].
        """
        prompt = as_token_ids(prompt_ids, "prompt_ids")
        if not self._free:
            self._add_lines()
        number = self._free.pop()
        self._states[number] = new_states(1, self._drafter)[0]
        index = NgramIndex(self._states["text"][number : number + 1])
        index.reserve(len(prompt) + ROOM, 1)
        index.extend(prompt)
        self._place(number, index)
        line = self._lines[number]
        line.held = line.before = len(prompt)
        line.scrubbed = line.num_drafted = 0
        if self._drafter.phrases is not None:
            source = PhraseSource(self._drafter.phrases, prompt, self._drafter.policy.prompt_lookup_min)
            self._phrases[number] = source, len(prompt)
        return number

    def finish(self, number: int) -> None:
        """End the session of a line; nothing is remembered. The line is free again."""
        self._pool.free(self._lines[number])
        self._free.append(number)

    def held(self, number: int) -> int:
        """Tokens of the line's text."""
        return int(self._lines[number].held)

    def text(self, number: int) -> IntArray:
        """The line's text, int32 (held,), read-only; valid until the next step."""
        return self._index(number).token_ids[: self.held(number)]

    def is_spoilt(self, number: int) -> bool:
        """True if tokens of another text came into the session: its text is right, but it cannot go on."""
        return self.num_indexed(number) != self.held(number)

    def before(self, number: int) -> int:
        """Tokens of the line's text before those that came in its last step."""
        return int(self._lines[number].before)

    def num_indexed(self, number: int) -> int:
        """Tokens in the session's index; more than ``held`` while a step is under way."""
        return int(self._states[number].text.length)

    def warm_up(self, max_rows: int, max_length: int) -> None:
        """Solve the tables of all batch sizes up to ``max_rows`` now; each takes milliseconds."""
        for num_rows in [*(1 << bits for bits in range((max_rows - 1).bit_length())), max_rows]:
            for bits in range(9, max_length.bit_length() + 1) if self._has_context_cost else (0,):
                self._drafter.policy.tables(num_rows, (1 << bits) - 1)

    def step(
        self,
        rows: IntArray,
        lengths: Longs,
        num_new: Longs,
        numbers: Longs,
        status: Longs,
        max_length: int,
        first: bool,
    ) -> int:
        """Step a batch; return how many rows need something, which ``status`` names. See ``_rows.step_rows``.

        What was drafted is in ``drafts`` and ``num_drafted``, by row.
        """
        if first:
            self._set_batch(lengths)
        batch = core.Batch(rows, lengths, num_new, numbers, status, self.drafts, self.num_drafted)
        known = self._known = self._known._replace(tables=self._tables, segments=self._view.records)
        sessions = core.Sessions(self._pool.arrays, self._lines, self._states, self._blocks, self._block, known)
        num_open: int = _step_rows(batch, sessions, max_length, first)
        while num_open and (asking := np.flatnonzero(status == core.CHECK)).size:
            for row in asking.tolist():
                stored, memory = self._states[numbers[row]].stored, self._drafter.memory
                assert memory is not None
                self._view = checked(memory, self._namespace, self._view, stored)
            again = np.full(len(status), core.DONE)
            again[asking] = core.CHECK
            known = known._replace(segments=self._view.records)
            _step_rows(batch._replace(status=again), sessions._replace(known=known), max_length, False)
            status[asking] = again[asking]
            num_open = int((status != core.DONE).sum())
        return num_open

    def append(self, number: int, rest: IntArray) -> None:
        """Bring a text to its new length where the kernel found no room: ``rest`` follows what ``num_indexed`` counts.

        Raises:
            ValueError: ids that are not integers in [0, 2**31 - 1].
        """
        index = self._index(number)
        index.extend(rest)
        self._place(number, index)

    @property
    def has_phrases(self) -> bool:
        """True if drafts may also come from phrases, whose rows have to be asked for one by one."""
        return self._drafter.phrases is not None

    def ask_phrases(self, number: int, row: int, room: int) -> None:
        """Tell the phrases what came, and let them join the draft of a row that was just stepped.

        Of the tree that this gives the likeliest chain is kept.
        """
        source, told = self._phrases[number]
        text, line, room = self.text(number), self._lines[number], min(room, self.max_draft_tokens)
        source.learn(Step(text, told, Draft.empty(), _CAME, False, self._tables))
        self._phrases[number] = source, len(text)
        if room < 1:
            return
        candidates, own = Candidates(text, room, room, 1.0, self._tables), self._blocks[number]
        source.propose(candidates)
        if not candidates.num_parts:
            return
        candidates.add_part(own[:, : line.num_drafted])
        candidates.join(candidates.parts(0), candidates.num_parts)
        block, n = candidates.picked(self._states[number : number + 1], room)
        kept = _keep_likeliest(block, n, self.drafts[row])
        own[:, :kept] = block[:, :kept]
        self.num_drafted[row] = line.num_drafted = kept

    def _set_batch(self, lengths: Longs) -> None:
        """What further positions cost a row depends on how many share the forward, and on the longest of them."""
        num_rows = len(lengths)
        longest = int(lengths.max()) if self._has_context_cost and num_rows else 0
        if (num_rows, longest.bit_length()) != self._tables_for:
            self._tables_for = num_rows, longest.bit_length()
            self._tables = self._drafter.policy.tables(max(num_rows, 1), longest)
        if num_rows > len(self.num_drafted):
            self.drafts = np.zeros((2 * num_rows, self.max_draft_tokens), np.int32)
            self.num_drafted = np.zeros(2 * num_rows, np.int64)
        if self._drafter.memory is not None:
            self._view = self._drafter.memory.view(self._namespace)

    def _index(self, number: int) -> NgramIndex:
        return self._pool.index_of(self._lines[number], self._states["text"][number : number + 1])

    def _place(self, number: int, index: NgramIndex) -> None:
        """Let the index take ``ROOM`` tokens more, and put it into the pool."""
        index.reserve(ROOM, ROOM)
        self._pool.place(index, self._lines[number], self._lines)

    def _add_lines(self) -> None:
        first, count = len(self._lines), max(8, len(self._lines))
        self._free += range(first + count - 1, first - 1, -1)
        self._phrases += [_NO_PHRASES] * count
        self._lines, self._states, self._blocks = (
            np.concatenate([array, np.zeros((count, *array.shape[1:]), array.dtype)])
            for array in (self._lines, self._states, self._blocks)
        )
